// Operators that slice, split and concatenate values.

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// x restricted to [start, limit) along one dimension.
Value SliceRange(Builder& b, Value x, int64_t dim, int64_t start, int64_t limit) {
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

// A slice along one axis: the elements start, start + stride, ... below limit. They are reversed later if ONNX's step
// is negative.
struct SliceAxis {
  int64_t start, limit, stride;
};

SliceAxis SliceAxisOf(int64_t start, int64_t end, int64_t step, int64_t extent) {
  // Steps larger than the axis are all equivalent, and limiting them avoids negating the lowest integer.
  const int64_t most = std::max<int64_t>(extent, 1);
  const auto from_front = [&](int64_t at) { return at < 0 ? at + extent : at; };
  if (step > 0) {
    const int64_t first = std::clamp<int64_t>(from_front(start), 0, extent);
    return {first, std::max(first, std::clamp<int64_t>(from_front(end), 0, extent)), std::min(step, most)};
  }
  if (extent == 0) return {0, 0, 1};
  const int64_t stride = -std::max(step, -most);
  const int64_t first = std::clamp<int64_t>(from_front(start), 0, extent - 1);  // the first element, going backwards
  const int64_t before = std::clamp<int64_t>(from_front(end), -1, extent - 1);
  if (first <= before) return {0, 0, 1};
  return {first - (first - before - 1) / stride * stride, first + 1, stride};
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
  Ints start(At(x.shape().rank()), 0), limit = x.shape().dims(), stride(At(x.shape().rank()), 1), reversed;
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + x.shape().rank() : axes[i];
    if (steps[i] == 0) return n.Error() << "step 0 of axis " << axis;
    const SliceAxis slice = SliceAxisOf(starts[i], ends[i], steps[i], x.shape()[axis]);
    start[At(axis)] = slice.start;
    limit[At(axis)] = slice.limit;
    stride[At(axis)] = slice.stride;
    if (steps[i] < 0) reversed.push_back(axis);
  }
  std::sort(reversed.begin(), reversed.end());
  n.SetOutput(0, n.b().Reverse(n.b().Slice(x, start, limit, stride), reversed));
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
    if (n.opset() < 18 && extent != size * parts)
      return n.Error() << "extent " << extent << " in " << parts << " equal parts, and no sizes are given";
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
    n.SetOutput(i, SliceRange(n.b(), x, axis, start, start + size));
    start += size;
  }
  if (start != extent) return n.Error() << "split " << ListToString(*sizes) << " of extent " << extent;
  return absl::OkStatus();
}

absl::Status ReverseSequence(OnnxNode& n) {
  Builder& b = n.b();
  const int64_t batch_axis = n.Int("batch_axis", 1), time_axis = n.Int("time_axis", 0);
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  if (!IsInteger(n.type(1).dtype)) return n.Error() << "sequence_lens are " << n.type(1) << ", expected integers";
  if (std::min(batch_axis, time_axis) != 0 || std::max(batch_axis, time_axis) != 1)
    return n.Error() << "batch_axis is " << batch_axis << " and time_axis " << time_axis
                     << ", expected 0 and 1 or 1 and 0";
  Ints swapped(At(n.shape(0).rank()));
  std::iota(swapped.begin(), swapped.end(), int64_t{0});
  std::swap(swapped[0], swapped[1]);
  const bool swaps = batch_axis == 1;
  const Value x = swaps ? b.Transpose(n.input(0), swapped) : n.input(0);
  RETURN_IF_ERROR(b.status());
  const int64_t batch = x.shape()[0], time = x.shape()[1];
  if (n.shape(1) != Shape({batch})) return n.Error() << "sequence_lens are " << n.type(1) << " for " << n.type(0);
  const TensorType type{DType::kI64, {batch, time}};
  const Value length = b.BroadcastAlong(b.Convert(n.input(1), DType::kI64), type.shape, 0), step = b.Iota(type, 1);
  const Value mirrored = b.Sub(b.Sub(length, b.SplatLike(1, length)), step);
  // A negative length becomes an index out of range, so that it is an error like a length that is too large.
  const Value kept =
      b.Select(b.Compare(length, b.SplatLike(0, length), "lt"), b.SplatLike(static_cast<double>(time), length), step);
  const Value indices = b.Select(b.Compare(step, length, "lt"), mirrored, kept);
  const Value result = b.Gather(x, indices, 1, 1);
  n.SetOutput(0, swaps ? b.Transpose(result, swapped) : result);
  return absl::OkStatus();
}

absl::Status Compress(OnnxNode& n) {
  Builder& b = n.b();
  Value x = n.input(0);
  ASSIGN_OR_RETURN(const Tensor condition, n.ConstantInput(1));  // it decides the extent of the result
  RETURN_IF_ERROR(b.status());
  int64_t axis = 0;
  if (n.has_attr("axis")) {
    ASSIGN_OR_RETURN(axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
  } else {
    x = b.Reshape(x, Shape({x.type().num_elements()}));
  }
  RETURN_IF_ERROR(b.status());
  if (condition.dtype() != DType::kBool || condition.shape().rank() != 1 || condition.shape()[0] > x.shape()[axis])
    return n.Error() << "condition is " << condition.type() << ", expected bool of rank 1, no longer than axis " << axis
                     << " of " << x.type();
  Ints kept;
  for (int64_t i = 0; i < condition.num_elements(); ++i) {
    if (condition.At(i) != 0) kept.push_back(i);
  }
  const Value indices = b.Constant(Tensor::Of<int64_t>({static_cast<int64_t>(kept.size())}, kept));
  n.SetOutput(0, b.Gather(x, indices, axis));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> SlicingOps() {
  return {
      {"Concat", 4, kNoEnd, 1, kAnyNumber, Concat}, {"Slice", 1, 9, 1, 1, Slice},
      {"Slice", 10, kNoEnd, 3, 5, Slice},           {"Split", 2, 12, 1, 1, Split},
      {"Split", 13, kNoEnd, 1, 2, Split},           {"ReverseSequence", 10, kNoEnd, 2, 2, ReverseSequence},
      {"Compress", 9, kNoEnd, 2, 2, Compress},
  };
}

}  // namespace lockstep
