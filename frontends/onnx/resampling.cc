#include "frontends/onnx/resampling.h"

#include <algorithm>
#include <map>

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

Value SliceAlong(Builder& b, Value x, int64_t dim, int64_t start, int64_t count, int64_t stride = 1) {
  if (!x || (start == 0 && stride == 1 && count == x.shape()[dim])) return x;
  Ints starts(At(x.shape().rank()), 0), limits = x.shape().dims(), strides(At(x.shape().rank()), 1);
  starts[At(dim)] = start;
  limits[At(dim)] = start + (count - 1) * stride + 1;
  strides[At(dim)] = stride;
  return b.Slice(x, starts, limits, strides);
}

// x with each element along `dim` repeated `times` times.
Value Repeated(Builder& b, Value x, int64_t dim, int64_t times) {
  if (!x || times == 1) return x;
  Ints dims = x.shape().dims(), kept;
  for (int64_t d = 0; d <= x.shape().rank(); ++d) {
    if (d != dim + 1) kept.push_back(d);
  }
  dims.insert(dims.begin() + dim + 1, times);
  const Value repeated = b.Broadcast(x, Shape(dims), kept);
  return b.Reshape(repeated, x.shape().WithDim(dim, x.shape()[dim] * times));
}

Tensor Constants(DType dtype, Shape shape, const std::vector<double>& values) {
  return Tensor::Of<double>(std::move(shape), values).Converted(dtype);
}

// The same rows with indices limited to the range and merged, so that each occurs once.
std::vector<Taps> InRange(const std::vector<Taps>& rows, int64_t extent) {
  std::vector<Taps> result;
  for (const Taps& row : rows) {
    std::map<int64_t, double> merged;
    for (const auto& [index, weight] : row) merged[std::clamp<int64_t>(index, 0, extent - 1)] += weight;
    result.emplace_back(merged.begin(), merged.end());
  }
  return result;
}

// Resamples by a product with a matrix that is mostly zeros. Requires that `dim` is the last dimension.
Value ByMatrix(Builder& b, Value x, const std::vector<Taps>& rows) {
  const int64_t dim = x.shape().rank() - 1, extent = x.shape()[dim], count = static_cast<int64_t>(rows.size());
  std::vector<double> matrix(rows.size() * At(extent), 0.0);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const auto& [index, weight] : rows[i]) matrix[At(index) * rows.size() + i] = weight;
  }
  const Shape flat({x.shape().num_elements() / extent, extent});
  const Value y = b.MatMul(b.Reshape(x, flat), b.Constant(Constants(x.dtype(), {extent, count}, matrix)));
  return b.Reshape(y, x.shape().WithDim(dim, count));
}

// Resamples by as many gathers as a row has taps.
Value ByGathers(Builder& b, Value x, int64_t dim, const std::vector<Taps>& rows) {
  size_t most = 1;
  for (const Taps& row : rows) most = std::max(most, row.size());
  Value sum;
  for (size_t tap = 0; tap < most; ++tap) {
    Ints indices;
    std::vector<double> weights;
    for (const Taps& row : rows) {
      indices.push_back(tap < row.size() ? row[tap].first : row.empty() ? 0 : row.back().first);
      weights.push_back(tap < row.size() ? row[tap].second : 0);
    }
    const Value picked = Selected(b, x, dim, indices);
    if (!picked) return picked;
    const Value scales = b.Constant(Constants(x.dtype(), {static_cast<int64_t>(rows.size())}, weights));
    const Value term = b.Mul(picked, b.BroadcastAlong(scales, picked.shape(), dim));
    sum = sum ? b.Add(sum, term) : term;
  }
  return sum;
}

}  // namespace

Value Selected(Builder& b, Value x, int64_t dim, const Ints& indices) {
  if (!x) return x;
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t extent = x.shape()[dim], step = count > 1 ? indices[1] - indices[0] : 1;
  bool is_slice = count > 0 && step > 0, is_repetition = count > 0 && count % extent == 0;
  for (int64_t i = 0; i < count; ++i) {
    is_slice = is_slice && indices[At(i)] == indices[0] + i * step;
    is_repetition = is_repetition && indices[At(i)] == i / (count / extent);
  }
  if (is_slice) return SliceAlong(b, x, dim, indices[0], count, step);
  if (is_repetition) return Repeated(b, x, dim, count / extent);
  return b.Gather(x, b.Constant(Tensor::Of<int64_t>({count}, indices)), dim);
}

Value Resampled(Builder& b, Value x, int64_t dim, const std::vector<Taps>& rows) {
  // With more rows, the matrix has too many zeros to be efficient.
  constexpr int64_t kMostMatrixRows = 512;
  if (!x) return x;
  const Shape shape = x.shape().WithDim(dim, static_cast<int64_t>(rows.size()));
  if (shape.num_elements() == 0) return b.Splat(0, {x.dtype(), shape});
  const std::vector<Taps> in_range = InRange(rows, x.shape()[dim]);
  if (dim == x.shape().rank() - 1 && x.shape()[dim] <= kMostMatrixRows) return ByMatrix(b, x, in_range);
  return ByGathers(b, x, dim, in_range);
}

}  // namespace lockstep
