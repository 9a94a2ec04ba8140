// Convolution and its two gradients. All three derive from one trilinear form, y[n,o] = sum over c of x[n,c] *
// filter[o,c]: each op computes one of x, filter and y from the other two. They share their checks, loops and placement
// rule, and are each other's gradients.

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"
#include "core/ops/window.h"

namespace lockstep {
namespace {

// --- Inference ---------------------------------------------------------------------------------------------------

// The type of convolution(x, filter), or the error of the constraint that they or the attributes violate.
absl::StatusOr<TensorType> ConvolutionType(const NodeContext& c, const TensorType& x, const TensorType& filter) {
  if (!IsFloat(x.dtype) || x.dtype != filter.dtype) {
    return c.Error("C1") << "x " << x << " and filter " << filter << ", expected one floating-point dtype";
  }
  if (x.shape.rank() < 3 || x.shape.rank() > 5 || filter.shape.rank() != x.shape.rank()) {
    return c.Error("C2") << "x " << x << " and filter " << filter << ", expected equal ranks from 3 to 5";
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> spatial, ops::CheckWindows(c, x.shape, ops::SpatialDims(filter.shape)));
  const int64_t groups = c.attr<int64_t>("groups"), channels = x.shape[1], filters = filter.shape[0];
  if (groups < 1 || channels % groups != 0 || filters % groups != 0) {
    return c.Error("C6") << "groups = " << groups << " does not divide the " << channels << " channels of x " << x
                         << " and the " << filters << " filters of " << filter;
  }
  if (filter.shape[1] != channels / groups) {
    return c.Error("C7") << "dimension 1 of filter " << filter << ", expected " << channels / groups
                         << ": the channels of x " << x << " in each of " << groups << " groups";
  }
  std::vector<int64_t> dims = {x.shape[0], filters};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return TensorType{x.dtype, Shape(std::move(dims))};
}

// The type that the attribute `name` of a gradient op gives to its result.
absl::StatusOr<TensorType> TypeFromAttribute(const InferContext& c, std::string_view name) {
  const auto& dims = c.attr<std::vector<int64_t>>(name);
  for (int64_t dim : dims) {
    if (dim < 0) return c.Error("C9") << name << " " << ListToString(dims) << " has a negative extent";
  }
  return TensorType{c.dtype(0), Shape(dims)};
}

absl::Status InferConvolutionGradient(InferContext& c, const TensorType& x, const TensorType& filter,
                                      const TensorType& result) {
  ASSIGN_OR_RETURN(const TensorType y, ConvolutionType(c, x, filter));
  if (c.operand(1) != y)
    return c.Error("C8") << "dy is " << c.operand(1) << ", expected " << y << ", the type of the convolution's result";
  return c.SetResult(result);
}

absl::Status InferConvolution(InferContext& c) {
  ASSIGN_OR_RETURN(TensorType y, ConvolutionType(c, c.operand(0), c.operand(1)));
  return c.SetResult(std::move(y));
}

absl::Status InferConvolutionGradInput(InferContext& c) {
  ASSIGN_OR_RETURN(const TensorType x, TypeFromAttribute(c, "input_shape"));
  return InferConvolutionGradient(c, x, c.operand(0), x);
}

absl::Status InferConvolutionGradFilter(InferContext& c) {
  ASSIGN_OR_RETURN(const TensorType filter, TypeFromAttribute(c, "filter_shape"));
  const DType dtype = ops::DTypeOfSum(filter.dtype, c.attr<bool>("wide_result"));
  return InferConvolutionGradient(c, c.operand(0), filter, {dtype, filter.shape});
}

// --- Evaluation --------------------------------------------------------------------------------------------------

// The loops of the three evaluations. One image of one group is lowered to a matrix of columns: row (channel, tap) and
// column (output position) hold the element of x under that tap, or zero in the padding. Each evaluation is then a
// matrix product per image and group in f64, the Accumulator of all float types. This makes the interpreter fast enough
// for LeNet.
struct Loops {
  std::array<ops::WindowAxis, 3> axes;
  int64_t batch, groups, channels, filters;    // channels and filters of one group
  int64_t taps = 1, positions = 1, plane = 1;  // elements of one channel of the filter, of y and of x

  Loops(const NodeContext& c, const Shape& x, const Shape& filter, const Shape& y)
      : axes(ops::ThreeAxes(c, x, y, ops::SpatialDims(filter))), batch(x[0]), groups(c.attr<int64_t>("groups")) {
    channels = x[1] / groups;
    filters = filter[0] / groups;
    for (const ops::WindowAxis& axis : axes) {
      taps *= axis.window.size;
      positions *= axis.output;
      plane *= axis.input;
    }
  }
  int64_t rows() const { return channels * taps; }

  // Calls block(x_at, filter_at, y_at) with the offsets of the operands of each image and group.
  template <typename Block>
  void ForEachBlock(Block block) const {
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t index = n * groups + group;
        block(index * channels * plane, group * filters * rows(), index * filters * positions);
      }
    }
  }

  // Calls run(column_at, x_at, count, step) for runs of elements: columns[column_at + i] stands for x[x_at + i * step].
  template <typename Run>
  void ForEachRun(Run run) const {
    const int64_t heights = axes[1].window.size, widths = axes[2].window.size;
    for (int64_t row = 0; row < rows(); ++row) {
      const int64_t tap = row % taps;
      ForEachRunOfTap(row * positions, row / taps * plane, tap / widths / heights, tap / widths % heights, tap % widths,
                      run);
    }
  }

  // The same for the row of columns that begins at `column`, the channel of x that begins at `x`, and tap (i, j, k) of
  // the filter.
  template <typename Run>
  void ForEachRunOfTap(int64_t column, int64_t x, int64_t i, int64_t j, int64_t k, Run& run) const {
    const auto& [depth, height, width] = axes;
    const int64_t begin = width.Begin(k), count = width.End(k) - begin;
    const int64_t x_w = begin * width.window.stride + width.Offset(k);
    for (int64_t d = depth.Begin(i); d < depth.End(i); ++d) {
      for (int64_t h = height.Begin(j); h < height.End(j); ++h) {
        const int64_t x_d = d * depth.window.stride + depth.Offset(i);
        const int64_t x_h = h * height.window.stride + height.Offset(j);
        run(column + (d * height.output + h) * width.output + begin, x + (x_d * height.input + x_h) * width.input + x_w,
            count, width.window.stride);
      }
    }
  }

  void Gather(const double* x, std::vector<double>& columns) const {
    columns.assign(static_cast<size_t>(rows() * positions), 0.0);
    ForEachRun([x, to = columns.data()](int64_t column_at, int64_t x_at, int64_t count, int64_t step) {
      for (int64_t i = 0; i < count; ++i) to[column_at + i] = x[x_at + i * step];
    });
  }
  void Scatter(const std::vector<double>& columns, double* x) const {
    ForEachRun([x, from = columns.data()](int64_t column_at, int64_t x_at, int64_t count, int64_t step) {
      for (int64_t i = 0; i < count; ++i) x[x_at + i * step] += from[column_at + i];
    });
  }
};

// to += factor * from
void AddScaled(double* to, const double* from, double factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

// Four independent sums, so that additions do not wait for each other.
double Dot(const double* a, const double* b, int64_t count) {
  double sums[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

struct F64Operands {
  Tensor a, b, result;
  explicit F64Operands(EvalContext& c)
      : a(c.operand(0).Converted(DType::kF64)),
        b(c.operand(1).Converted(DType::kF64)),
        result({DType::kF64, c.result().shape()}) {}
  const double* a_data() const { return a.data<double>().data(); }
  const double* b_data() const { return b.data<double>().data(); }
};

absl::Status EvalConvolution(EvalContext& c) {
  F64Operands f64(c);
  const double *x = f64.a_data(), *filter = f64.b_data();
  double* y = f64.result.mutable_data<double>().data();
  const Loops loops(c, f64.a.shape(), f64.b.shape(), c.result().shape());
  std::vector<double> columns;
  loops.ForEachBlock([&](int64_t x_at, int64_t filter_at, int64_t y_at) {
    loops.Gather(x + x_at, columns);
    for (int64_t o = 0; o < loops.filters; ++o) {
      for (int64_t k = 0; k < loops.rows(); ++k) {
        AddScaled(y + y_at + o * loops.positions, columns.data() + k * loops.positions,
                  filter[filter_at + o * loops.rows() + k], loops.positions);
      }
    }
  });
  c.result() = f64.result.Converted(c.result().dtype());
  return absl::OkStatus();
}

absl::Status EvalConvolutionGradInput(EvalContext& c) {
  F64Operands f64(c);
  const double *filter = f64.a_data(), *dy = f64.b_data();
  double* dx = f64.result.mutable_data<double>().data();
  const Loops loops(c, c.result().shape(), f64.a.shape(), f64.b.shape());
  std::vector<double> columns;
  loops.ForEachBlock([&](int64_t x_at, int64_t filter_at, int64_t y_at) {
    columns.assign(static_cast<size_t>(loops.rows() * loops.positions), 0.0);
    for (int64_t k = 0; k < loops.rows(); ++k) {
      for (int64_t o = 0; o < loops.filters; ++o) {
        AddScaled(columns.data() + k * loops.positions, dy + y_at + o * loops.positions,
                  filter[filter_at + o * loops.rows() + k], loops.positions);
      }
    }
    loops.Scatter(columns, dx + x_at);
  });
  c.result() = f64.result.Converted(c.result().dtype());
  return absl::OkStatus();
}

absl::Status EvalConvolutionGradFilter(EvalContext& c) {
  F64Operands f64(c);
  const double *x = f64.a_data(), *dy = f64.b_data();
  double* dfilter = f64.result.mutable_data<double>().data();
  const Loops loops(c, f64.a.shape(), c.result().shape(), f64.b.shape());
  std::vector<double> columns;
  loops.ForEachBlock([&](int64_t x_at, int64_t filter_at, int64_t y_at) {
    loops.Gather(x + x_at, columns);
    for (int64_t o = 0; o < loops.filters; ++o) {
      for (int64_t k = 0; k < loops.rows(); ++k) {
        dfilter[filter_at + o * loops.rows() + k] +=
            Dot(dy + y_at + o * loops.positions, columns.data() + k * loops.positions, loops.positions);
      }
    }
  });
  c.result() = f64.result.Converted(c.result().dtype());
  return absl::OkStatus();
}

// --- Gradients ---------------------------------------------------------------------------------------------------

AttributeMap WithShape(const VjpContext& c, std::string_view name, const Shape& shape) {
  AttributeMap attributes = c.attributes();
  attributes.erase("input_shape");
  attributes.erase("filter_shape");
  attributes.erase("wide_result");
  if (!name.empty()) attributes.emplace(name, shape.dims());
  return attributes;
}

Value Convolution(VjpContext& c, Value x, Value filter) {
  return c.b().Op("convolution", {x, filter}, WithShape(c, "", Shape()));
}
Value GradInput(VjpContext& c, Value filter, Value dy, const Shape& x) {
  return c.b().Op("convolution_grad_input", {filter, dy}, WithShape(c, "input_shape", x));
}
Value GradFilter(VjpContext& c, Value x, Value dy, const Shape& filter) {
  return c.b().Op("convolution_grad_filter", {x, dy}, WithShape(c, "filter_shape", filter));
}

void ConvolutionVjp(VjpContext& c) {
  const Value x = c.operand(0), filter = c.operand(1);
  c.Contribute(0, GradInput(c, filter, c.grad(), x.shape()));
  c.Contribute(1, GradFilter(c, x, c.grad(), filter.shape()));
}

void ConvolutionGradInputVjp(VjpContext& c) {
  const Value filter = c.operand(0), dy = c.operand(1);
  c.Contribute(0, GradFilter(c, c.grad(), dy, filter.shape()));
  c.Contribute(1, Convolution(c, c.grad(), filter));
}

void ConvolutionGradFilterVjp(VjpContext& c) {
  const Value x = c.operand(0), dy = c.operand(1), grad = c.b().Convert(c.grad(), x.dtype());
  c.Contribute(0, GradInput(c, grad, dy, x.shape()));
  c.Contribute(1, Convolution(c, x, grad));
}

// --- Placement ---------------------------------------------------------------------------------------------------

// The indices of dimensions 0 and 1 of the form's three tensors: n is the batch, o the output channel, c the input
// channel.
constexpr std::string_view kX = "nc", kFilter = "oc", kY = "no";

// The placement of the value with dimensions `dims` if the form's index `index` is split over the ranks.
Placement PlacementOf(std::string_view dims, char index, Placement if_absent) {
  const size_t at = dims.find(index);
  return at == std::string_view::npos ? if_absent : Placement::Split(static_cast<int64_t>(at));
}

// An index that is split in one operand must be split in the other if that has it. The result is split along it, or is
// a partial sum if the op sums over it. Channels of a grouped convolution and spatial dimensions are never split.
void PlaceTrilinear(PlacementContext& c, std::string_view a, std::string_view b, std::string_view result) {
  if (ops::PlaceLocal(c)) return;
  const bool grouped = c.attr<int64_t>("groups") != 1;
  const auto split_index = [&](size_t i, std::string_view dims) -> char {
    if (!c.operand(i).is_split() || c.operand(i).dim() > 1) return 0;
    const char index = dims[static_cast<size_t>(c.operand(i).dim())];
    return grouped && index != 'n' ? 0 : index;
  };
  const char in_a = split_index(0, a), in_b = split_index(1, b);
  const char index = in_b == 'n' || in_a == 0 ? in_b : in_a;
  const Placement whole = Placement::Replicated();
  if (index != 0) {
    c.Require(0, PlacementOf(a, index, whole));
    c.Require(1, PlacementOf(b, index, whole));
    c.Result(PlacementOf(result, index, Placement::Partial(ReduceKind::kSum)));
  } else if (ops::IsLinearPartial(c.operand(0), c.dtype(0)) && c.operand(1).is_replicated()) {
    c.Result(c.operand(0));
  } else if (ops::IsLinearPartial(c.operand(1), c.dtype(1)) && c.operand(0).is_replicated()) {
    c.Result(c.operand(1));
  } else {
    c.RequireAll(whole);
    c.Result(whole);
  }
}

// Each of the three ops has a multiplication and an addition for each element of y and each tap of one filter. Taps
// over padding are counted too.
double ConvolutionFlops(const TensorType& y, const TensorType& filter) {
  const int64_t filters = std::max<int64_t>(filter.shape[0], 1);
  return 2.0 * static_cast<double>(y.num_elements()) * static_cast<double>(filter.num_elements() / filters);
}

// The attributes and constraints of all three ops.
OpDef WithConvolutionWindow(OpDef def) {
  return def.Attr<std::vector<int64_t>>("stride", "steps of the window, one per spatial dimension")
      .Attr<std::vector<int64_t>>("padding_low", "zeros before x, one per spatial dimension")
      .Attr<std::vector<int64_t>>("padding_high", "zeros after x, one per spatial dimension")
      .Attr<std::vector<int64_t>>("dilation", "distances of the filter's taps, one per spatial dimension")
      .OptionalAttr<int64_t>("groups", 1, "filters and channels are split into this many independent groups")
      .Constraint("C1", "x and filter have the same floating-point dtype")
      .Constraint("C2",
                  "x is [N, C, spatial...] and filter [O, C / groups, spatial...] with one to three spatial dimensions")
      .Constraint("C3", "stride, paddings and dilation have one value per spatial dimension")
      .Constraint("C4",
                  "strides, dilations and the filter's extents are at least 1, paddings at least 0, none above 2^30")
      .Constraint("C5", "the filter, dilated, fits into the padded input")
      .Constraint("C6", "groups is at least 1 and divides C and O")
      .Constraint("C7", "dimension 1 of filter is C / groups");
}

OpDef WithGradientConstraints(OpDef def, const std::string& shape_attr) {
  return WithConvolutionWindow(std::move(def))
      .Constraint("C8", "dy has the type of the convolution's result")
      .Constraint("C9", shape_attr + " has no negative extent");
}

}  // namespace

//===-- convolution ---------------------------------------------------------------------------------------------===//
const OpDef& ConvolutionOp() {
  static const OpDef def =
      WithConvolutionWindow(
          OpDef("convolution")
              .Doc(
                  "Cross-correlation of x with each filter: y[n,o,p] is the sum over channels c and taps "
                  "k of x[n,c,p*stride + k*dilation - padding_low] * filter[o,c,k], x being zero outside. Kernels may "
                  "skip such a zero or multiply by it: an infinite or NaN element of filter adds nothing or NaN there.")
              .Operand("x")
              .Operand("filter"))
          .Trait(kOpaque)
          .Infer(InferConvolution)
          .Eval(EvalConvolution)
          .Flops([](const Node& node) { return ConvolutionFlops(node.type(), node.operand(1).type()); })
          .Precision(PrecisionRule::kLow)
          .Vjp(ConvolutionVjp)
          .Place([](PlacementContext& c) { PlaceTrilinear(c, kX, kFilter, kY); });
  return def;
}

//===-- convolution_grad_input ----------------------------------------------------------------------------------===//
const OpDef& ConvolutionGradInputOp() {
  static const OpDef def =
      WithGradientConstraints(
          OpDef("convolution_grad_input")
              .Doc("The gradient of convolution(x, filter) with respect to x, of shape input_shape, where dy is "
                   "the gradient of its result: a transposed convolution of dy. Zeros surround dy, and are between its "
                   "elements if stride is above 1; kernels may skip them or multiply by them, as in convolution.")
              .Operand("filter")
              .Operand("dy")
              .Attr<std::vector<int64_t>>("input_shape", "the shape of x")
              .PerDim("input_shape"),
          "input_shape")
          .Trait(kOpaque)
          .Infer(InferConvolutionGradInput)
          .Eval(EvalConvolutionGradInput)
          .Flops([](const Node& node) { return ConvolutionFlops(node.operand(1).type(), node.operand(0).type()); })
          .Precision(PrecisionRule::kLow)
          .Vjp(ConvolutionGradInputVjp)
          .Place([](PlacementContext& c) { PlaceTrilinear(c, kFilter, kY, kX); });
  return def;
}

//===-- convolution_grad_filter ---------------------------------------------------------------------------------===//
const OpDef& ConvolutionGradFilterOp() {
  static const OpDef def =
      WithGradientConstraints(
          OpDef("convolution_grad_filter")
              .Doc("The gradient of convolution(x, filter) with respect to filter, of shape filter_shape, where "
                   "dy is the gradient of its result: a sum over the batch. Kernels may skip the zeros of the padding "
                   "or multiply dy by them, as in convolution.")
              .Operand("x")
              .Operand("dy")
              .Attr<std::vector<int64_t>>("filter_shape", "the shape of filter")
              .PerDim("filter_shape")
              .OptionalAttr<bool>("wide_result", false, ops::kWideResult),
          "filter_shape")
          .Trait(kOpaque)
          .Infer(InferConvolutionGradFilter)
          .Eval(EvalConvolutionGradFilter)
          .Flops([](const Node& node) { return ConvolutionFlops(node.operand(1).type(), node.type()); })
          .Precision(PrecisionRule::kLow)
          .Vjp(ConvolutionGradFilterVjp)
          .Place([](PlacementContext& c) { PlaceTrilinear(c, kX, kY, kFilter); });
  return def;
}

}  // namespace lockstep
