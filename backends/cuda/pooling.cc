// Pooling, with kernels/pooling.h. The gradient of max pooling needs the positions of the maxima and computes them
// again: this costs one more read of x, and no memory between the passes.

#include "backends/cuda/kernels/pooling.h"

#include "backends/cuda/emitters.h"
#include "core/op_def.h"

namespace lockstep::cuda {
namespace {

using Ints = std::vector<int64_t>;

// Returns the arguments for a node that pools `x` to `y`, or for its gradient.
PoolArgs ArgsOf(const Node& node, const Shape& x, const Shape& y) {
  PoolArgs args{};
  args.planes = x[0] * x[1];
  for (PoolAxis& axis : args.axes) axis = {1, 1, 1, 1, 0, 1};
  const Ints& sizes = node.attr<Ints>("window");
  const bool dilates = node.op().FindAttribute("dilation") != nullptr;
  for (size_t i = 0; i < sizes.size(); ++i) {
    args.axes[3 - sizes.size() + i] = {x.dims()[i + 2],
                                       y.dims()[i + 2],
                                       sizes[i],
                                       node.attr<Ints>("stride")[i],
                                       node.attr<Ints>("padding_low")[i],
                                       dilates ? node.attr<Ints>("dilation")[i] : 1};
  }
  return args;
}

// Adds one kernel that computes y from x, or dx from dy.
void AddPool(const Node& node, EmitContext& c, PoolArgs given) {
  Kernel kernel;
  kernel.name = "cuda." + node.op_name();
  kernel.run = [given, total = node.type().num_elements(),
                pool =
                    c.KernelOf("pooling", NameFor(node.op_name(), node.type().dtype))](const KernelArgs& args) mutable {
    given.x = args.reads[0];
    given.y = args.writes[0];
    return pool.Run(StreamOf(args), total, given);
  };
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
}

}  // namespace

absl::Status EmitMaxPool(const Node& node, EmitContext& c) {
  AddPool(node, c, ArgsOf(node, node.operand(0).shape(), node.type().shape));
  return absl::OkStatus();
}

// Positions in a plane are stored in 32 bits.
bool SupportsMaxPoolGrad(const Node& node) {
  const Shape& x = node.operand(0).shape();
  int64_t plane = 1;
  for (int64_t i = 2; i < x.rank(); ++i) plane *= x[i];
  return plane < (int64_t{1} << 31);
}

absl::Status EmitMaxPoolGrad(const Node& node, EmitContext& c) {
  const DType dtype = node.type().dtype;
  const TensorType& dy = node.operand(1).type();
  Kernel kernel;
  kernel.name = "cuda.max_pool_grad";
  kernel.scratch_bytes = static_cast<uint64_t>(dy.num_elements()) * sizeof(int32_t);
  kernel.run = [given = ArgsOf(node, node.operand(0).shape(), dy.shape), x_total = node.type().num_elements(),
                y_total = dy.num_elements(), find = c.KernelOf("pooling", NameFor("max_pool", dtype)),
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
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitAvgPool(const Node& node, EmitContext& c) {
  PoolArgs given = ArgsOf(node, node.operand(0).shape(), node.type().shape);
  given.include_padding = node.attr<bool>("include_padding") ? 1 : 0;
  AddPool(node, c, given);
  return absl::OkStatus();
}

absl::Status EmitAvgPoolGrad(const Node& node, EmitContext& c) {
  PoolArgs given = ArgsOf(node, node.type().shape, node.operand(0).shape());
  given.include_padding = node.attr<bool>("include_padding") ? 1 : 0;
  AddPool(node, c, given);
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
