#include "backends/value_trace.h"

#include <algorithm>
#include <tuple>

#include "core/op_def.h"
#include "core/unroll_loops.h"

namespace lockstep {
namespace {

// "log" of "llvm.log", "all_reduce" of "all_reduce.wait".
std::string OpOf(const StepInfo& step) {
  const size_t dot = step.name.find('.');
  if (dot == std::string::npos) return step.name;
  return step.collective ? step.name.substr(0, dot) : step.name.substr(dot + 1);
}

// True if each element of the one result depends on the elements at its place in the operands, and in memory, too.
bool IsElementwise(const StepInfo& step) {
  const OpDef* const op = FindOp(OpOf(step));
  const auto is_dense = [](const StepOperand& operand) { return operand.layout.empty(); };
  return op != nullptr && op->has_trait(kElementwise) && step.writes.size() == 1 && is_dense(step.writes[0]) &&
         std::all_of(step.reads.begin(), step.reads.end(), is_dense);
}

bool IsOdd(const NonFinite::Operand& operand) { return !operand.counts.is_finite(); }

// Returns the index of the first element that is not finite. Not of one number, nor of another layout than row-major.
std::vector<int64_t> IndexOfFirst(const ElementCounts& counts, const StepOperand& operand) {
  const bool is_dense = operand.layout.empty() && operand.shape.num_elements() == counts.elements;
  return is_dense ? IndexOf(counts.first, operand.shape) : std::vector<int64_t>();
}

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
  elements_.clear();
  for (const StepOperand& read : step.reads) {
    ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, BytesOf(read, context));
    const ElementCounts counts = CountElements(read.dtype, bytes.data(), bytes.size());
    const int32_t from = OriginOf(read.slice);
    values.operands.push_back({read.name, counts});
    if (!counts.is_finite()) {
      const auto operand = static_cast<int32_t>(values.operands.size()) - 1;
      wrong_.push_back({static_cast<int32_t>(number), operand, from, counts.nans > 0, counts.infinities > 0});
      if (IsElementwise(step)) elements_.push_back(NonFiniteElements(read.dtype, bytes.data(), bytes.size()));
    }
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
    ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, BytesOf(write, context));
    const ElementCounts counts = CountElements(write.dtype, bytes.data(), bytes.size());
    values_[number].results.push_back({write.name, counts});
    facts_[number].has_nan = facts_[number].has_nan || counts.nans > 0;
    facts_[number].has_infinity = facts_[number].has_infinity || counts.infinities > 0;
    written_[{write.slice.buffer, write.slice.offset}] = {static_cast<int32_t>(number), write.slice.bytes, counts};
  }
  return elements_.empty() ? absl::OkStatus() : CompareElements(step, number, context);
}

// Removes operands of an elementwise step that have no element in common with what is not finite in its result.
absl::Status ValueTrace::CompareElements(const StepInfo& step, size_t number, const StepContext& context) {
  ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, BytesOf(step.writes[0], context));
  const std::vector<bool> result = NonFiniteElements(step.writes[0].dtype, bytes.data(), bytes.size());
  std::vector<bool> explained(result.size());
  std::vector<WrongOperand> kept;
  for (size_t i = 0; i < elements_.size(); ++i) {
    bool is_cause = elements_[i].size() != result.size();  // a number for all elements
    for (size_t j = 0; j < result.size(); ++j) {
      const bool has = result[j] && (elements_[i].size() != result.size() || elements_[i][j]);
      is_cause = is_cause || has;
      explained[j] = explained[j] || has;
    }
    if (is_cause) kept.push_back(wrong_[wrong_.size() - elements_.size() + i]);
  }
  wrong_.resize(wrong_.size() - elements_.size());
  wrong_.insert(wrong_.end(), kept.begin(), kept.end());
  facts_[number].made_here = explained != result;
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
  std::tie(found.layer, found.iteration) = SplitIterations(step.source);
  if (odd != values.results.end()) {
    std::tie(found.value, found.counts) = std::pair(odd->name, odd->counts);
    found.first = IndexOfFirst(odd->counts, step.writes[static_cast<size_t>(odd - values.results.begin())]);
  }
  found.operands = values.operands;
  return found;
}

NonFinite ValueTrace::DescribeGiven(size_t number, bool is_infinite) const {
  NonFinite found;
  for (const WrongOperand& wrong : wrong_) {
    const bool is_wrong = is_infinite ? wrong.has_infinity : wrong.has_nan || wrong.from == kFromState;
    if (wrong.step != static_cast<int32_t>(number) || wrong.from >= 0 || !is_wrong) continue;
    const auto position = static_cast<size_t>(wrong.operand);
    const NonFinite::Operand& operand = values_[number].operands[position];
    const StepOperand& read = ReadsOf(number)[position];
    const Buffer& buffer = executable_.buffers[static_cast<size_t>(read.slice.buffer)];
    const bool is_constant = wrong.from == kFromProgram;
    found.op = buffer.kind == BufferKind::kState ? "state" : is_constant ? "constant" : "input";
    found.value = buffer.name.empty() ? operand.name : buffer.name;
    found.counts = operand.counts;
    found.first = IndexOfFirst(operand.counts, read);
    if (wrong.has_nan || is_infinite) break;
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

absl::StatusOr<std::span<const std::byte>> ValueTrace::BytesOf(const StepOperand& operand, const StepContext& context) {
  const std::byte* const data = context.data(operand.slice);
  const size_t bytes = data == nullptr ? 0 : operand.slice.bytes;
  if (!IsFloat(operand.dtype) || context.device().is_host()) return std::span(data, bytes);
  copy_.resize(bytes);
  RETURN_IF_ERROR(context.device().CopyToHost(copy_.data(), data, bytes));
  RETURN_IF_ERROR(context.device().Synchronize());
  return std::span<const std::byte>(copy_);
}

}  // namespace lockstep
