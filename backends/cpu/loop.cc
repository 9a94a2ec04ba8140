// Fused loops, compiled by the loop compiler: `fusion` nodes, and single nodes that become a loop of their own.

#include <omp.h>

#include <algorithm>
#include <optional>

#include "backends/cpu/emitters.h"
#include "backends/loops/channels_last.h"
#include "backends/loops/loop_body.h"

namespace lockstep::cpu {
namespace {

// Returns the shape whose values the loop should read and write channels-last; empty if there is none, or if oneDNN
// lacks the dtype of such a value and could not reorder it.
std::optional<Shape> ChannelsLastShape(const Node& node, const EmitContext& c) {
  const std::optional<Shape> shape =
      ChannelsLastShapeOf(node, {.is_channels_last = [&](Value value) { return c.IsChannelsLast(value); }});
  const auto is_refused = [&](const TensorType& type) { return type.shape == shape && !OneDnnType(type.dtype); };
  for (const Value& operand : node.operands()) {
    if (is_refused(operand.type())) return std::nullopt;
  }
  for (size_t i = 0; i < node.num_results(); ++i) {
    if (is_refused(node.type(i))) return std::nullopt;
  }
  return shape;
}

using Desc = dnnl::memory::desc;

// Returns the layout in which all operands of a sum were produced, if that is not row-major.
std::optional<Desc> LayoutOfSum(const Node& node, const EmitContext& c) {
  if (!IsSum(node) || !OneDnnType(node.type().dtype)) return std::nullopt;
  const Desc desc = c.ProducedDesc(node.operand(0));
  const bool is_alike = std::all_of(node.operands().begin(), node.operands().end(), [&](Value operand) {
    return LayoutName(c.ProducedDesc(operand)) == LayoutName(desc);
  });
  return is_alike && !LayoutName(desc).empty() ? std::optional(desc) : std::nullopt;
}

// Returns the body of a sum over all elements that a value has in memory, with its padding, which consists of zeros.
absl::StatusOr<Graph> SumInMemory(const Graph& body, DType dtype, uint64_t bytes) {
  Graph flat(body.name());
  ValueMap map;
  for (const Input& input : body.inputs()) {
    ASSIGN_OR_RETURN(map[input.value],
                     flat.AddInput(input.name(), {dtype, Shape({static_cast<int64_t>(bytes / SizeOf(dtype))})}));
  }
  for (const Node& node : body.nodes()) RETURN_IF_ERROR(flat.InsertCopy(node, map).status());
  for (const Result& result : body.results()) RETURN_IF_ERROR(flat.AddResult(result.name, map.at(result.value)));
  return flat;
}

// The computation of a node's loop, and the shape of its channels-last values, or the layout of all its values.
struct Loop {
  Graph body;
  LoopInfo info;
  std::optional<Shape> channels_last;
  std::optional<Desc> layout = std::nullopt;
};

absl::StatusOr<Loop> LoopOf(const Node& node, const EmitContext& c) {
  ASSIGN_OR_RETURN(Graph body, LoopBodyOf(node));
  if (const std::optional<Desc> layout = LayoutOfSum(node, c)) {
    ASSIGN_OR_RETURN(Graph sum, SumInMemory(body, node.type().dtype, layout->get_size()));
    ASSIGN_OR_RETURN(LoopInfo info, AnalyzeLoop(sum, c.loop_sizes()));
    return Loop{std::move(sum), std::move(info), std::nullopt, layout};
  }
  if (const std::optional<Shape> shape = ChannelsLastShape(node, c)) {
    absl::StatusOr<Graph> moved = ChannelsLastBody(body, shape);
    absl::StatusOr<LoopInfo> info = moved.ok() ? AnalyzeLoop(*moved, c.loop_sizes()) : moved.status();
    if (info.ok()) return Loop{std::move(*moved), std::move(*info), shape};
    if (!absl::IsUnimplemented(info.status())) return Annotate(info.status(), node.Describe());
  }
  absl::StatusOr<LoopInfo> info = AnalyzeLoop(body, c.loop_sizes());
  if (!info.ok()) return Annotate(info.status(), node.Describe());
  return Loop{std::move(body), std::move(*info), std::nullopt};
}

// Runs the units of a loop on the rank's threads.
class LoopRunner {
 public:
  LoopRunner(std::shared_ptr<LoopCode> code, int threads, std::vector<std::string> messages, size_t num_reads,
             size_t num_writes)
      : code_(std::move(code)),
        threads_(threads),
        messages_(std::move(messages)),
        num_reads_(num_reads),
        buffers_(num_reads + num_writes) {}

  absl::Status operator()(const KernelArgs& args) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i] = i < num_reads_ ? args.reads[i] : args.writes[i - num_reads_];
    }
    const CompiledLoop& loop = code_->loop;
    const int64_t grains = loop.info.grain > 0 ? loop.info.extent / loop.info.grain : 1;
    const int threads = static_cast<int>(std::min<int64_t>(threads_, grains));
    if (threads <= 1) return ToStatus(loop.RunAll(buffers_.data(), args.scratch));
    int32_t error = kLoopOk;  // if several threads have an error, that of the last node
#pragma omp parallel num_threads(threads) reduction(max : error)
    {
      const int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
      error = loop.run(buffers_.data(), args.scratch, loop.info.extent * thread / count,
                       loop.info.extent * (thread + 1) / count);
    }
    if (error == kLoopOk && loop.finish) error = loop.finish(buffers_.data(), args.scratch);
    return ToStatus(error);
  }

 private:
  absl::Status ToStatus(int32_t error) const {
    if (error == kLoopOk) return absl::OkStatus();
    return InvalidArgument() << messages_[PositionOfRefusal(error)];
  }

  std::shared_ptr<LoopCode> code_;
  int threads_;
  std::vector<std::string> messages_;
  size_t num_reads_;
  std::vector<void*> buffers_;
};

}  // namespace

bool IsSum(const Node& node) {
  if (!node.Is("fusion") || node.num_results() != 1) return false;
  const auto& nodes = node.attr<Region>("body").graph().nodes();
  const auto is_alike = [&](const auto& value) { return value.type() == node.type(); };
  return std::all_of(node.operands().begin(), node.operands().end(), is_alike) &&
         std::all_of(nodes.begin(), nodes.end(), [&](const Node& each) { return each.Is("add") && is_alike(each); });
}

bool SupportsLoop(const Node& node) {
  const absl::StatusOr<Graph> body = LoopBodyOf(node);
  return body.ok() && AnalyzeLoop(*body).ok();
}

absl::Status EmitLoop(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(Loop loop, LoopOf(node, c));
  const auto layout_of = [&](Value value) -> std::optional<Desc> {
    if (loop.channels_last && value.shape() == *loop.channels_last) return ChannelsLast(value.type());
    return loop.layout;
  };
  std::vector<int> reads, writes;
  for (const Value& operand : node.operands()) {
    const std::optional<Desc> layout = layout_of(operand);
    ASSIGN_OR_RETURN(const int read, layout ? c.ReadAs(node, operand, *layout) : c.RowMajorOf(node, operand));
    reads.push_back(read);
  }
  for (size_t i = 0; i < node.num_results(); ++i) {
    const Value result = EmitContext::ResultOf(node, i);
    const std::optional<Desc> layout = layout_of(result);
    writes.push_back(layout ? c.WriteAs(result, *layout) : c.Write(node, i));
  }
  Kernel kernel;
  kernel.name = "llvm." + node.op_name();
  kernel.scratch_bytes = static_cast<uint64_t>(loop.info.scratch_bytes);
  std::vector<std::string> messages = RefusalMessages(loop.body);
  kernel.run =
      LoopRunner(c.AddLoop(std::move(loop.body)), c.threads(), std::move(messages), reads.size(), writes.size());
  Instruction& instruction = c.Add(node, std::move(kernel), std::move(reads), std::move(writes));
  for (size_t result = 0; result < loop.info.in_place.size(); ++result) {
    for (int operand : loop.info.in_place[result])
      instruction.may_overwrite.emplace_back(static_cast<int>(result), operand);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
