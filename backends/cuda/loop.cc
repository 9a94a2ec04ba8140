// Fused loops, compiled by the loop compiler: `fusion` nodes, single nodes that become a loop of their own, and the
// reorders between layouts.

#include <algorithm>
#include <optional>

#include "backends/cuda/emitters.h"
#include "backends/loops/channels_last.h"
#include "backends/loops/loop_body.h"
#include "core/check.h"

namespace lockstep::cuda {
namespace {

// Queues the kernels of a loop.
class LoopRunner {
 public:
  LoopRunner(std::shared_ptr<LoopCode> code, std::vector<std::string> messages, size_t num_reads, size_t num_writes)
      : code_(std::move(code)), messages_(std::move(messages)), num_reads_(num_reads), num_writes_(num_writes) {}

  absl::Status operator()(const KernelArgs& args) {
    CudaStream& stream = StreamOf(args);
    if (run_ == nullptr) RETURN_IF_ERROR(Load(stream));
    std::vector<void*> values(args.reads, args.reads + num_reads_);
    values.insert(values.end(), args.writes, args.writes + num_writes_);
    values.insert(values.end(), {args.scratch, reinterpret_cast<void*>(stream.error_word())});
    std::vector<void*> parameters;
    for (void*& value : values) parameters.push_back(&value);
    parameters.push_back(&error_id_);
    const CompiledGrid& grid = code_->grid;
    RETURN_IF_ERROR(Launch(stream, run_, GridOf(grid.run), parameters.data()));
    if (!grid.finish) return absl::OkStatus();
    return Launch(stream, finish_, GridOf(*grid.finish), parameters.data());
  }

 private:
  static Grid GridOf(const GridLaunch& launch) { return {launch.blocks_x, launch.blocks_y, launch.threads}; }

  absl::Status Load(CudaStream& stream) {
    const CompiledGrid& grid = code_->grid;
    if (grid.finish) {
      ASSIGN_OR_RETURN(finish_, code_->image->Find(stream.device(), grid.finish->kernel));
    }
    ASSIGN_OR_RETURN(run_, code_->image->Find(stream.device(), grid.run.kernel));
    error_id_ = stream.RegisterErrors(messages_);
    return absl::OkStatus();
  }

  std::shared_ptr<LoopCode> code_;
  std::vector<std::string> messages_;
  size_t num_reads_, num_writes_;
  CUfunction run_ = nullptr, finish_ = nullptr;
  uint32_t error_id_ = 0;
};

// Returns the messages by the kernel's error code, which LoopRefusal computes from a node's position.
std::vector<std::string> MessagesOf(const Graph& body) {
  const std::vector<std::string> by_position = RefusalMessages(body);
  std::vector<std::string> messages;
  for (size_t i = 0; i < by_position.size(); ++i) {
    const auto code = static_cast<size_t>(LoopRefusal(i));
    messages.resize(code + 1);
    messages[code] = by_position[i];
  }
  return messages;
}

Kernel LoopKernel(std::string name, Graph body, const GridPlan& plan, EmitContext& c) {
  Kernel kernel;
  kernel.name = "ptx." + std::move(name);
  kernel.scratch_bytes = static_cast<uint64_t>(plan.scratch_bytes());
  std::vector<std::string> messages = MessagesOf(body);
  const size_t num_reads = body.inputs().size(), num_writes = body.results().size();
  kernel.run = LoopRunner(c.AddLoop(std::move(body)), std::move(messages), num_reads, num_writes);
  return kernel;
}

// Adds a loop. `body` computes the values of `shape` channels-last, and reads those operands channels-last for which
// `inputs` is true.
absl::Status AddLoop(const Node& node, Graph body, const std::optional<Shape>& shape, const std::vector<bool>& inputs,
                     EmitContext& c) {
  const absl::StatusOr<GridPlan> plan = AnalyzeGrid(body, c.target().grid);
  if (!plan.ok()) return plan.status();
  std::vector<int> reads, writes;
  for (size_t i = 0; i < node.operands().size(); ++i)
    reads.push_back(c.ReadAs(node, c.attention_views().OfLoopOperand(node, i).base, inputs[i]));
  for (size_t i = 0; i < node.num_results(); ++i) {
    writes.push_back(c.WriteAs(EmitContext::ResultOf(node, i), node.type(i).shape == shape));
  }
  Kernel kernel = LoopKernel(node.op_name(), std::move(body), *plan, c);
  Instruction& instruction = c.Add(node, std::move(kernel), std::move(reads), std::move(writes));
  for (size_t result = 0; result < plan->in_place.size(); ++result) {
    for (int operand : plan->in_place[result])
      instruction.may_overwrite.emplace_back(static_cast<int>(result), operand);
  }
  return absl::OkStatus();
}

}  // namespace

bool SupportsLoop(const Node& node) {
  const absl::StatusOr<Graph> body = LoopBodyOf(node);
  return body.ok() && AnalyzeGrid(*body).ok();
}

absl::Status EmitLoop(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(Graph body, LoopBodyOf(node));
  if (const std::vector<std::vector<int64_t>> permutations = c.attention_views().PermutationsOf(node);
      !permutations.empty()) {
    ASSIGN_OR_RETURN(body, BodyOfTransposed(body, permutations));
    return EmitLoopOf(node, std::move(body), c);
  }
  const std::optional<Shape> wanted =
      ChannelsLastShapeOf(node, {.is_channels_last = [&](Value value) { return c.IsChannelsLast(value); },
                                 .need = [&](Value value) { return c.Need(value); }});
  // An operand that exists only in the other layout is read at transposed indices: a reorder would read it, write it
  // and be read.
  for (const std::optional<Shape>& shape : {wanted, std::optional<Shape>()}) {
    std::vector<bool> inputs;
    for (const Value& operand : node.operands()) {
      const bool is_of_shape = operand.shape() == shape;
      inputs.push_back(c.ExistsAs(operand, is_of_shape) == is_of_shape);
    }
    if (!shape && std::find(inputs.begin(), inputs.end(), true) == inputs.end()) break;
    absl::StatusOr<Graph> moved = ChannelsLastBody(body, shape, inputs);
    const absl::Status status = moved.ok() ? AddLoop(node, *std::move(moved), shape, inputs, c) : moved.status();
    if (!absl::IsUnimplemented(status)) return Annotate(status, node.Describe());
  }
  return EmitLoopOf(node, std::move(body), c);
}

absl::Status EmitLoopOf(const Node& node, Graph body, EmitContext& c) {
  const std::vector<bool> row_major(node.operands().size(), false);
  return Annotate(AddLoop(node, std::move(body), std::nullopt, row_major, c), node.Describe());
}

Kernel ReorderKernel(const TensorType& type, bool to_channels_last, EmitContext& c) {
  Graph copy("reorder");
  const absl::StatusOr<Value> x = copy.AddInput("x", type);
  LOCKSTEP_CHECK(x.ok() && copy.AddResult("y", *x).ok());
  const std::optional<Shape> shape = to_channels_last ? std::optional(type.shape) : std::nullopt;
  absl::StatusOr<Graph> body = ChannelsLastBody(copy, shape, {!to_channels_last});
  LOCKSTEP_CHECK(body.ok()) << body.status();
  const absl::StatusOr<GridPlan> plan = AnalyzeGrid(*body, c.target().grid);
  LOCKSTEP_CHECK(plan.ok()) << plan.status();
  Kernel kernel = LoopKernel("reorder", *std::move(body), *plan, c);
  kernel.is_reorder = true;
  return kernel;
}

}  // namespace lockstep::cuda
