// Pad in all its modes: a constant, or elements of the value itself.

#include <algorithm>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// The amounts of padding: those before each dimension of x, then those after each. Negative amounts remove elements.
absl::StatusOr<Ints> PadAmounts(OnnxNode& n, int64_t rank) {
  Ints pads, axes;
  if (n.opset() < 11) {
    pads = n.Ints("pads");
  } else {
    ASSIGN_OR_RETURN(pads, n.IntsInput(1));
  }
  if (n.has_input(3)) {
    ASSIGN_OR_RETURN(axes, n.IntsInput(3));
  } else {
    for (int64_t i = 0; i < rank; ++i) axes.push_back(i);
  }
  RETURN_IF_ERROR(n.Axes(axes, rank).status());
  if (pads.size() != 2 * axes.size())
    return n.Error() << "pads " << ListToString(pads) << " for " << axes.size() << " axes";
  for (int64_t pad : pads) {
    if (pad > kMaxElements || pad < -kMaxElements)
      return n.Error() << "pads " << ListToString(pads) << " are too large";
  }
  Ints amounts(At(2 * rank), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
    amounts[At(axis)] = pads[i];
    amounts[At(axis + rank)] = pads[i + axes.size()];
  }
  return amounts;
}

// The padding value: one element of x's dtype.
absl::StatusOr<Tensor> PaddingOf(OnnxNode& n, DType dtype) {
  if (n.opset() < 11) return Tensor::Scalar(dtype, n.Float("value", 0));
  if (!n.has_input(2)) return Tensor::Scalar(dtype, 0);
  ASSIGN_OR_RETURN(const Tensor value, n.ConstantOrInitialInput(2));
  if (value.num_elements() != 1 || value.dtype() != dtype)
    return n.Error() << "constant_value is " << value.type() << ", expected one element of " << dtype;
  return value.Reshaped(Shape());
}

// Pads with a value that the op's double attribute may not hold: an integer beyond 2^53. Integers wrap around, so such
// a value is subtracted before and added after.
Value PadWith(Builder& b, Value x, const Tensor& padding, const Ints& low, const Ints& high) {
  const double value = padding.At(0);
  if (IsFloat(padding.dtype()) || Tensor::Scalar(padding.dtype(), value) == padding) return b.Pad(x, low, high, value);
  const Value all = b.Constant(padding);
  const Value moved = b.Pad(b.Sub(x, b.Broadcast(all, x.shape(), {})), low, high);
  return moved ? b.Add(moved, b.Broadcast(all, moved.shape(), {})) : moved;
}

absl::Status ConstantPad(OnnxNode& n, Value x, const Ints& amounts) {
  const int64_t rank = x.shape().rank();
  ASSIGN_OR_RETURN(const Tensor padding, PaddingOf(n, x.dtype()));
  Ints low, high, start, limit;
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t before = amounts[At(i)], after = amounts[At(i + rank)];
    low.push_back(std::max<int64_t>(before, 0));
    high.push_back(std::max<int64_t>(after, 0));
    start.push_back(low.back() - before);
    limit.push_back(x.shape()[i] + low.back() + after);
    if (limit.back() < start.back())
      return n.Error() << "pads " << ListToString(amounts) << " remove more than there is of " << x.type();
  }
  Ints padded_dims;
  for (int64_t i = 0; i < rank; ++i) padded_dims.push_back(x.shape()[i] + low[At(i)] + high[At(i)]);
  ASSIGN_OR_RETURN(const Shape padded_shape, n.CheckedShape(padded_dims));
  Value result = padded_shape == x.shape() ? x : PadWith(n.b(), x, padding, low, high);
  if (start != Ints(At(rank), 0) || limit != padded_dims) result = n.b().Slice(result, start, limit);
  n.SetOutput(0, result);
  return absl::OkStatus();
}

// Maps places of a padded dimension of `extent` to its elements. In mode wrap, elements that negative pads remove are
// not used.
class PaddedLine {
 public:
  PaddedLine(int64_t extent, int64_t before, int64_t after, const std::string& mode)
      : extent_(extent),
        first_(std::max<int64_t>(-before, 0)),
        kept_(extent + std::min<int64_t>(after, 0) - first_),
        mode_(mode) {}

  bool is_empty() const { return mode_ == "wrap" && kept_ <= 0; }  // no place has an element
  // The element at place `i`, which may be before the first element or after the last one.
  int64_t SourceOf(int64_t i) const {
    if (mode_ == "edge") return std::clamp<int64_t>(i, 0, extent_ - 1);
    if (mode_ == "wrap") return first_ + ((i - first_) % kept_ + kept_) % kept_;
    const int64_t period = std::max<int64_t>(2 * (extent_ - 1), 1), at = (i % period + period) % period;
    return at < extent_ ? at : period - at;
  }

 private:
  const int64_t extent_, first_, kept_;
  const std::string& mode_;
};

// x padded with its own elements along `dim`, `before` and `after` many. A run of neighbouring elements becomes one
// slice, a repeated element becomes a broadcast.
absl::StatusOr<Value> PadAlong(OnnxNode& n, Value x, int64_t dim, int64_t before, int64_t after,
                               const std::string& mode) {
  constexpr size_t kMaxPieces = 4096;
  Builder& b = n.b();
  const int64_t extent = x.shape()[dim], end = extent + after;
  if (end < -before) return n.Error() << "pads " << before << " and " << after << " remove more than " << extent;
  if (extent == 0) return n.Error() << "mode " << mode << " has no elements to take from " << x.type();
  const PaddedLine line(extent, before, after, mode);
  if (line.is_empty() && end > -before)
    return n.Error() << "pads " << before << " and " << after << " leave nothing to wrap";
  std::vector<Value> pieces;
  const auto slice = [&](int64_t start, int64_t limit) {
    Ints starts(At(x.shape().rank()), 0), limits = x.shape().dims();
    starts[At(dim)] = start;
    limits[At(dim)] = limit;
    return b.Slice(x, starts, limits);
  };
  for (int64_t i = -before; i < end;) {
    const int64_t first = line.SourceOf(i);
    int64_t count = 1;
    const auto stands = [&](int64_t step) {
      return i + count < end && line.SourceOf(i + count) == first + step * count;
    };
    const int64_t step = stands(0) ? 0 : 1;
    while (stands(step)) ++count;
    if (step == 0 && count > 1) {
      const Value one = b.Reshape(slice(first, first + 1), x.shape().Without({dim}));
      pieces.push_back(b.BroadcastOver(one, x.shape().WithDim(dim, count), {dim}));
    } else {
      pieces.push_back(slice(first, first + count));
    }
    if (pieces.size() > kMaxPieces)
      return n.Unsupported() << "mode " << mode << " with pads " << before << " and " << after
                             << " has too many pieces";
    i += count;
  }
  RETURN_IF_ERROR(b.status());
  if (pieces.empty()) return slice(0, 0);
  return pieces.size() == 1 ? pieces[0] : b.Concat(pieces, dim);
}

absl::Status Pad(OnnxNode& n) {
  const std::string mode = n.String("mode", "constant");
  if (mode != "constant" && mode != "edge" && mode != "reflect" && mode != "wrap") {
    return n.Unsupported() << "attribute mode is '" << mode << "', expected constant, edge, reflect or wrap";
  }
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const int64_t rank = x.shape().rank();
  ASSIGN_OR_RETURN(const Ints amounts, PadAmounts(n, rank));
  if (mode == "constant") return ConstantPad(n, x, amounts);
  if (n.opset() < 11) n.Ignore("value");
  constexpr int64_t kMost = 1 << 24;  // elements added to one dimension
  if (!amounts.empty() && *std::max_element(amounts.begin(), amounts.end()) > kMost)
    return n.Unsupported() << "mode " << mode << " with pads " << ListToString(amounts);
  Ints dims;
  for (int64_t i = 0; i < rank; ++i)
    dims.push_back(x.shape()[i] + std::max<int64_t>(amounts[At(i)] + amounts[At(i + rank)], 0));
  RETURN_IF_ERROR(n.CheckedShape(dims).status());
  Value result = x;
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t before = amounts[At(i)], after = amounts[At(i + rank)];
    if (before == 0 && after == 0) continue;
    ASSIGN_OR_RETURN(result, PadAlong(n, result, i, before, after, mode));
    RETURN_IF_ERROR(n.b().status());
  }
  n.SetOutput(0, result);
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> PaddingOps() {
  return {
      {"Pad", 2, 10, 1, 1, Pad},
      {"Pad", 11, 17, 2, 3, Pad},
      {"Pad", 18, kNoEnd, 2, 4, Pad},
  };
}

}  // namespace lockstep
