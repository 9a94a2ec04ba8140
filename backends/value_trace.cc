#include "backends/value_trace.h"

#include <algorithm>
#include <tuple>

namespace lockstep {
namespace {

// "log" of "llvm.log", "all_reduce" of "all_reduce.wait".
std::string OpOf(const StepInfo& step) {
  const size_t dot = step.name.find('.');
  if (dot == std::string::npos) return step.name;
  return step.collective ? step.name.substr(0, dot) : step.name.substr(dot + 1);
}

bool IsOdd(const NonFinite::Operand& operand) { return !operand.counts.is_finite(); }

}  // namespace

ValueTrace::ValueTrace(const Executor& executor)
    : executable_(executor.executable()),
      updated_(executor.updated_states().begin(), executor.updated_states().end()),
      facts_(executable_.steps.size()),
      values_(executable_.steps.size()) {}

absl::Status ValueTrace::Before(const StepInfo& step, size_t number, const StepContext& context) {
  Values& values = values_[number];
  StepFacts& facts = facts_[number];
  facts.is_constant = true;
  for (const StepOperand& read : step.reads) {
    ASSIGN_OR_RETURN(const ElementCounts counts, Look(read, context));
    const int32_t from = OriginOf(read.slice);
    values.operands.push_back({read.name, counts});
    values.from.push_back(from);
    if (!counts.is_finite())
      wrong_.push_back({static_cast<int32_t>(number), from, counts.nans > 0, counts.infinities > 0});
    const bool is_constant = from == kFromProgram || (from >= 0 && facts_[static_cast<size_t>(from)].is_constant);
    facts.is_constant = facts.is_constant && is_constant;
  }
  if (step.kind == StepKind::kStart) starts_[step.collective->id] = number;
  return absl::OkStatus();
}

absl::Status ValueTrace::After(const StepInfo& step, size_t number, const StepContext& context) {
  if (step.kind == StepKind::kStart) return absl::OkStatus();
  if (step.kind == StepKind::kWait) TakeOver(starts_[step.collective->id], number);
  for (const StepOperand& write : step.writes) {
    ASSIGN_OR_RETURN(const ElementCounts counts, Look(write, context));
    values_[number].results.push_back({write.name, counts});
    facts_[number].has_nan = facts_[number].has_nan || counts.nans > 0;
    facts_[number].has_infinity = facts_[number].has_infinity || counts.infinities > 0;
    written_[{write.slice.buffer, write.slice.offset}] = {static_cast<int32_t>(number), write.slice.bytes, counts};
  }
  return absl::OkStatus();
}

std::vector<WrongEnd> ValueTrace::wrong_ends() const {
  std::vector<WrongEnd> ends;
  for (const auto& [place, written] : written_) {
    const Buffer& buffer = executable_.buffers[static_cast<size_t>(place.first)];
    const bool is_end = buffer.kind == BufferKind::kResult || buffer.kind == BufferKind::kState;
    if (!is_end || written.counts.is_finite()) continue;
    const std::string kind = buffer.kind == BufferKind::kState ? "state " : "result ";
    ends.push_back({kind + buffer.name, written.step, written.counts.nans > 0});
  }
  return ends;
}

NonFinite ValueTrace::Describe(size_t number) const {
  const StepInfo& step = executable_.steps[number]->info();
  const Values& values = values_[number];
  const auto odd = std::find_if(values.results.begin(), values.results.end(), IsOdd);
  NonFinite found;
  found.op = OpOf(step);
  found.layer = step.source;
  if (odd != values.results.end()) std::tie(found.value, found.counts) = std::pair(odd->name, odd->counts);
  found.operands = values.operands;
  return found;
}

NonFinite ValueTrace::DescribeGiven(size_t number) const {
  const Values& values = values_[number];
  NonFinite found;
  for (size_t i = 0; i < values.operands.size(); ++i) {
    const NonFinite::Operand& operand = values.operands[i];
    if (values.from[i] >= 0 || !IsOdd(operand)) continue;
    if (operand.counts.nans == 0 && values.from[i] != kFromState) continue;  // an intended infinity
    const Buffer& buffer = executable_.buffers[static_cast<size_t>(ReadsOf(number)[i].slice.buffer)];
    const bool is_constant = values.from[i] == kFromProgram;
    found.op = buffer.kind == BufferKind::kState ? "state" : is_constant ? "constant" : "input";
    found.value = buffer.name.empty() ? operand.name : buffer.name;
    found.counts = operand.counts;
    if (operand.counts.nans > 0) break;
  }
  return found;
}

std::string ValueTrace::NameOf(size_t number) const {
  const StepInfo& step = executable_.steps[number]->info();
  std::string text = OpOf(step);
  if (!step.writes.empty()) text += " %" + step.writes[0].name;
  return step.source.empty() ? text : text + ", at " + step.source;
}

// A wait has no reads of its own; its operands are those of its start.
const std::vector<StepOperand>& ValueTrace::ReadsOf(size_t number) const {
  const StepInfo& step = executable_.steps[number]->info();
  if (step.kind != StepKind::kWait) return step.reads;
  return executable_.steps[starts_.at(step.collective->id)]->info().reads;
}

void ValueTrace::TakeOver(size_t start, size_t wait) {
  values_[wait] = values_[start];
  facts_[wait].is_constant = facts_[start].is_constant;
  for (WrongOperand& operand : wrong_) {
    if (operand.step == static_cast<int32_t>(start)) operand.step = static_cast<int32_t>(wait);
  }
}

int32_t ValueTrace::OriginOf(const BufferSlice& slice) const {
  int32_t last = -1;
  const auto end = written_.lower_bound({slice.buffer, slice.offset + slice.bytes});
  for (auto at = written_.lower_bound({slice.buffer, 0}); at != end; ++at) {
    if (slice.offset < at->first.second + at->second.bytes) last = std::max(last, at->second.step);
  }
  if (last >= 0) return last;  // the value itself, a value of which it is a part, or one of its parts
  const Buffer& buffer = executable_.buffers[static_cast<size_t>(slice.buffer)];
  if (buffer.kind == BufferKind::kState) return updated_.contains(buffer.name) ? kFromState : kFromInput;
  return buffer.kind == BufferKind::kInput ? kFromInput : kFromProgram;
}

absl::StatusOr<ElementCounts> ValueTrace::Look(const StepOperand& operand, const StepContext& context) {
  const std::byte* data = context.data(operand.slice);
  const size_t bytes = data == nullptr ? 0 : operand.slice.bytes;
  if (!IsFloat(operand.dtype) || context.device().is_host()) return CountElements(operand.dtype, data, bytes);
  copy_.resize(bytes);
  RETURN_IF_ERROR(context.device().CopyToHost(copy_.data(), data, bytes));
  RETURN_IF_ERROR(context.device().Synchronize());
  return CountElements(operand.dtype, copy_.data(), bytes);
}

}  // namespace lockstep
