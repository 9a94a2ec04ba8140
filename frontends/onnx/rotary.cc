// Rotary position embedding: pairs of elements of each head are turned by angles that grow with the position.

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Every `stride`th element of the last dimension of x, from `start` on and below `limit`.
Value LastDim(Builder& b, Value x, int64_t start, int64_t limit, int64_t stride) {
  const size_t rank = static_cast<size_t>(x.shape().rank());
  Ints starts(rank, 0), limits = x.shape().dims(), strides(rank, 1);
  starts.back() = start;
  limits.back() = limit;
  strides.back() = stride;
  return b.Slice(x, starts, limits, strides);
}

// The cosines or sines of each token, [batch, sequence, pairs], from input i. If position_ids are given, input i is a
// table [positions, pairs].
absl::StatusOr<Value> Angles(OnnxNode& n, int i, const Shape& expected) {
  Value angles = n.input(i);
  RETURN_IF_ERROR(n.b().status());
  if (n.has_input(3)) {
    const Value positions = n.input(3);
    RETURN_IF_ERROR(n.b().status());
    const bool fits = positions.shape() == Shape({expected[0], expected[1]}) && IsInteger(positions.dtype());
    if (!fits || angles.shape().rank() != 2 || angles.shape()[1] != expected[2]) {
      return n.Error() << "input " << i << " is " << angles.type() << " with position_ids " << positions.type()
                       << ", expected [positions, " << expected[2] << "] and a position for each token";
    }
    // Negative positions must not count from the end.
    const Value wide = n.b().Convert(positions, DType::kI64);
    const Value is_negative = n.b().Compare(wide, n.b().SplatLike(0, wide), "lt");
    const Value count = n.b().SplatLike(static_cast<double>(angles.shape()[0]), wide);
    angles = n.b().Gather(angles, n.b().Select(is_negative, count, wide), 0);
    RETURN_IF_ERROR(n.b().status());
  }
  if (angles.shape() == expected) return angles;
  return n.Error() << "input " << i << " is " << angles.type() << ", expected shape " << expected;
}

absl::Status RotaryEmbedding(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  Value x = n.input(0);
  const Shape given = x.shape();
  const int64_t heads = n.Int("num_heads", 0);
  const bool heads_first = given.rank() == 4;  // [batch, heads, sequence, size], else [batch, sequence, heads * size]
  if (!heads_first) {
    if (given.rank() != 3 || heads < 1 || given[2] % heads != 0)
      return n.Error() << "input is " << x.type() << " with num_heads = " << heads
                       << ", expected rank 4, or rank 3 and a divisor of the last dimension";
    x = b.Reshape(x, Shape({given[0], given[1], heads, given[2] / heads}));
  }
  RETURN_IF_ERROR(b.status());
  const int64_t size = x.shape()[3];
  const int64_t rotated = n.Int("rotary_embedding_dim", 0) == 0 ? size : n.Int("rotary_embedding_dim", 0);
  if (rotated < 2 || rotated % 2 != 0 || rotated > size)
    return n.Error() << "rotates " << rotated << " of " << size << " elements, expected an even number of them";
  const int64_t pairs = rotated / 2;
  const bool interleaved = n.Flag("interleaved", false);
  const Shape half_shape = x.shape().WithDim(3, pairs);
  const Shape angles_shape({given[0], x.shape()[heads_first ? 2 : 1], pairs});
  ASSIGN_OR_RETURN(Value cos, Angles(n, 1, angles_shape));
  ASSIGN_OR_RETURN(Value sin, Angles(n, 2, angles_shape));
  const Ints over{heads_first ? 1 : 2};
  cos = b.BroadcastOver(cos, half_shape, over);
  sin = b.BroadcastOver(sin, half_shape, over);
  const Value first = interleaved ? LastDim(b, x, 0, rotated, 2) : LastDim(b, x, 0, pairs, 1);
  const Value second = interleaved ? LastDim(b, x, 1, rotated, 2) : LastDim(b, x, pairs, rotated, 1);
  const Value real = b.Sub(b.Mul(cos, first), b.Mul(sin, second));
  const Value imaginary = b.Add(b.Mul(sin, first), b.Mul(cos, second));
  RETURN_IF_ERROR(b.status());
  std::vector<Value> parts{real, imaginary};
  if (interleaved) {
    Ints dims = half_shape.dims();
    dims.push_back(1);
    const Value both = b.Concat({b.Reshape(real, Shape(dims)), b.Reshape(imaginary, Shape(dims))}, 4);
    parts = {b.Reshape(both, x.shape().WithDim(3, rotated))};
  }
  if (rotated < size) parts.push_back(LastDim(b, x, rotated, size, 1));
  const Value y = parts.size() == 1 ? parts[0] : b.Concat(parts, 3);
  n.SetOutput(0, b.Reshape(y, given));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> RotaryOps() { return {{"RotaryEmbedding", 23, kNoEnd, 3, 4, RotaryEmbedding}}; }

}  // namespace lockstep
