// Pooling, with kernels/pooling.h. The gradient of max pooling needs the positions of the maxima and computes them
// again: this costs one more read of x, and no memory between the passes. Operands are read in the layouts in which
// they were produced.

#include "backends/cuda/kernels/pooling.h"

#include "backends/cuda/emitters.h"
#include "backends/loops/channels_last.h"
#include "core/op_def.h"

namespace lockstep::cuda {
namespace {

using Ints = std::vector<int64_t>;

// A value and its layout.
struct Side {
  Value value;
  bool channels_last;

  int64_t step() const { return channels_last ? value.shape()[1] : 1; }
};

// The layout of an operand is that in which it was produced. A result has the layout that its readers need, and else
// that of the operand; the gradient of max_pool has that of x.
Side OperandSide(Value value, const EmitContext& c) { return {value, c.IsChannelsLast(value)}; }
Side ResultSide(const Node& node, const Side& operand, const EmitContext& c) {
  const Value value = EmitContext::ResultOf(node);
  const int need = c.Need(value);
  return {value, need > 0 || (need == 0 && operand.channels_last && !IsAlsoRowMajor(value.shape()))};
}

// Returns the arguments for a node that pools `x` to `y`, or for its gradient.
PoolArgs ArgsOf(const Node& node, const Side& x, const Side& y) {
  const Shape &from = x.value.shape(), &to = y.value.shape();
  PoolArgs args{};
  args.planes = from[0] * from[1];
  args.channels = from[1];
  args.x_step = x.step();
  args.y_step = y.step();
  for (PoolAxis& axis : args.axes) axis = {1, 1, 1, 1, 0, 1};
  const Ints& sizes = node.attr<Ints>("window");
  const bool dilates = node.op().FindAttribute("dilation") != nullptr;
  for (size_t i = 0; i < sizes.size(); ++i) {
    args.axes[3 - sizes.size() + i] = {from.dims()[i + 2],
                                       to.dims()[i + 2],
                                       sizes[i],
                                       node.attr<Ints>("stride")[i],
                                       node.attr<Ints>("padding_low")[i],
                                       dilates ? node.attr<Ints>("dilation")[i] : 1};
  }
  if (node.op().FindAttribute("include_padding") != nullptr)
    args.include_padding = node.attr<bool>("include_padding") ? 1 : 0;
  return args;
}

// Adds one kernel that computes y from x, or dx from dy.
void AddPool(const Node& node, EmitContext& c, PoolArgs given, const Side& operand, const Side& result) {
  Kernel kernel;
  kernel.name = "cuda." + node.op_name();
  kernel.run = [given, total = node.type().num_elements(),
                pool =
                    c.KernelOf("pooling", NameFor(node.op_name(), node.type().dtype))](const KernelArgs& args) mutable {
    given.x = args.reads[0];
    given.y = args.writes[0];
    return pool.Run(StreamOf(args), total, given);
  };
  const int read = c.ReadAs(node, operand.value, operand.channels_last);
  c.Add(node, std::move(kernel), {read}, {c.WriteAs(result.value, result.channels_last)});
}

absl::Status EmitPool(const Node& node, EmitContext& c) {
  const Side x = OperandSide(node.operand(0), c), y = ResultSide(node, x, c);
  AddPool(node, c, ArgsOf(node, x, y), x, y);
  return absl::OkStatus();
}

}  // namespace

absl::Status EmitMaxPool(const Node& node, EmitContext& c) { return EmitPool(node, c); }

// Positions in a plane are stored in 32 bits.
bool SupportsMaxPoolGrad(const Node& node) {
  const Shape& x = node.operand(0).shape();
  int64_t plane = 1;
  for (int64_t i = 2; i < x.rank(); ++i) plane *= x[i];
  return plane < (int64_t{1} << 31);
}

absl::Status EmitMaxPoolGrad(const Node& node, EmitContext& c) {
  const DType dtype = node.type().dtype;
  const Side x = OperandSide(node.operand(0), c), dy = OperandSide(node.operand(1), c);
  Kernel kernel;
  kernel.name = "cuda.max_pool_grad";
  kernel.scratch_bytes = static_cast<uint64_t>(dy.value.type().num_elements()) * sizeof(int32_t);
  kernel.run = [given = ArgsOf(node, x, dy), x_total = node.type().num_elements(),
                y_total = dy.value.type().num_elements(), find = c.KernelOf("pooling", NameFor("max_pool", dtype)),
                sum = c.KernelOf("pooling", NameFor("max_pool_grad", dtype))](const KernelArgs& args) mutable {
    CudaStream& stream = StreamOf(args);
    given.maxima = reinterpret_cast<int32_t*>(args.scratch);
    given.x = args.reads[0];
    given.y = nullptr;
    RETURN_IF_ERROR(find.Run(stream, y_total, given));
    given.x = args.reads[1];
    given.y = args.writes[0];
    return sum.Run(stream, x_total, given);
  };
  std::vector<int> reads = {c.ReadAs(node, x.value, x.channels_last), c.ReadAs(node, dy.value, dy.channels_last)};
  c.Add(node, std::move(kernel), std::move(reads), {c.WriteAs(EmitContext::ResultOf(node), x.channels_last)});
  return absl::OkStatus();
}

absl::Status EmitAvgPool(const Node& node, EmitContext& c) { return EmitPool(node, c); }

absl::Status EmitAvgPoolGrad(const Node& node, EmitContext& c) {
  const Side dy = OperandSide(node.operand(0), c), dx = ResultSide(node, dy, c);
  AddPool(node, c, ArgsOf(node, dx, dy), dy, dx);
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
