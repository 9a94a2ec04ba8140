// Attention in blocks of queries and keys: how the kernels of attention and of its gradients divide the work, and the
// scores of one block; the whole queries x keys matrix is never stored. For attention.cc and attention_grad.cc.

#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/cpu/block_products.h"
#include "backends/cpu/emitters.h"
#include "backends/cpu/scoped_threads.h"
#include "backends/cpu/softmax_rows.h"
#include "core/ops/attention.h"

namespace lockstep::cpu {

inline constexpr int64_t kQueryBlock = 64, kKeyBlock = 128;
inline constexpr int64_t kBlockElements = kQueryBlock * kKeyBlock;

// The range [begin, end).
struct Span {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

inline int64_t BlocksOf(int64_t extent, int64_t block) { return (extent + block - 1) / block; }
inline Span BlockAt(int64_t i, int64_t block, int64_t extent) { return {i * block, std::min((i + 1) * block, extent)}; }

// The operands in memory; T is f32 or f64. At most one of the masks is set.
template <typename T>
struct AttentionInputs {
  const T *q, *k, *v;
  const T* added = nullptr;
  const bool* seen = nullptr;
  const T *log_sum_exp = nullptr, *dy = nullptr, *delta = nullptr;  // of the gradients only
};

template <typename T>
struct AttentionBlocks {
  const ops::AttentionDims& dims;
  AttentionInputs<T> in;
  BlockProducts& products;

  const T* Query(int64_t head, int64_t i) const { return in.q + (head * dims.queries + i) * dims.size; }
  int64_t KeyRow(int64_t head, int64_t j) const { return head / dims.group * dims.keys + j; }
  const T* Key(int64_t head, int64_t j) const { return in.k + KeyRow(head, j) * dims.size; }
  const T* Values(int64_t head, int64_t j) const { return in.v + KeyRow(head, j) * dims.value_size; }

  // Computes the scores of a block as input of the softmax: s [kQueryBlock, kKeyBlock]. With a softcap, writes its
  // derivative to `slopes`, of the same shape, unless that is null.
  void Score(int64_t head, Span queries, Span keys, T* s, T* slopes) const {
    products.Multiply(queries.count(), keys.count(), dims.size, static_cast<T>(dims.scale),
                      {Query(head, queries.begin), dims.size}, {Key(head, keys.begin), dims.size, true}, false, s,
                      kKeyBlock);
    for (int64_t i = 0; i < queries.count(); ++i) {
      T* row = s + i * kKeyBlock;
      if (dims.softcap > 0) Cap(row, slopes == nullptr ? nullptr : slopes + i * kKeyBlock, keys.count());
      Mask(head, queries.begin + i, keys, row);
    }
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  void Cap(T* row, T* slopes, int64_t count) const {
    const T cap = static_cast<T>(dims.softcap);
    for (int64_t j = 0; j < count; ++j) {
      const T tanh = std::tanh(row[j] / cap);
      row[j] = cap * tanh;
      if (slopes != nullptr) slopes[j] = 1 - tanh * tanh;
    }
  }

  void Mask(int64_t head, int64_t query, Span keys, T* row) const {
    if (!dims.mask_offsets.empty()) {
      const int64_t at = dims.mask_offsets[static_cast<size_t>(head)] + query * dims.mask_row + keys.begin;
      if (in.added != nullptr) {
        for (int64_t j = 0; j < keys.count(); ++j) row[j] += in.added[at + j];
      } else {
        for (int64_t j = 0; j < keys.count(); ++j) row[j] = in.seen[at + j] ? row[j] : kHidden;
      }
    }
    const int64_t seen = std::clamp(dims.KeysOf(query) - keys.begin, int64_t{0}, keys.count());
    std::fill(row + seen, row + keys.count(), kHidden);
  }
};

// Allocates parts of a kernel's scratch memory. If `begin` is null, only counts the bytes.
struct ScratchPieces {
  std::byte* begin;
  uint64_t taken = 0;

  template <typename T>
  T* Take(int64_t count) {
    std::byte* piece = begin == nullptr ? nullptr : begin + taken;
    taken += AlignUp(static_cast<uint64_t>(count) * sizeof(T));
    return reinterpret_cast<T*>(piece);
  }
};

// Calls work(item, thread) for each item; the costs of items may differ. In these calls, products of blocks run on one
// thread each, regardless of OpenMP's setting.
template <typename F>
void ForEachItem(int64_t items, int threads, const F& work) {
  const int team = static_cast<int>(std::min<int64_t>(items, threads));
#pragma omp parallel num_threads(team)
  {
    const ScopedThreads alone(1);
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < items; ++item) work(item, omp_get_thread_num());
  }
}

// A kernel of attention or of a gradient. Operands and results of f16 and bf16 are converted to f32 in its scratch
// memory, where each thread also has `blocks` blocks.
struct AttentionKernel {
  ops::AttentionDims dims;
  std::vector<TensorType> reads, writes;
  size_t mask;  // the position of the mask operand, if there is one
  int64_t blocks;
  int threads;

  AttentionKernel(const Node& node, size_t mask_operand, int64_t blocks_of_thread, int threads_of_target)
      : dims(node.attributes(), node.operand(0).shape(), node.operand(1).shape(), node.operand(2).shape(),
             has(node, mask_operand) ? &node.operand(mask_operand).shape() : nullptr),
        mask(mask_operand),
        blocks(blocks_of_thread),
        threads(threads_of_target) {
    for (const Value& operand : node.operands()) reads.push_back(operand.type());
    for (size_t i = 0; i < node.num_results(); ++i) writes.push_back(node.type(i));
  }
  static bool has(const Node& node, size_t operand) { return node.operands().size() > operand; }

  static bool IsHalf(const TensorType& type) { return IsFloat(type.dtype) && SizeOf(type.dtype) == 2; }

  uint64_t ScratchBytes() const {
    ScratchPieces scratch{nullptr};
    for (const auto* types : {&reads, &writes}) {
      for (const TensorType& type : *types) {
        if (IsHalf(type)) scratch.Take<float>(type.num_elements());
      }
    }
    const int64_t count = threads * blocks * kBlockElements;
    if (reads[0].dtype == DType::kF64) scratch.Take<double>(count);
    else scratch.Take<float>(count);
    return scratch.taken;
  }

  // Calls run(blocks, results, scratch of all threads) with AttentionBlocks of f32 or f64 and the results' memory.
  template <typename F>
  absl::Status Run(const KernelArgs& args, const F& run) const {
    if (reads[0].dtype == DType::kF64) return RunAs<double>(args, run);
    return RunAs<float>(args, run);
  }

 private:
  template <typename T>
  const T* Read(const KernelArgs& args, size_t i, ScratchPieces& scratch) const {
    if (!IsHalf(reads[i])) return args.read<T>(i);
    T* const copy = scratch.Take<T>(reads[i].num_elements());
    DispatchDType(reads[i].dtype, [&](auto tag) {
      using From = typename decltype(tag)::type;
      const From* from = args.read<From>(i);
#pragma omp parallel for num_threads(threads)
      for (int64_t at = 0; at < reads[i].num_elements(); ++at) copy[at] = ConvertElement<T>(from[at]);
    });
    return copy;
  }

  template <typename T>
  void Write(const T* from, const KernelArgs& args, size_t i) const {
    if (!IsHalf(writes[i])) return;
    DispatchDType(writes[i].dtype, [&](auto tag) {
      using To = typename decltype(tag)::type;
      To* to = args.write<To>(i);
#pragma omp parallel for num_threads(threads)
      for (int64_t at = 0; at < writes[i].num_elements(); ++at) to[at] = ConvertElement<To>(from[at]);
    });
  }

  template <typename T, typename F>
  absl::Status RunAs(const KernelArgs& args, const F& run) const {
    ScratchPieces scratch{args.scratch};
    AttentionInputs<T> in;
    in.q = Read<T>(args, 0, scratch);
    in.k = Read<T>(args, 1, scratch);
    in.v = Read<T>(args, 2, scratch);
    if (mask == ops::kGradOperands.mask) {
      in.log_sum_exp = Read<T>(args, ops::kGradOperands.log_sum_exp, scratch);
      in.dy = Read<T>(args, ops::kGradOperands.dy, scratch);
      in.delta = Read<T>(args, ops::kGradOperands.delta, scratch);
    }
    if (reads.size() > mask && reads[mask].dtype == DType::kBool) in.seen = args.read<bool>(mask);
    else if (reads.size() > mask) in.added = Read<T>(args, mask, scratch);
    std::vector<T*> results;
    for (size_t i = 0; i < writes.size(); ++i)
      results.push_back(IsHalf(writes[i]) ? scratch.Take<T>(writes[i].num_elements()) : args.write<T>(i));
    BlockProducts products;
    run(AttentionBlocks<T>{dims, in, products}, results, scratch.Take<T>(threads * blocks * kBlockElements));
    for (size_t i = 0; i < writes.size(); ++i) Write(results[i], args, i);
    return products.status();
  }
};

}  // namespace lockstep::cpu
