// Pooling over windows, and global pooling.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/windows.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

Ints Sum(Ints a, const Ints& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Amounts for all dimensions of a tensor: 0 for the batch and the channels, `spatial` for the others.
Ints WithTwoZeros(const Ints& spatial) {
  Ints all = {0, 0};
  all.insert(all.end(), spatial.begin(), spatial.end());
  return all;
}

int64_t SpanOf(const OnnxWindows& w, size_t i) { return (w.size[i] - 1) * w.dilation[i] + 1; }

// True if the ops max_pool and avg_pool support these windows: each window has to overlap x.
bool ReachX(const OnnxWindows& w) {
  for (size_t i = 0; i < w.size.size(); ++i) {
    if (std::max(w.padding_low[i], w.padding_high[i] + w.overhang[i]) >= SpanOf(w, i)) return false;
  }
  return true;
}

AttributeMap AttributesOf(const OnnxWindows& w) {
  return {{"window", w.size},
          {"stride", w.stride},
          {"padding_low", w.padding_low},
          {"padding_high", Sum(w.padding_high, w.overhang)}};
}

// The elements of each window of x, padded with `padding`: [N, C, elements of a window, positions...].
Value Unfolded(OnnxNode& n, Value x, const OnnxWindows& w, double padding) {
  Builder& b = n.b();
  const Value padded = b.Pad(x, WithTwoZeros(w.padding_low), WithTwoZeros(Sum(w.padding_high, w.overhang)), padding);
  const Value windows = b.Op("windows", {padded},
                             {{"dim", int64_t{2}}, {"window", w.size}, {"stride", w.stride}, {"dilation", w.dilation}});
  if (!windows) return windows;
  const Ints& dims = windows.shape().dims();
  Ints merged = {dims[0], dims[1], 1};
  for (int64_t size : w.size) merged[2] *= size;
  merged.insert(merged.end(), dims.begin() + 2 + static_cast<int64_t>(w.size.size()), dims.end());
  return b.Reshape(windows, Shape(merged));
}

// --- MaxPool ---------------------------------------------------------------------------------------------------------

// The lowest value of a dtype; -infinity for floats.
double LowestOf(DType dtype) {
  if (IsFloat(dtype)) return -std::numeric_limits<double>::infinity();
  return DispatchDType(dtype, [](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) return static_cast<double>(std::numeric_limits<T>::lowest());
    else return 0.0;
  });
}

// For each element of y, which is the maximum of a window, the index of its first occurrence in the window.
Value FirstTap(Builder& b, Value windows, Value y) {
  if (!windows || !y) return Value();
  const Shape& shape = windows.shape();
  const Value largest = b.BroadcastOver(y, shape, {2});
  Value found = b.Compare(windows, largest, "eq");
  if (IsFloat(windows.dtype())) found = b.Op("or", {found, b.Compare(windows, windows, "ne")});
  const TensorType counts{DType::kI64, shape};
  const Value tap = b.Select(found, b.Iota(counts, 2), b.Splat(static_cast<double>(shape[2]), counts));
  return b.Op("reduce_min", {tap}, {{"dims", Ints{2}}});
}

// The indices of the maxima in the flattened x: row-major, or column-major within each plane.
Value FlatIndices(Builder& b, Value tap, const OnnxWindows& w, const Shape& x, bool column_major) {
  if (!tap) return tap;
  const TensorType type = tap.type();
  const size_t rank = w.size.size();
  const auto splat = [&](int64_t value) { return b.Splat(static_cast<double>(value), type); };
  int64_t plane = 1;
  for (size_t i = 0; i < rank; ++i) plane *= x[static_cast<int64_t>(i) + 2];
  Value flat = b.Mul(b.Add(b.Mul(b.Iota(type, 0), splat(x[1])), b.Iota(type, 1)), splat(plane));
  int64_t step = column_major ? plane : 1;
  for (size_t i = rank; i-- > 0;) {
    const int64_t dim = static_cast<int64_t>(i) + 2;
    const Value rest = b.Div(tap, splat(w.size[i])), in_window = b.Sub(tap, b.Mul(rest, splat(w.size[i])));
    tap = rest;
    Value at = b.Sub(b.Add(b.Mul(b.Iota(type, dim), splat(w.stride[i])), b.Mul(in_window, splat(w.dilation[i]))),
                     splat(w.padding_low[i]));
    at = b.Min(b.Max(at, splat(0)), splat(x[dim] - 1));  // a window of -infinity may find its padding first
    if (column_major) step /= x[dim];
    flat = b.Add(flat, b.Mul(at, splat(step)));
    if (!column_major) step *= x[dim];
  }
  return flat;
}

absl::Status MaxPool(OnnxNode& n) {
  Builder& b = n.b();
  const int64_t storage_order = n.Int("storage_order", 0);
  ASSIGN_OR_RETURN(const OnnxWindows w, ReadWindows(n, n.Ints("kernel_shape"), /*has_dilation=*/n.opset() >= 10,
                                                    /*has_ceil_mode=*/n.opset() >= 10));
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  AttributeMap attributes = AttributesOf(w);
  attributes.emplace("dilation", w.dilation);
  const bool by_op = IsFloat(x.dtype()) && ReachX(w);
  Value windows, y;
  if (!by_op || n.has_output(1)) windows = Unfolded(n, x, w, LowestOf(x.dtype()));
  if (by_op) y = b.Op("max_pool", {x}, std::move(attributes));
  else if (windows) y = b.ReduceMax(windows, {2});
  RETURN_IF_ERROR(b.status());
  n.SetOutput(0, y);
  if (!n.has_output(1)) return absl::OkStatus();
  if (storage_order != 0 && storage_order != 1)
    return n.Error() << "attribute storage_order is " << storage_order << ", expected 0 or 1";
  if (x.shape().num_elements() == 0) return n.Unsupported() << "positions of maxima in the empty input " << x.type();
  n.SetOutput(1, FlatIndices(b, FirstTap(b, windows, y), w, x.shape(), storage_order == 1));
  return absl::OkStatus();
}

// --- AveragePool, LpPool ---------------------------------------------------------------------------------------------

// The number of elements of each window that are in [first, last) of each dimension. x begins at 0.
Tensor CountsIn(const OnnxWindows& w, const Shape& y, const Ints& first, const Ints& last) {
  const Shape positions(Ints(y.dims().begin() + 2, y.dims().end()));
  std::vector<std::vector<double>> along(w.size.size());  // one list for each dimension
  for (size_t i = 0; i < along.size(); ++i) {
    for (int64_t position = 0; position < positions.dims()[i]; ++position) {
      const int64_t begin = position * w.stride[i] - w.padding_low[i];
      // The number of the window's elements before `place`.
      const auto before = [&](int64_t place) {
        const int64_t distance = place - begin;
        return distance <= 0 ? 0 : std::min((distance - 1) / w.dilation[i] + 1, w.size[i]);
      };
      along[i].push_back(static_cast<double>(before(last[i]) - before(first[i])));
    }
  }
  Tensor counts(TensorType{DType::kF64, positions});
  const auto out = counts.mutable_data<double>();
  for (size_t at = 0; at < out.size(); ++at) {
    size_t rest = at;
    double count = 1;
    for (size_t i = along.size(); i-- > 0;) {
      count *= along[i][rest % along[i].size()];
      rest /= along[i].size();
    }
    out[at] = count;
  }
  return counts;
}

// The mean of each window, for windows that avg_pool does not support.
absl::StatusOr<Value> UnfoldedAverage(OnnxNode& n, Value x, const OnnxWindows& w, bool include_padding) {
  Builder& b = n.b();
  const Value sum = b.ReduceSum(Unfolded(n, x, w, 0), {2});
  RETURN_IF_ERROR(b.status());
  Ints first(w.size.size(), 0), last(x.shape().dims().begin() + 2, x.shape().dims().end()), spatial;
  for (int64_t i = 2; i < x.shape().rank(); ++i) spatial.push_back(i);
  if (include_padding) {
    for (size_t i = 0; i < first.size(); ++i) first[i] -= w.padding_low[i];
    last = Sum(last, w.padding_high);
  }
  double positions = 1;
  for (size_t i = 2; i < sum.shape().dims().size(); ++i) positions *= static_cast<double>(sum.shape().dims()[i]);
  RETURN_IF_ERROR(n.ReserveTable(positions));
  const Tensor counts = CountsIn(w, sum.shape(), first, last);
  return b.Div(sum, b.Broadcast(b.Constant(counts.Converted(x.dtype())), sum.shape(), spatial));
}

absl::Status AveragePool(OnnxNode& n) {
  Builder& b = n.b();
  bool include_padding = n.Flag("count_include_pad", false);
  ASSIGN_OR_RETURN(OnnxWindows w, ReadWindows(n, n.Ints("kernel_shape"), /*has_dilation=*/n.opset() >= 19,
                                              /*has_ceil_mode=*/n.opset() >= 10));
  const Ints none(w.size.size(), 0);
  Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  if (w.dilation != Ints(w.size.size(), 1) || !ReachX(w)) {
    ASSIGN_OR_RETURN(const Value mean, UnfoldedAverage(n, x, w, include_padding));
    n.SetOutput(0, mean);
    return absl::OkStatus();
  }
  if (include_padding && w.overhang != none) {
    // The padding counts, the overhang does not. So the padding becomes part of x.
    x = b.Pad(x, WithTwoZeros(w.padding_low), WithTwoZeros(w.padding_high));
    w.padding_low = w.padding_high = none;
    include_padding = false;
  }
  AttributeMap attributes = AttributesOf(w);
  attributes.emplace("include_padding", include_padding);
  n.SetOutput(0, b.Op("avg_pool", {x}, std::move(attributes)));
  return absl::OkStatus();
}

// The attribute p, which is a float in the first opset.
double Exponent(OnnxNode& n) { return n.opset() < 2 ? n.Float("p", 2) : static_cast<double>(n.Int("p", 2)); }

// (sum of |x|^p over `dims`)^(1 / p). Where the sum is 0 the root has no derivative, and the gradient is set to 0.
Value LpNorm(Builder& b, Value x, const Ints& dims, double p) {
  if (!x) return x;
  const Value size = b.Unary("abs", x);
  if (p == 1) return b.ReduceSum(size, dims);
  const Value sum = b.ReduceSum(p == 2 ? b.Mul(x, x) : b.Op("pow", {size, b.SplatLike(p, size)}), dims);
  const Value is_zero = b.Compare(sum, b.SplatLike(0, sum), "eq");
  const Value positive = b.Select(is_zero, b.SplatLike(1, sum), sum);
  const Value root = p == 2 ? b.Sqrt(positive) : b.Op("pow", {positive, b.SplatLike(1 / p, positive)});
  return b.Select(is_zero, b.SplatLike(0, sum), root);
}

absl::Status LpPool(OnnxNode& n) {
  const double p = Exponent(n);
  ASSIGN_OR_RETURN(const OnnxWindows w, ReadWindows(n, n.Ints("kernel_shape"), /*has_dilation=*/n.opset() >= 18,
                                                    /*has_ceil_mode=*/n.opset() >= 18));
  if (!(p > 0)) return n.Error() << "attribute p is " << p << ", expected a positive number";
  n.SetOutput(0, LpNorm(n.b(), Unfolded(n, n.input(0), w, 0), {2}, p));
  return absl::OkStatus();
}

// Reduces all dimensions after the first two to extent 1.
template <typename ReduceFn>
absl::Status GlobalPool(OnnxNode& n, ReduceFn reduce) {
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Value x = n.input(0);
  Ints dims;
  Shape kept = x.shape();
  for (int64_t i = 2; i < x.shape().rank(); ++i) {
    dims.push_back(i);
    kept = kept.WithDim(i, 1);
  }
  n.SetOutput(0, n.b().Reshape(reduce(n.b(), x, dims), kept));
  return absl::OkStatus();
}

absl::Status GlobalAveragePool(OnnxNode& n) {
  return GlobalPool(n, [](Builder& b, Value x, const Ints& dims) { return b.ReduceMean(x, dims); });
}

absl::Status GlobalMaxPool(OnnxNode& n) {
  return GlobalPool(n, [](Builder& b, Value x, const Ints& dims) { return b.ReduceMax(x, dims); });
}

absl::Status GlobalLpPool(OnnxNode& n) {
  const double p = Exponent(n);
  if (!(p > 0)) return n.Error() << "attribute p is " << p << ", expected a positive number";
  return GlobalPool(n, [p](Builder& b, Value x, const Ints& dims) { return LpNorm(b, x, dims, p); });
}

}  // namespace

std::vector<OnnxOp> PoolingOps() {
  return {
      {"MaxPool", 1, kNoEnd, 1, 1, MaxPool},
      {"AveragePool", 1, kNoEnd, 1, 1, AveragePool},
      {"LpPool", 1, kNoEnd, 1, 1, LpPool},
      {"GlobalAveragePool", 1, kNoEnd, 1, 1, GlobalAveragePool},
      {"GlobalMaxPool", 1, kNoEnd, 1, 1, GlobalMaxPool},
      {"GlobalLpPool", 1, kNoEnd, 1, 1, GlobalLpPool},
  };
}

}  // namespace lockstep
