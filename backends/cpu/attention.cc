// Attention in blocks: a block of queries visits the keys block by block, with a running maximum and a running sum for
// each row (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention",
// 2022), so that each thread needs memory for only one block of scores.

#include <cmath>
#include <limits>

#include "backends/cpu/attention_blocks.h"

namespace lockstep::cpu {
namespace {

// Computes a block of queries of one head. `scores` has room for a block, `rows` for one whose first rows are used.
template <typename T>
void AttendBlock(const AttentionBlocks<T>& x, int64_t head, Span queries, T* y, T* log_sum_exp, T* scores, T* rows) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  const ops::AttentionDims& dims = x.dims;
  const int64_t count = queries.count(), first = head * dims.queries + queries.begin, width = dims.value_size;
  T *const max = rows, *const sum = max + kQueryBlock, *const factor = sum + kQueryBlock;
  T* const out = y + first * width;
  std::fill_n(max, count, kNone);
  std::fill_n(sum, count, T(0));
  const int64_t end = dims.KeysOf(queries.end - 1);
  if (end == 0) std::fill_n(out, count * width, T(0));
  for (int64_t begin = 0; begin < end; begin += kKeyBlock) {
    const Span keys{begin, std::min(begin + kKeyBlock, end)};
    x.Score(head, queries, keys, scores, nullptr);
    SoftmaxStep(scores, count, keys.count(), kKeyBlock, max, sum, factor);
    if (begin > 0) ScaleRows(out, count, width, factor);
    x.products.Multiply(count, width, keys.count(), T(1), {scores, kKeyBlock}, {x.Values(head, begin), width},
                        begin > 0, out, width);
  }
  for (int64_t i = 0; i < count; ++i) {
    log_sum_exp[first + i] = (max[i] == kNone ? T(0) : max[i]) + std::log(sum[i]);
    factor[i] = sum[i] == 0 ? T(0) : 1 / sum[i];
  }
  ScaleRows(out, count, width, factor);
}

}  // namespace

absl::Status EmitAttention(const Node& node, EmitContext& c) {
  for (const Value& operand : node.operands()) {
    if (operand.type().num_elements() == 0) return EmitReference(node, c);
  }
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const AttentionKernel attention(node, ops::kForwardOperands.mask, 2, c.threads());
  Kernel kernel;
  kernel.name = "attention";
  kernel.scratch_bytes = attention.ScratchBytes();
  kernel.run = [attention](const KernelArgs& args) {
    return attention.Run(args, [&](const auto& x, const auto& results, auto* scratch) {
      const int64_t blocks = BlocksOf(x.dims.queries, kQueryBlock);
      ForEachItem(x.dims.heads * blocks, attention.threads, [&](int64_t item, int thread) {
        auto* const scores = scratch + thread * attention.blocks * kBlockElements;
        const Span queries = BlockAt(item % blocks, kQueryBlock, x.dims.queries);
        AttendBlock(x, item / blocks, queries, results[0], results[1], scores, scores + kBlockElements);
      });
    });
  };
  const int y = c.Write(node, 0), log_sum_exp = c.Write(node, 1);
  c.Add(node, std::move(kernel), std::move(reads), {y, log_sum_exp});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
