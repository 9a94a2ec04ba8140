#include "runtime/execution/executable.h"

#include <cstdio>

#include "absl/strings/str_format.h"

namespace lockstep {
namespace {

std::string HexPrefix(uint64_t hash) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(hash >> 32));
  return text;
}

std::string BytesToString(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + "B";
  if (bytes < 10 * 1024 * 1024) return std::to_string((bytes + 1023) / 1024) + "KiB";
  return std::to_string((bytes + 1024 * 1024 - 1) / (1024 * 1024)) + "MiB";
}

std::string OperandToString(const StepOperand& operand, const std::vector<Buffer>& buffers) {
  const Buffer& buffer = buffers[static_cast<size_t>(operand.slice.buffer)];
  std::string text = "%" + operand.name;
  if (!operand.layout.empty()) text += ":" + operand.layout;
  switch (buffer.kind) {
    case BufferKind::kArena:
    case BufferKind::kRegistered: return text + " in " + buffer.ToString() + "+" + std::to_string(operand.slice.offset);
    case BufferKind::kConstant:
    case BufferKind::kSettings:
    case BufferKind::kInput: return text;
    case BufferKind::kResult:
    case BufferKind::kState: return buffer.name == operand.name ? text : text + " in " + buffer.ToString();
  }
  return text;
}

void AppendOperands(std::string& text, const char* verb, const std::vector<StepOperand>& operands,
                    const std::vector<Buffer>& buffers) {
  if (operands.empty()) return;
  text += std::string("  ") + verb;
  for (size_t i = 0; i < operands.size(); ++i) text += (i ? ", " : " ") + OperandToString(operands[i], buffers);
}

std::string StepToString(const StepInfo& info, const std::vector<Buffer>& buffers) {
  std::string text = info.name;
  text.resize(std::max<size_t>(text.size(), 20), ' ');
  if (info.collective) {
    text += "  " + info.collective->label + (info.collective->is_urgent ? ", urgent" : "");
  } else {
    AppendOperands(text, "reads", info.reads, buffers);
    AppendOperands(text, "writes", info.writes, buffers);
    if (info.scratch.bytes > 0) text += "  scratch arena+" + std::to_string(info.scratch.offset);
  }
  if (!info.source.empty()) text += "  // " + info.source;
  return text;
}

}  // namespace

absl::Status CheckValue(const SettingInfo& setting, double value) {
  if (setting.setting.range.Contains(value)) return absl::OkStatus();
  return InvalidArgument() << "setting " << setting.name << " is " << value << ", expected "
                           << setting.setting.range.ToString();
}

std::string Lane::ToString() const { return axis + " " + std::to_string(source) + " to " + std::to_string(target); }

std::string CollectiveInfo::ToString() const {
  if (op == CollectiveOp::kBarrier) return "barrier along " + axis + ", " + label;
  const CollectiveTraits traits = TraitsOf(op);
  std::string text(traits.name);
  if (traits.has_root()) text += " root=" + std::to_string(root);
  if (traits.reduces) text += " " + std::string(ReduceKindName(kind));
  text += " " + std::string(DTypeName(dtype)) + "[" + std::to_string(count()) + "]";
  if (counts.size() > 1) {
    for (size_t i = 0; i < counts.size(); ++i) text += (i == 0 ? " of " : "+") + std::to_string(counts[i]);
  }
  for (size_t i = 0; i < pairs.size(); ++i)
    text += (i == 0 ? " " : ", ") + std::to_string(pairs[i].source) + " to " + std::to_string(pairs[i].target);
  return text + " along " + axis + ", " + label + (is_urgent ? ", urgent" : "") +
         (when < 0 ? "" : ", if setting " + std::to_string(when) + " is not 0");
}

std::string StepInfo::ToString(size_t most) const {
  std::string text = name;
  if (collective && !collective->message_name.empty()) return text + ", " + collective->message_name;
  for (size_t i = 0; i < std::min(most, writes.size()); ++i) text += " %" + writes[i].name;
  if (writes.size() > most) text += " and " + std::to_string(writes.size() - most) + " more";
  if (!source.empty()) text += ", at " + source;
  return text;
}

std::vector<int32_t> BuffersWritten(const StepInfo& step) {
  std::vector<int32_t> buffers;
  for (const StepOperand& write : step.writes) buffers.push_back(write.slice.buffer);
  if (step.collective && step.collective->output.buffer >= 0) buffers.push_back(step.collective->output.buffer);
  return buffers;
}

Recomputation& Recomputation::operator+=(const Recomputation& other) {
  kernels += other.kernels;
  all_kernels += other.all_kernels;
  flops += other.flops;
  all_flops += other.all_flops;
  bytes += other.bytes;
  all_bytes += other.all_bytes;
  return *this;
}

Recomputation Recomputation::Times(int64_t runs) const {
  const auto times = static_cast<double>(runs);
  return {kernels * runs, all_kernels * runs, flops * times, all_flops * times, bytes * times, all_bytes * times};
}

std::string Recomputation::ToString() const {
  const auto percent = [](double part, double whole) { return whole > 0 ? 100 * part / whole : 0.0; };
  return absl::StrFormat("%d of %d kernels run again: %.1f %% more operations, %.1f %% more bytes", kernels,
                         all_kernels, percent(flops, all_flops), percent(bytes, all_bytes));
}

std::string Certificate::ToString() const { return HexPrefix(hash); }

uint64_t Executable::BytesOf(BufferKind kind) const {
  uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) {
    if (buffer.kind == kind) bytes += buffer.bytes_of_rank();
  }
  return bytes;
}

std::string Executable::ToString() const {
  std::string text = "executable @" + name + " backend=" + backend + " ranks=" + std::to_string(mesh.num_ranks()) +
                     " threads=" + std::to_string(threads) + " arena=" + BytesToString(BytesOf(BufferKind::kArena)) +
                     " states=" + BytesToString(BytesOf(BufferKind::kState)) +
                     " buckets=" + BytesToString(BytesOf(BufferKind::kRegistered)) +
                     " certificate=" + certificate.ToString() + "\n";
  if (recomputed.kernels > 0) text += "  // " + recomputed.ToString() + "\n";
  const size_t width = std::to_string(steps.empty() ? 0 : steps.size() - 1).size();
  for (size_t i = 0; i < steps.size(); ++i) {
    std::string number = std::to_string(i);
    number.insert(0, width - number.size(), ' ');
    text += "  [" + number + "] " + StepToString(steps[i]->info(), buffers) + "\n";
  }
  return text;
}

}  // namespace lockstep
