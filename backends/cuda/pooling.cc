// Pooling, with kernels/pooling.h. The gradient of max pooling needs the positions of the maxima and computes them
// again: this costs one more read of x, and no memory between the passes. Operands are read in the layouts in which
// they were produced.

#include "backends/cuda/kernels/pooling.h"

#include <functional>
#include <numeric>

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

  int64_t places() const {
    const Shape& shape = value.shape();
    return std::accumulate(shape.dims().begin() + 2, shape.dims().end(), int64_t{1}, std::multiplies<>());
  }
  PoolSteps steps() const {
    const int64_t channels = value.shape()[1];
    if (channels_last) return {channels * places(), 1, channels};
    return {channels * places(), places(), 1};
  }
};

// The layout of an operand is that in which it was produced. A result has the layout that its readers need, and else
// that of the operand; the gradient of max_pool has that of x.
Side OperandSide(Value value, const EmitContext& c) { return {value, c.IsChannelsLast(value)}; }
Side ResultSide(const Node& node, const Side& operand, const EmitContext& c) {
  const Value value = EmitContext::ResultOf(node);
  const int need = c.Need(value);
  return {value, need > 0 || (need == 0 && operand.channels_last && !IsAlsoRowMajor(value.shape()))};
}

// A node that pools `x` to `y`, or its gradient, which has the shape of x.
struct Pool {
  PoolArgs args{};
  int64_t threads;      // one per group of channels and element of a plane of y or of x
  int64_t num_winners;  // with those of lanes beyond the last channel

  uint64_t winner_bytes() const { return static_cast<uint64_t>(num_winners) * (args.are_winners_wide != 0 ? 4 : 1); }
};

bool IsGradient(const Node& node) { return node.Is("max_pool_grad") || node.Is("avg_pool_grad"); }

// If `of_x`, threads are for the elements of x.
Pool PoolOf(const Node& node, const Side& x, const Side& y, bool of_x) {
  const Shape &from = x.value.shape(), &to = y.value.shape();
  Pool pool;
  PoolArgs& args = pool.args;
  args.images = from[0];
  args.channels = from[1];
  args.x_steps = x.steps();
  args.y_steps = y.steps();
  args.is_by_channels = x.channels_last && y.channels_last ? 1 : 0;
  for (PoolAxis& axis : args.axes) axis = {1, 1, 1, 0, 1, Divisor(1), Divisor(1), Divisor(1)};
  const Ints& sizes = node.attr<Ints>("window");
  const bool dilates = node.op().FindAttribute("dilation") != nullptr;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t dilation = dilates ? node.attr<Ints>("dilation")[i] : 1, x_extent = from.dims()[i + 2],
                  y_extent = to.dims()[i + 2];
    args.axes[3 - sizes.size() + i] = {static_cast<int32_t>(x_extent),
                                       static_cast<int32_t>(y_extent),
                                       static_cast<int32_t>(sizes[i]),
                                       static_cast<int32_t>(node.attr<Ints>("padding_low")[i]),
                                       static_cast<int32_t>((sizes[i] - 1) * dilation + 1),
                                       Divisor(node.attr<Ints>("stride")[i]),
                                       Divisor(dilation),
                                       Divisor(of_x ? x_extent : y_extent)};
  }
  const auto lanes = kGroupBytes / static_cast<int64_t>(SizeOf(node.type().dtype));
  const int64_t groups = (args.channels + lanes - 1) / lanes, places = of_x ? x.places() : y.places();
  args.inner = Divisor(args.is_by_channels != 0 ? groups : places);
  args.outer = Divisor(args.is_by_channels != 0 ? places : groups);
  args.winner_steps = {groups * y.places(), args.is_by_channels != 0 ? 1 : y.places(),
                       args.is_by_channels != 0 ? groups : 1};
  if (node.op().FindAttribute("include_padding") != nullptr)
    args.include_padding = node.attr<bool>("include_padding") ? 1 : 0;
  args.are_winners_wide = int64_t{args.axes[0].span} * args.axes[1].span * args.axes[2].span > (1 << 8) ? 1 : 0;
  pool.threads = args.images * groups * places;
  pool.num_winners = args.images * groups * y.places() * lanes;
  return pool;
}

// Adds one kernel that computes y from x, or dx from dy.
void AddPool(const Node& node, EmitContext& c, Pool pool, const Side& operand, const Side& result) {
  Kernel kernel;
  kernel.name = "cuda." + node.op_name();
  kernel.run =
      [pool, run = c.KernelOf("pooling", NameFor(node.op_name(), node.type().dtype))](const KernelArgs& args) mutable {
        pool.args.x = args.reads[0];
        pool.args.y = args.writes[0];
        return run.Run(StreamOf(args), pool.threads, pool.args);
      };
  const int read = c.ReadAs(node, operand.value, operand.channels_last);
  c.Add(node, std::move(kernel), {read}, {c.WriteAs(result.value, result.channels_last)});
}

absl::Status EmitPool(const Node& node, EmitContext& c) {
  const Side x = OperandSide(node.operand(0), c), y = ResultSide(node, x, c);
  AddPool(node, c, PoolOf(node, x, y, /*of_x=*/false), x, y);
  return absl::OkStatus();
}

}  // namespace

// Kernels count the elements of a plane and the taps of a window in 31 bits.
bool SupportsPool(const Node& node) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  const Shape& x = IsGradient(node) ? node.type().shape : node.operand(0).shape();
  const Shape& y = IsGradient(node) ? node.operands().back().shape() : node.type().shape;
  const bool dilates = node.op().FindAttribute("dilation") != nullptr;
  int64_t x_places = 1, y_places = 1, span = 1;
  const auto multiply = [](int64_t& product, int64_t by) { product = product < kLimit ? product * by : product; };
  for (size_t i = 0; i < node.attr<Ints>("window").size(); ++i) {
    const int64_t extent = x.dims()[i + 2];
    multiply(x_places, extent);
    multiply(y_places, y.dims()[i + 2]);
    multiply(span, (node.attr<Ints>("window")[i] - 1) * (dilates ? node.attr<Ints>("dilation")[i] : 1) + 1);
    if (extent + node.attr<Ints>("padding_low")[i] + node.attr<Ints>("padding_high")[i] >= kLimit) return false;
  }
  return x.dims()[0] < kLimit && x.dims()[1] < kLimit && x_places < kLimit && y_places < kLimit && span < kLimit;
}

absl::Status EmitMaxPool(const Node& node, EmitContext& c) { return EmitPool(node, c); }

absl::Status EmitMaxPoolGrad(const Node& node, EmitContext& c) {
  const DType dtype = node.type().dtype;
  const Side x = OperandSide(node.operand(0), c), dy = OperandSide(node.operand(1), c);
  Pool search = PoolOf(node, x, dy, /*of_x=*/false), sum = PoolOf(node, x, dy, /*of_x=*/true);
  Kernel kernel;
  kernel.name = "cuda.max_pool_grad";
  kernel.scratch_bytes = search.winner_bytes();
  kernel.run = [search, sum, find = c.KernelOf("pooling", NameFor("max_pool", dtype)),
                add = c.KernelOf("pooling", NameFor("max_pool_grad", dtype))](const KernelArgs& args) mutable {
    CudaStream& stream = StreamOf(args);
    search.args.winners = sum.args.winners = args.scratch;
    search.args.x = args.reads[0];
    RETURN_IF_ERROR(find.Run(stream, search.threads, search.args));
    sum.args.x = args.reads[1];
    sum.args.y = args.writes[0];
    return add.Run(stream, sum.threads, sum.args);
  };
  std::vector<int> reads = {c.ReadAs(node, x.value, x.channels_last), c.ReadAs(node, dy.value, dy.channels_last)};
  c.Add(node, std::move(kernel), std::move(reads), {c.WriteAs(EmitContext::ResultOf(node), x.channels_last)});
  return absl::OkStatus();
}

absl::Status EmitAvgPool(const Node& node, EmitContext& c) { return EmitPool(node, c); }

absl::Status EmitAvgPoolGrad(const Node& node, EmitContext& c) {
  const Side dy = OperandSide(node.operand(0), c), dx = ResultSide(node, dy, c);
  AddPool(node, c, PoolOf(node, dx, dy, /*of_x=*/true), dy, dx);
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
