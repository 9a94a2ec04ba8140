// The common parts of the attention ops: the layout of their operands, their reference meanings, decompositions and
// placement rules. For the authors of op blocks and of kernels.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/graph.h"
#include "core/op_def.h"

namespace lockstep::ops {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Positions of the operands of attention, attention_grad and attention_mask_grad. The first three are q, k and v.
struct AttentionOperands {
  size_t log_sum_exp = 0, dy = 0, delta = 0;  // only of the gradients
  size_t mask;                                // the last operand, if the node has a mask
};
inline constexpr AttentionOperands kForwardOperands = {.mask = 3};
inline constexpr AttentionOperands kGradOperands = {.log_sum_exp = 3, .dy = 4, .delta = 5, .mask = 6};

// The operands as matrices: q is [heads, queries, size], k [heads / group, keys, size], v [heads / group, keys,
// value_size]. `heads` is the number of heads in the whole batch. Head h of q uses head h / group of k and v.
struct AttentionDims {
  int64_t heads = 1, group = 1, queries, keys, size, value_size;
  // The offsets in the mask of the rows of each head of q, empty without a mask; and the distance of two rows, 0 if all
  // queries share one row.
  std::vector<int64_t> mask_offsets;
  int64_t mask_row = 0;
  bool causal = false;
  int64_t past = 0;
  double scale = 1, softcap = 0;

  // `mask` may be null. Requires the constraints of the ops.
  AttentionDims(const AttributeMap& attributes, const Shape& q, const Shape& k, const Shape& v, const Shape* mask);

  int64_t key_heads() const { return heads / group; }
  // The number of keys that `query` may see: the first ones. The mask may hide some of them.
  int64_t KeysOf(int64_t query) const {
    if (!causal) return keys;
    return query >= keys - past ? keys : std::max<int64_t>(query + past + 1, 0);
  }
};

absl::Status EvalAttention(EvalContext& c);
absl::Status EvalAttentionGrad(EvalContext& c);
absl::Status EvalAttentionMaskGrad(EvalContext& c);

// The decompositions and placement rules of the three ops.
std::vector<Value> DecomposeAttention(DecomposeContext& c);
std::vector<Value> DecomposeAttentionGrad(DecomposeContext& c);
std::vector<Value> DecomposeAttentionMaskGrad(DecomposeContext& c);
void PlaceAttention(PlacementContext& c);
void PlaceAttentionGrad(PlacementContext& c);
void PlaceAttentionMaskGrad(PlacementContext& c);

}  // namespace lockstep::ops
