// Pooling of N,C,spatial values.

#include <cmath>
#include <limits>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"
#include "core/ops/window.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// --- Inference ---------------------------------------------------------------------------------------------------

// The type of the pooled x, or the error of the constraint that it or the attributes violate.
absl::StatusOr<TensorType> PooledType(const NodeContext& c, const TensorType& x) {
  if (!IsFloat(x.dtype)) return c.Error("C1") << "x is " << x << ", expected a floating-point dtype";
  if (x.shape.rank() < 3 || x.shape.rank() > 5) return c.Error("C2") << "rank of x " << x << ", expected 3 to 5";
  const Ints& sizes = c.attr<Ints>("window");
  ASSIGN_OR_RETURN(const Ints spatial, ops::CheckWindows(c, x.shape, sizes));
  for (const ops::Window& window : ops::WindowsOf(c, sizes)) {
    if (std::max(window.padding_low, window.padding_high) >= window.span()) {
      return c.Error("C6") << "paddings " << window.padding_low << " and " << window.padding_high
                           << " leave windows outside x: a window spans " << window.span();
    }
  }
  Ints dims = {x.shape[0], x.shape[1]};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return TensorType{x.dtype, Shape(std::move(dims))};
}

absl::Status InferPool(InferContext& c) {
  ASSIGN_OR_RETURN(TensorType y, PooledType(c, c.operand(0)));
  return c.SetResult(std::move(y));
}

absl::Status InferPoolGradient(InferContext& c, const TensorType& x, const TensorType& dy) {
  ASSIGN_OR_RETURN(const TensorType y, PooledType(c, x));
  if (dy != y) return c.Error("C7") << "dy is " << dy << ", expected " << y << ", the type of the pooling's result";
  return c.SetResult(x);
}

absl::Status InferMaxPoolGrad(InferContext& c) { return InferPoolGradient(c, c.operand(0), c.operand(1)); }

absl::Status InferAvgPoolGrad(InferContext& c) {
  const Ints& dims = c.attr<Ints>("input_shape");
  for (int64_t dim : dims) {
    if (dim < 0) return c.Error("C8") << "input_shape " << ListToString(dims) << " has a negative extent";
  }
  return InferPoolGradient(c, TensorType{c.dtype(0), Shape(dims)}, c.operand(0));
}

// --- Evaluation --------------------------------------------------------------------------------------------------

// Calls tap(x_at) for each element of one plane of x that the window at position (d, h, w) covers, in window order.
template <typename Tap>
void ForEachTap(const std::array<ops::WindowAxis, 3>& axes, int64_t d, int64_t h, int64_t w, Tap tap) {
  const auto& [depth, height, width] = axes;
  for (int64_t i = 0; i < depth.window.size; ++i) {
    const int64_t x_d = d * depth.window.stride + depth.Offset(i);
    if (x_d < 0 || x_d >= depth.input) continue;
    for (int64_t j = 0; j < height.window.size; ++j) {
      const int64_t x_h = h * height.window.stride + height.Offset(j);
      if (x_h < 0 || x_h >= height.input) continue;
      for (int64_t k = 0; k < width.window.size; ++k) {
        const int64_t x_w = w * width.window.stride + width.Offset(k);
        if (x_w >= 0 && x_w < width.input) tap((x_d * height.input + x_h) * width.input + x_w);
      }
    }
  }
}

// Calls window(x_plane, y_at, d, h, w) for each window, in row-major order of y. x_plane is the offset of x's plane.
template <typename Window>
void ForEachWindow(const std::array<ops::WindowAxis, 3>& axes, const Shape& x, Window window) {
  const int64_t plane = axes[0].input * axes[1].input * axes[2].input;
  int64_t y_at = 0;
  for (int64_t i = 0; i < x[0] * x[1]; ++i) {
    for (int64_t d = 0; d < axes[0].output; ++d) {
      for (int64_t h = 0; h < axes[1].output; ++h) {
        for (int64_t w = 0; w < axes[2].output; ++w) window(i * plane, y_at++, d, h, w);
      }
    }
  }
}

// The position in the plane `x` of the first maximum of a window; -1 if the window covers no element. A NaN counts as
// the maximum, so that it is propagated.
int64_t FirstMaximum(const std::array<ops::WindowAxis, 3>& axes, const double* x, int64_t d, int64_t h, int64_t w) {
  int64_t best = -1;
  ForEachTap(axes, d, h, w, [&](int64_t at) {
    if (best < 0 || (!std::isnan(x[best]) && !(x[at] <= x[best]))) best = at;
  });
  return best;
}

absl::Status EvalMaxPool(EvalContext& c) {
  const Tensor x = c.operand(0).Converted(DType::kF64);
  Tensor y({DType::kF64, c.result().shape()});
  const auto axes = ops::ThreeAxes(c, x.shape(), y.shape(), c.attr<Ints>("window"));
  const double* from = x.data<double>().data();
  double* to = y.mutable_data<double>().data();
  ForEachWindow(axes, x.shape(), [&](int64_t x_plane, int64_t y_at, int64_t d, int64_t h, int64_t w) {
    const int64_t best = FirstMaximum(axes, from + x_plane, d, h, w);
    to[y_at] = best < 0 ? -std::numeric_limits<double>::infinity() : from[x_plane + best];
  });
  c.result() = y.Converted(c.result().dtype());
  return absl::OkStatus();
}

absl::Status EvalMaxPoolGrad(EvalContext& c) {
  const Tensor x = c.operand(0).Converted(DType::kF64), dy = c.operand(1).Converted(DType::kF64);
  Tensor dx({DType::kF64, x.shape()});
  const auto axes = ops::ThreeAxes(c, x.shape(), dy.shape(), c.attr<Ints>("window"));
  const double *from = x.data<double>().data(), *gradient = dy.data<double>().data();
  double* to = dx.mutable_data<double>().data();
  ForEachWindow(axes, x.shape(), [&](int64_t x_plane, int64_t y_at, int64_t d, int64_t h, int64_t w) {
    const int64_t best = FirstMaximum(axes, from + x_plane, d, h, w);
    if (best >= 0) to[x_plane + best] += gradient[y_at];
  });
  c.result() = dx.Converted(c.result().dtype());
  return absl::OkStatus();
}

// The divisor of an average: the number of all taps, or of those on x.
template <typename Axes>
double Divisor(const NodeContext& c, const Axes& axes, int64_t d, int64_t h, int64_t w) {
  if (c.attr<bool>("include_padding")) {
    return static_cast<double>(axes[0].window.size) * static_cast<double>(axes[1].window.size * axes[2].window.size);
  }
  double count = 0;
  ForEachTap(axes, d, h, w, [&](int64_t) { ++count; });
  return count;
}

absl::Status EvalAvgPool(EvalContext& c) {
  const Tensor x = c.operand(0).Converted(DType::kF64);
  Tensor y({DType::kF64, c.result().shape()});
  const auto axes = ops::ThreeAxes(c, x.shape(), y.shape(), c.attr<Ints>("window"));
  const double* from = x.data<double>().data();
  double* to = y.mutable_data<double>().data();
  ForEachWindow(axes, x.shape(), [&](int64_t x_plane, int64_t y_at, int64_t d, int64_t h, int64_t w) {
    double sum = 0;
    ForEachTap(axes, d, h, w, [&](int64_t at) { sum += from[x_plane + at]; });
    to[y_at] = sum / Divisor(c, axes, d, h, w);
  });
  c.result() = y.Converted(c.result().dtype());
  return absl::OkStatus();
}

absl::Status EvalAvgPoolGrad(EvalContext& c) {
  const Tensor dy = c.operand(0).Converted(DType::kF64);
  Tensor dx({DType::kF64, c.result().shape()});
  const auto axes = ops::ThreeAxes(c, dx.shape(), dy.shape(), c.attr<Ints>("window"));
  const double* gradient = dy.data<double>().data();
  double* to = dx.mutable_data<double>().data();
  ForEachWindow(axes, dx.shape(), [&](int64_t x_plane, int64_t y_at, int64_t d, int64_t h, int64_t w) {
    const double share = gradient[y_at] / Divisor(c, axes, d, h, w);
    ForEachTap(axes, d, h, w, [&](int64_t at) { to[x_plane + at] += share; });
  });
  c.result() = dx.Converted(c.result().dtype());
  return absl::OkStatus();
}

// --- Gradients ---------------------------------------------------------------------------------------------------

void MaxPoolVjp(VjpContext& c) { c.Contribute(0, c.b().Op("max_pool_grad", {c.operand(0), c.grad()}, c.attributes())); }

void AvgPoolVjp(VjpContext& c) {
  AttributeMap attributes = c.attributes();
  attributes.emplace("input_shape", c.operand(0).shape().dims());
  c.Contribute(0, c.b().Op("avg_pool_grad", {c.grad()}, std::move(attributes)));
}

void AvgPoolGradVjp(VjpContext& c) {
  AttributeMap attributes = c.attributes();
  attributes.erase("input_shape");
  c.Contribute(0, c.b().Op("avg_pool", {c.grad()}, std::move(attributes)));
}

// --- Placement ---------------------------------------------------------------------------------------------------

// Batch and channels are independent of each other; windows run over the other dimensions.
void PlacePool(PlacementContext& c) {
  ops::PlaceIndependentRows(c, [](int64_t dim) { return dim < 2; });
}

// An average is also linear, so partial sums stay partial.
void PlaceAvgPool(PlacementContext& c) {
  if (ops::IsLinearPartial(c.operand(0), c.dtype(0))) c.Result(c.operand(0));
  else PlacePool(c);
}

// One operation for each tap of each window.
double PoolFlops(const Node& node, const TensorType& pooled) {
  double taps = 1;
  for (int64_t extent : node.attr<Ints>("window")) taps *= static_cast<double>(extent);
  return taps * static_cast<double>(pooled.num_elements());
}

double PoolFlopsOfResult(const Node& node) { return PoolFlops(node, node.type()); }
double PoolFlopsOfGradient(const Node& node) { return PoolFlops(node, node.operands().back().type()); }

// The attributes and constraints of all four ops. Only the max_pool ops add a dilation.
OpDef WithPoolWindow(OpDef def) {
  return def.Attr<Ints>("window", "extents of the window, one per spatial dimension")
      .Attr<Ints>("stride", "steps of the window, one per spatial dimension")
      .Attr<Ints>("padding_low", "padding before x, one per spatial dimension")
      .Attr<Ints>("padding_high", "padding after x, one per spatial dimension")
      .Constraint("C1", "x has a floating-point dtype")
      .Constraint("C2", "x is [N, C, spatial...] with one to three spatial dimensions")
      .Constraint("C3", "window, stride, paddings and dilation have one value per spatial dimension")
      .Constraint("C4", "windows, strides and dilations are at least 1, paddings at least 0, none above 2^30")
      .Constraint("C5", "the window, dilated, fits into the padded input")
      .Constraint("C6", "paddings are less than what the window spans");
}

OpDef WithDilation(OpDef def) {
  return def.Attr<Ints>("dilation", "distances of the window's taps, one per spatial dimension");
}

OpDef WithDivisor(OpDef def) {
  return def.Attr<bool>("include_padding", "divide by all taps of the window rather than by those on x");
}

}  // namespace

//===-- max_pool -------------------------------------------------------------------------------------------------===//
const OpDef& MaxPoolOp() {
  static const OpDef def = WithDilation(WithPoolWindow(OpDef("max_pool").Operand("x")))
                               .Doc("The maximum of x under each position of a sliding window, padding being -inf.")
                               .Trait(kOpaque)
                               .Infer(InferPool)
                               .Eval(EvalMaxPool)
                               .Flops(PoolFlopsOfResult)
                               .Precision(PrecisionRule::kFollows)
                               .Vjp(MaxPoolVjp)
                               .Place(PlacePool);
  return def;
}

//===-- max_pool_grad --------------------------------------------------------------------------------------------===//
const OpDef& MaxPoolGradOp() {
  static const OpDef def =
      WithDilation(WithPoolWindow(OpDef("max_pool_grad").Operand("x").Operand("dy")))
          .Doc(
              "The gradient of max_pool(x), where dy is the gradient of its result. It is added at the first maximum "
              "of each window, in row-major order.")
          .Constraint("C7", "dy has the type of the pooling's result")
          .Trait(kOpaque)
          .Infer(InferMaxPoolGrad)
          .Eval(EvalMaxPoolGrad)
          .Flops(PoolFlopsOfGradient)
          .Precision(PrecisionRule::kFollows)
          .NoGradient("second derivatives of max_pool need a gather at the maxima, which is not an op")
          .Place(PlacePool);
  return def;
}

//===-- avg_pool -------------------------------------------------------------------------------------------------===//
const OpDef& AvgPoolOp() {
  static const OpDef def = WithDivisor(WithPoolWindow(OpDef("avg_pool").Operand("x")))
                               .Doc("The mean of x under each position of a sliding window, padding being zero.")
                               .Trait(kOpaque)
                               .Infer(InferPool)
                               .Eval(EvalAvgPool)
                               .Flops(PoolFlopsOfResult)
                               .Precision(PrecisionRule::kFollows)
                               .Vjp(AvgPoolVjp)
                               .Place(PlaceAvgPool);
  return def;
}

//===-- avg_pool_grad --------------------------------------------------------------------------------------------===//
const OpDef& AvgPoolGradOp() {
  static const OpDef def = WithDivisor(WithPoolWindow(OpDef("avg_pool_grad").Operand("dy")))
                               .Doc(
                                   "The gradient of avg_pool(x), where x has the shape input_shape and dy is the "
                                   "gradient of its result. Each window distributes its gradient evenly.")
                               .Attr<Ints>("input_shape", "the shape of x")
                               .PerDim("input_shape")
                               .Constraint("C7", "dy has the type of the pooling's result")
                               .Constraint("C8", "input_shape has no negative extent")
                               .Trait(kOpaque)
                               .Infer(InferAvgPoolGrad)
                               .Eval(EvalAvgPoolGrad)
                               .Flops(PoolFlopsOfGradient)
                               .Precision(PrecisionRule::kFollows)
                               .Vjp(AvgPoolGradVjp)
                               .Place(PlaceAvgPool);
  return def;
}

}  // namespace lockstep
