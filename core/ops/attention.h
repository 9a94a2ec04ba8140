// What the ops of attention have in common: how their operands lie in memory, their reference meanings,
// decompositions and placement rules. For the authors of op blocks and of their kernels.

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

// Where the operands of attention, attention_grad and attention_mask_grad are. The first three are q, k and v of all.
struct AttentionOperands {
  size_t log_sum_exp = 0, dy = 0, delta = 0;  // of the gradients alone
  size_t mask;                                // the last one, if there are so many
};
inline constexpr AttentionOperands kForwardOperands = {.mask = 3};
inline constexpr AttentionOperands kGradOperands = {.log_sum_exp = 3, .dy = 4, .delta = 5, .mask = 6};

// Operands as matrices: q is [heads, queries, size], k [heads / group, keys, size], v [heads / group, keys,
// value_size], where `heads` counts those of all the batch; head h of q meets head h / group of k and v.
struct AttentionDims {
  int64_t heads = 1, group = 1, queries, keys, size, value_size;
  // Of the mask: where the rows of each head of q begin, and the distance of two rows, which is 0 if all queries share
  // one. Empty without a mask.
  std::vector<int64_t> mask_offsets;
  int64_t mask_row = 0;
  bool causal = false;
  int64_t past = 0;
  double scale = 1, softcap = 0;

  // `mask` may be null. Requires the constraints of the ops.
  AttentionDims(const AttributeMap& attributes, const Shape& q, const Shape& k, const Shape& v, const Shape* mask);

  int64_t key_heads() const { return heads / group; }
  // How many keys, the first ones, query i may see. The mask may hide others.
  int64_t KeysOf(int64_t query) const {
    if (!causal) return keys;
    return query >= keys - past ? keys : std::max<int64_t>(query + past + 1, 0);
  }
};

absl::Status EvalAttention(EvalContext& c);
absl::Status EvalAttentionGrad(EvalContext& c);
absl::Status EvalAttentionMaskGrad(EvalContext& c);

// Of the op with these operands.
std::vector<Value> DecomposeAttention(DecomposeContext& c);
std::vector<Value> DecomposeAttentionGrad(DecomposeContext& c);
std::vector<Value> DecomposeAttentionMaskGrad(DecomposeContext& c);
void PlaceAttention(PlacementContext& c);
void PlaceAttentionGrad(PlacementContext& c);
void PlaceAttentionMaskGrad(PlacementContext& c);

}  // namespace lockstep::ops
