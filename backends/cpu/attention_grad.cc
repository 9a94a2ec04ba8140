// The gradients of attention in blocks, with recomputed scores (Dao, "FlashAttention-2", 2023). Sums over queries and
// over keys are computed in a fixed order, so the bits do not depend on the number of threads.

#include <cmath>
#include <map>

#include "backends/cpu/attention_blocks.h"

namespace lockstep::cpu {
namespace {

// Computes P into `p` and dS into `ds` for a block. With a softcap, `slopes` is its derivative.
template <typename T>
void ScoreGradientsOf(const AttentionBlocks<T>& x, int64_t head, Span queries, Span keys, T* p, T* ds, T* slopes) {
  const int64_t first = head * x.dims.queries + queries.begin, width = x.dims.value_size;
  x.Score(head, queries, keys, p, slopes);
  x.products.Multiply(queries.count(), keys.count(), width, T(1), {x.in.dy + first * width, width},
                      {x.Values(head, keys.begin), width, true}, false, ds, kKeyBlock);
  for (int64_t i = 0; i < queries.count(); ++i) {
    T *const p_row = p + i * kKeyBlock, *const ds_row = ds + i * kKeyBlock;
    // If a query sees no keys, the logarithm is minus infinity, and exp(score - logarithm) would be NaN.
    if (std::isinf(x.in.log_sum_exp[first + i]) && x.in.log_sum_exp[first + i] < 0) {
      std::fill_n(p_row, keys.count(), T(0));
      std::fill_n(ds_row, keys.count(), T(0));
    } else {
      ScoreGradients(p_row, ds_row, keys.count(), x.in.log_sum_exp[first + i], x.in.delta[first + i]);
    }
  }
}

template <typename T>
struct Gradients {
  AttentionBlocks<T> x;
  T *dq, *dk, *dv;
  bool of_queries = true, of_keys = true;  // the gradients to compute

  // Adds the contribution of one block. `scratch` has three blocks.
  void AddBlock(int64_t head, Span queries, Span keys, T* scratch) const {
    const ops::AttentionDims& dims = x.dims;
    if (dims.KeysOf(queries.end - 1) <= keys.begin) return;
    const int64_t m = queries.count(), n = keys.count(), size = dims.size, width = dims.value_size;
    const int64_t query_row = head * dims.queries + queries.begin, key_row = x.KeyRow(head, keys.begin);
    T *const p = scratch, *const ds = p + kBlockElements, *const slopes = ds + kBlockElements;
    const T scale = static_cast<T>(dims.scale);
    ScoreGradientsOf(x, head, queries, keys, p, ds, slopes);
    for (int64_t i = 0; dims.softcap > 0 && i < m * kKeyBlock; ++i) ds[i] *= i % kKeyBlock < n ? slopes[i] : T(0);
    if (of_keys) {
      x.products.Multiply(n, width, m, T(1), {p, kKeyBlock, true}, {x.in.dy + query_row * width, width}, true,
                          dv + key_row * width, width);
      x.products.Multiply(n, size, m, scale, {ds, kKeyBlock, true}, {x.in.q + query_row * size, size}, true,
                          dk + key_row * size, size);
    }
    if (of_queries) {
      x.products.Multiply(m, size, n, scale, {ds, kKeyBlock}, {x.Key(head, keys.begin), size}, true,
                          dq + query_row * size, size);
    }
  }

  // Adds the contributions of all queries of the heads that share a block of keys.
  void AddKeys(int64_t key_head, Span keys, T* scratch) const {
    for (int64_t head = key_head * x.dims.group; head < (key_head + 1) * x.dims.group; ++head) {
      for (int64_t begin = 0; begin < x.dims.queries; begin += kQueryBlock)
        AddBlock(head, {begin, std::min(begin + kQueryBlock, x.dims.queries)}, keys, scratch);
    }
  }
};

template <typename T>
void RunGradients(const AttentionKernel& kernel, Gradients<T> all, T* scratch) {
  const ops::AttentionDims& dims = all.x.dims;
  std::fill_n(all.dq, dims.heads * dims.queries * dims.size, T(0));
  std::fill_n(all.dk, dims.key_heads() * dims.keys * dims.size, T(0));
  std::fill_n(all.dv, dims.key_heads() * dims.keys * dims.value_size, T(0));
  const auto of_thread = [&](int thread) { return scratch + thread * kernel.blocks * kBlockElements; };
  const int64_t key_blocks = BlocksOf(dims.keys, kKeyBlock), query_blocks = BlocksOf(dims.queries, kQueryBlock);
  const auto keys_at = [&](int64_t block) { return BlockAt(block, kKeyBlock, dims.keys); };
  if (dims.key_heads() >= kernel.threads) {  // each thread has its own heads
    ForEachItem(dims.key_heads(), kernel.threads, [&](int64_t head, int thread) {
      for (int64_t block = 0; block < key_blocks; ++block) all.AddKeys(head, keys_at(block), of_thread(thread));
    });
    return;
  }
  // First by blocks of keys, then by blocks of queries; the scores are computed twice.
  Gradients<T> of_keys = all, of_queries = all;
  of_keys.of_queries = of_queries.of_keys = false;
  ForEachItem(dims.key_heads() * key_blocks, kernel.threads, [&](int64_t item, int thread) {
    of_keys.AddKeys(item / key_blocks, keys_at(item % key_blocks), of_thread(thread));
  });
  ForEachItem(dims.heads * query_blocks, kernel.threads, [&](int64_t item, int thread) {
    const Span queries = BlockAt(item % query_blocks, kQueryBlock, dims.queries);
    for (int64_t block = 0; block < key_blocks; ++block)
      of_queries.AddBlock(item / query_blocks, queries, keys_at(block), of_thread(thread));
  });
}

// Returns the offset of each part of the mask, with the heads that share it.
std::vector<std::pair<int64_t, std::vector<int64_t>>> HeadsOfMask(const ops::AttentionDims& dims) {
  std::map<int64_t, std::vector<int64_t>> heads;
  for (int64_t head = 0; head < dims.heads; ++head) heads[dims.mask_offsets[static_cast<size_t>(head)]].push_back(head);
  return {heads.begin(), heads.end()};
}

// Adds the gradient of the part of the mask at `offset`, from a block of queries of each of its heads.
template <typename T>
void AddMaskGradient(const AttentionBlocks<T>& x, int64_t offset, const std::vector<int64_t>& heads, Span queries,
                     T* dmask, T* scratch) {
  T *const p = scratch, *const ds = p + kBlockElements, *const slopes = ds + kBlockElements;
  for (const int64_t head : heads) {
    for (int64_t begin = 0; begin < x.dims.KeysOf(queries.end - 1); begin += kKeyBlock) {
      const Span keys{begin, std::min(begin + kKeyBlock, x.dims.keys)};
      ScoreGradientsOf(x, head, queries, keys, p, ds, slopes);
      for (int64_t i = 0; i < queries.count(); ++i) {
        T* const row = dmask + offset + (queries.begin + i) * x.dims.mask_row + begin;
        for (int64_t j = 0; j < keys.count(); ++j) row[j] += ds[i * kKeyBlock + j];
      }
    }
  }
}

template <typename T>
void RunMaskGradient(const AttentionKernel& kernel, const AttentionBlocks<T>& x, T* dmask, T* scratch) {
  const auto parts = HeadsOfMask(x.dims);
  std::fill_n(dmask, kernel.writes[0].num_elements(), T(0));
  const int64_t query_blocks = BlocksOf(x.dims.queries, kQueryBlock);
  const int64_t blocks = x.dims.mask_row > 0 ? query_blocks : 1;  // the blocks with separate rows
  ForEachItem(static_cast<int64_t>(parts.size()) * blocks, kernel.threads, [&](int64_t item, int thread) {
    const auto& [offset, heads] = parts[static_cast<size_t>(item / blocks)];
    T* const of_thread = scratch + thread * kernel.blocks * kBlockElements;
    for (int64_t block = item % blocks; block < query_blocks; block += blocks)
      AddMaskGradient(x, offset, heads, BlockAt(block, kQueryBlock, x.dims.queries), dmask, of_thread);
  });
}

// `run` is called with the kernel, the blocks, the results and the scratch memory of all threads.
template <typename F>
absl::Status EmitGradient(const Node& node, EmitContext& c, F run) {
  for (const Value& operand : node.operands()) {
    if (operand.type().num_elements() == 0) return EmitReference(node, c);
  }
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const AttentionKernel attention(node, ops::kGradOperands.mask, 3, c.threads());
  Kernel kernel;
  kernel.name = node.op_name();
  kernel.scratch_bytes = attention.ScratchBytes();
  kernel.run = [attention, run](const KernelArgs& args) {
    return attention.Run(
        args, [&](const auto& x, const auto& results, auto* scratch) { run(attention, x, results, scratch); });
  };
  std::vector<int> writes;
  for (size_t i = 0; i < node.num_results(); ++i) writes.push_back(c.Write(node, i));
  c.Add(node, std::move(kernel), std::move(reads), std::move(writes));
  return absl::OkStatus();
}

}  // namespace

absl::Status EmitAttentionGrad(const Node& node, EmitContext& c) {
  return EmitGradient(node, c, [](const AttentionKernel& kernel, const auto& x, const auto& results, auto* scratch) {
    RunGradients(kernel, Gradients<std::remove_pointer_t<decltype(scratch)>>{x, results[0], results[1], results[2]},
                 scratch);
  });
}

absl::Status EmitAttentionMaskGrad(const Node& node, EmitContext& c) {
  return EmitGradient(node, c, [](const AttentionKernel& kernel, const auto& x, const auto& results, auto* scratch) {
    RunMaskGradient(kernel, x, results[0], scratch);
  });
}

}  // namespace lockstep::cpu
