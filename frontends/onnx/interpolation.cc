#include "frontends/onnx/interpolation.h"

namespace lockstep {

Value IndexBelow(Builder& b, Value x) { return b.Convert(b.Unary("floor", x), DType::kI64); }

Value ClampToMargin(Builder& b, Value position, int64_t extent, double margin) {
  const Value least = b.SplatLike(-1 - margin, position);
  return b.Min(b.Max(position, least), b.SplatLike(static_cast<double>(extent) + margin, position));
}

Value ElementsAt(Builder& b, Value x, const std::vector<int64_t>& extents, const std::vector<Value>& indices,
                 bool zeros, DType wide) {
  Value flat, inside;
  for (size_t i = 0; i < extents.size(); ++i) {
    const Value index = indices[i];
    if (!index) return index;
    const Value last = b.SplatLike(static_cast<double>(extents[i] - 1), index), zero = b.SplatLike(0, index);
    const Value clipped = b.Min(b.Max(index, zero), last);
    const Value is_inside = b.Compare(clipped, index, "eq");
    inside = inside ? b.Op("and", {inside, is_inside}) : is_inside;
    flat = flat ? b.Add(b.Mul(flat, b.SplatLike(static_cast<double>(extents[i]), flat)), clipped) : clipped;
  }
  const Value found = b.Convert(b.Gather(x, flat, 2, 1), wide);
  if (!found || !zeros) return found;
  return b.Select(b.Broadcast(inside, found.shape(), {0, 2}), found, b.SplatLike(0, found));
}

Value WeightsFor(Builder& b, const std::vector<Value>& weights, int64_t channels) {
  Value product;
  for (const Value& weight : weights) product = product ? b.Mul(product, weight) : weight;
  if (!product) return product;
  return b.Broadcast(product, {product.shape()[0], channels, product.shape()[1]}, {0, 2});
}

Value InterpolatedAt(Builder& b, Value x, const std::vector<int64_t>& extents, const std::vector<Value>& positions,
                     bool zeros) {
  std::vector<Value> before, fraction;
  for (size_t i = 0; i < positions.size(); ++i) {
    const Value position = zeros ? ClampToMargin(b, positions[i], extents[i], 1) : positions[i];
    if (!position) return position;
    before.push_back(IndexBelow(b, position));
    fraction.push_back(b.Sub(position, b.Convert(before.back(), position.dtype())));
  }
  Value sum;
  for (size_t corner = 0; corner < size_t{1} << extents.size(); ++corner) {
    std::vector<Value> indices, weights;
    for (size_t i = 0; i < extents.size(); ++i) {
      const bool is_after = corner >> i & 1;
      indices.push_back(is_after ? b.AddScalar(before[i], 1) : before[i]);
      weights.push_back(is_after ? fraction[i] : b.Sub(b.SplatLike(1, fraction[i]), fraction[i]));
    }
    const Value found = ElementsAt(b, x, extents, indices, zeros, positions[0].dtype());
    if (!found) return found;
    const Value term = b.Mul(found, WeightsFor(b, weights, found.shape()[1]));
    sum = sum ? b.Add(sum, term) : term;
  }
  return sum;
}

}  // namespace lockstep
