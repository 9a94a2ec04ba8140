// Operators that take values apart and put them together.

#include <algorithm>
#include <limits>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

size_t At(int64_t i) { return static_cast<size_t>(i); }

// x restricted to [start, limit) along one dimension.
Value SliceAlong(Builder& b, Value x, int64_t dim, int64_t start, int64_t limit) {
  if (!x) return x;
  Ints starts(At(x.shape().rank()), 0), limits = x.shape().dims();
  if (start == 0 && limit == limits[At(dim)]) return x;
  starts[At(dim)] = start;
  limits[At(dim)] = limit;
  return b.Slice(x, starts, limits);
}

absl::Status Concat(OnnxNode& n) {
  const std::vector<Value> xs = n.inputs();
  RETURN_IF_ERROR(n.b().status());
  if (!n.has_attr("axis")) return n.Error() << "attribute axis is missing";
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), xs[0].shape().rank()));
  n.SetOutput(0, xs.size() == 1 ? xs[0] : n.b().Concat(xs, axis));
  return absl::OkStatus();
}

absl::Status Slice(OnnxNode& n) {
  Ints starts, ends, axes, steps;
  if (n.opset() < 10) {
    starts = n.Ints("starts");
    ends = n.Ints("ends");
    axes = n.Ints("axes");
  } else {
    for (const auto& [i, list] :
         {std::pair(1, &starts), std::pair(2, &ends), std::pair(3, &axes), std::pair(4, &steps)}) {
      if (!n.has_input(i)) continue;
      ASSIGN_OR_RETURN(*list, n.IntsInput(i));
    }
  }
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  if (axes.empty()) {
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
    return n.Error() << starts.size() << " starts, " << ends.size() << " ends, " << axes.size() << " axes and "
                     << steps.size() << " steps";
  }
  RETURN_IF_ERROR(n.Axes(axes, x.shape().rank()).status());
  Ints start(At(x.shape().rank()), 0), limit = x.shape().dims(), stride(At(x.shape().rank()), 1);
  for (size_t i = 0; i < starts.size(); ++i) {
    const size_t axis = At(axes[i] < 0 ? axes[i] + x.shape().rank() : axes[i]);
    const int64_t extent = limit[axis];
    if (steps[i] < 1) return n.Unsupported() << "step " << steps[i] << " is not supported, expected at least 1";
    const auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + extent : at, 0, extent); };
    start[axis] = clamp(starts[i]);
    limit[axis] = std::max(start[axis], clamp(ends[i]));
    stride[axis] = std::min(steps[i], std::max<int64_t>(extent, 1));
  }
  n.SetOutput(0, n.b().Slice(x, start, limit, stride));
  return absl::OkStatus();
}

absl::Status Split(OnnxNode& n) {
  ASSIGN_OR_RETURN(std::optional<Ints> sizes, n.IntsAttrOrInput("split", 13, 1));
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
  const int64_t extent = x.shape()[axis], parts = n.num_outputs();
  if (n.opset() >= 18 && n.Int("num_outputs", parts) != parts)
    return n.Error() << "attribute num_outputs is not " << parts;
  if (!sizes) {
    const int64_t size = (extent + parts - 1) / std::max<int64_t>(parts, 1);
    sizes.emplace();
    for (int64_t i = 0; i < parts; ++i) sizes->push_back(std::clamp<int64_t>(extent - i * size, 0, size));
  }
  if (static_cast<int64_t>(sizes->size()) != parts)
    return n.Error() << "split " << ListToString(*sizes) << " for " << parts << " outputs";
  int64_t start = 0;
  for (int i = 0; i < n.num_outputs(); ++i) {
    const int64_t size = (*sizes)[At(i)];
    if (size < 0 || size > extent - start)
      return n.Error() << "split " << ListToString(*sizes) << " of extent " << extent;
    n.SetOutput(i, SliceAlong(n.b(), x, axis, start, start + size));
    start += size;
  }
  if (start != extent) return n.Error() << "split " << ListToString(*sizes) << " of extent " << extent;
  return absl::OkStatus();
}

// What Pad says, per dimension of x. Negative amounts remove.
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
  Ints amounts(At(2 * rank), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
    amounts[At(axis)] = pads[i];
    amounts[At(axis + rank)] = pads[i + axes.size()];
  }
  return amounts;
}

absl::Status Pad(OnnxNode& n) {
  const std::string mode = n.String("mode", "constant");
  if (mode != "constant") return n.Unsupported() << "attribute mode is '" << mode << "', expected constant";
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const int64_t rank = x.shape().rank();
  ASSIGN_OR_RETURN(const Ints amounts, PadAmounts(n, rank));
  double value = n.opset() < 11 ? n.Float("value", 0) : 0;
  if (n.has_input(2)) {
    ASSIGN_OR_RETURN(value, n.FloatInput(2));
  }
  Ints low, high, start, limit;
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t before = amounts[At(i)], after = amounts[At(i + rank)];
    if (std::max(before, after) > kMaxElements || std::min(before, after) < -kMaxElements)
      return n.Error() << "pads " << ListToString(amounts) << " are too large";
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
  Value result = padded_shape == x.shape() ? x : n.b().Pad(x, low, high, value);
  if (start != Ints(At(rank), 0) || limit != padded_dims) result = n.b().Slice(result, start, limit);
  n.SetOutput(0, result);
  return absl::OkStatus();
}

// Elements of `data` along `axis` at known positions: slices put together. The usual use is to pick from a shape.
absl::Status Gather(OnnxNode& n) {
  constexpr int64_t kMaxIndices = 64;  // one slice each; a real gather is another op
  ASSIGN_OR_RETURN(const Tensor indices, n.ConstantInput(1));
  if (!IsInteger(indices.dtype())) return n.Error() << "indices " << indices.type() << " are no integers";
  if (indices.num_elements() > kMaxIndices)
    return n.Unsupported() << "more than " << kMaxIndices << " indices: " << indices.type();
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
  const int64_t extent = x.shape()[axis];
  std::vector<Value> picked;
  for (int64_t i = 0; i < indices.num_elements(); ++i) {
    int64_t at = static_cast<int64_t>(indices.At(i));
    if (at < -extent || at >= extent) return n.Error() << "index " << at << " is outside extent " << extent;
    if (at < 0) at += extent;
    picked.push_back(SliceAlong(n.b(), x, axis, at, at + 1));
  }
  RETURN_IF_ERROR(n.b().status());
  Value result;
  if (picked.empty()) result = SliceAlong(n.b(), x, axis, 0, 0);
  else result = picked.size() == 1 ? picked[0] : n.b().Concat(picked, axis);
  // The indices' dimensions take the place of the axis.
  Ints dims = x.shape().dims();
  dims.erase(dims.begin() + axis);
  dims.insert(dims.begin() + axis, indices.shape().dims().begin(), indices.shape().dims().end());
  n.SetOutput(0, n.b().Reshape(result, Shape(dims)));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> SlicingOps() {
  return {
      {"Concat", 4, kNoEnd, 1, kAnyNumber, Concat},
      {"Slice", 1, 9, 1, 1, Slice},
      {"Slice", 10, kNoEnd, 3, 5, Slice},
      {"Split", 2, 12, 1, 1, Split},
      {"Split", 13, kNoEnd, 1, 2, Split},
      {"Pad", 2, 10, 1, 1, Pad},
      {"Pad", 11, 17, 2, 3, Pad},
      {"Pad", 18, kNoEnd, 2, 4, Pad},
      {"Gather", 1, kNoEnd, 2, 2, Gather},
  };
}

}  // namespace lockstep
