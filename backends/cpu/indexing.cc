// Gather, scatter_sum and scatter by rows: rows are copied, added or combined in the order of the indices, for all
// numbers of threads. In ops that write to x, each thread has its own rows of x and reads all indices.

#include "core/ops/indexing.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backends/cpu/emitters.h"
#include "core/ops/combine.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kFewElements = 16384;  // too few for several threads

// The indices that a kernel reads, and its positions in memory.
struct Indexing {
  ops::IndexedRows rows;
  Shape indices;
  int64_t dim;
  bool wide;               // indices are i64
  std::string constraint;  // the constraint of indices in range; the message begins with it
  int threads;

  Indexing(const Node& node, const Shape& x, Value index_operand, std::string constraint, int threads)
      : rows(x, index_operand.shape(), node.attr<int64_t>("dim"), node.attr<int64_t>("batch_dims")),
        indices(index_operand.shape()),
        dim(node.attr<int64_t>("dim")),
        wide(index_operand.dtype() == DType::kI64),
        constraint(node.op_name() + " (" + constraint + ")"),
        threads(threads) {}

  bool IsWorthThreads(int64_t rows_moved) const { return threads > 1 && rows_moved * rows.inner > kFewElements; }

  // Calls run(indices) with the indices in read `operand`. All are in range.
  template <typename F>
  absl::Status WithIndices(const KernelArgs& args, size_t operand, F run) const {
    const auto checked = [&](const auto* list) {
      RETURN_IF_ERROR(ops::CheckIndices(constraint, list, indices, dim, rows.extent));
      run(list);
      return absl::OkStatus();
    };
    return wide ? checked(args.read<int64_t>(operand)) : checked(args.read<int32_t>(operand));
  }

  template <typename Index>
  int64_t Position(Index index) const {
    return static_cast<int64_t>(index) + (index < 0 ? rows.extent : 0);
  }

  // Calls work(group, low, high) for parts of the groups of x that together cover all of them. Concurrent calls have
  // different rows.
  template <typename F>
  void ForRowsOfX(const F& work) const {
    const int64_t groups = rows.groups(), parts = groups >= threads ? 1 : threads;
    const bool parallel = IsWorthThreads(groups * (rows.count + rows.extent));
#pragma omp parallel for num_threads(threads) if (parallel)
    for (int64_t k = 0; k < groups * parts; ++k) {
      const int64_t part = k % parts;
      work(k / parts, rows.extent * part / parts, rows.extent * (part + 1) / parts);
    }
  }

  // Calls apply(to, from), both as element offsets, for the updates of a group whose index is a row in [low, high) of
  // x.
  template <typename Index, typename F>
  void ForUpdates(const Index* list, int64_t group, int64_t low, int64_t high, const F& apply) const {
    const Index* of_group = list + rows.IndicesOf(group);
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t position = Position(of_group[i]);
      if (position < low || position >= high) continue;
      apply((group * rows.extent + position) * rows.inner, (group * rows.count + i) * rows.inner);
    }
  }
};

// --- gather ----------------------------------------------------------------------------------------------------------

// Copies rows of `bytes` bytes. kBytes is the same number if the compiler should know it, else 0.
template <size_t kBytes, typename Index>
void GatherRows(const Indexing& g, const Index* list, const std::byte* x, std::byte* y, size_t bytes) {
  const int64_t groups = g.rows.groups(), count = g.rows.count;
  const size_t row_bytes = kBytes > 0 ? kBytes : bytes;
  // Threads get parts of groups, because a division for each row would take longer than copying it.
  const int64_t parts = groups >= g.threads ? 1 : g.threads;
#pragma omp parallel for num_threads(g.threads) if (g.IsWorthThreads(groups * count))
  for (int64_t k = 0; k < groups * parts; ++k) {
    const int64_t group = k / parts, part = k % parts;
    const Index* of_group = list + g.rows.IndicesOf(group);
    const std::byte* from = x + static_cast<size_t>(group * g.rows.extent) * row_bytes;
    std::byte* to = y + static_cast<size_t>(group * count) * row_bytes;
    for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
      const auto position = static_cast<size_t>(g.Position(of_group[i]));
      std::memcpy(to + static_cast<size_t>(i) * row_bytes, from + position * row_bytes, row_bytes);
    }
  }
}

// --- scatter_sum -----------------------------------------------------------------------------------------------------

// Sums of 16-bit floats are computed in a wider type, because they have too few digits.
template <typename T>
constexpr bool kHasSumsOfItsOwn = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <typename T, typename Index>
void SumRows(const Indexing& s, const Index* list, const T* updates, T* y, std::byte* scratch) {
  using Kept = std::conditional_t<kHasSumsOfItsOwn<T>, float, T>;
  Kept* sums = nullptr;
  if constexpr (kHasSumsOfItsOwn<T>) sums = reinterpret_cast<float*>(scratch);
  else sums = y;
  s.ForRowsOfX([&](int64_t group, int64_t low, int64_t high) {
    const int64_t begin = (group * s.rows.extent + low) * s.rows.inner;
    const int64_t end = (group * s.rows.extent + high) * s.rows.inner;
    std::fill(sums + begin, sums + end, Kept(0));
    s.ForUpdates(list, group, low, high, [&](int64_t to, int64_t from) {
      for (int64_t j = 0; j < s.rows.inner; ++j) {
        sums[to + j] = ops::Combine(ReduceKind::kSum, sums[to + j], static_cast<Kept>(updates[from + j]));
      }
    });
    if constexpr (kHasSumsOfItsOwn<T>) {
      for (int64_t i = begin; i < end; ++i) y[i] = ConvertElement<T>(sums[i]);
    }
  });
}

// --- scatter ---------------------------------------------------------------------------------------------------------

// x and y may be the same memory.
template <typename T, typename Index>
void CombineRows(const Indexing& s, const Index* list, std::optional<ReduceKind> kind, const T* x, const T* updates,
                 T* y) {
  using Wide = Accumulator<T>;
  s.ForRowsOfX([&](int64_t group, int64_t low, int64_t high) {
    const int64_t begin = (group * s.rows.extent + low) * s.rows.inner, length = (high - low) * s.rows.inner;
    if (x != y) std::copy_n(x + begin, length, y + begin);
    s.ForUpdates(list, group, low, high, [&](int64_t to, int64_t from) {
      if (!kind) {
        std::copy_n(updates + from, s.rows.inner, y + to);
        return;
      }
      for (int64_t j = 0; j < s.rows.inner; ++j) {
        const auto combined = ops::Combine(*kind, static_cast<Wide>(y[to + j]), static_cast<Wide>(updates[from + j]));
        y[to + j] = ConvertElement<T>(combined);
      }
    });
  });
}

}  // namespace

absl::Status EmitGather(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const Indexing gather(node, node.operand(0).shape(), node.operand(1), "C6", c.threads());
  const size_t bytes = static_cast<size_t>(gather.rows.inner) * SizeOf(node.type().dtype);
  const auto run = [gather, bytes](const KernelArgs& args) {
    return gather.WithIndices(args, 1, [&](const auto* list) {
      const auto rows = [&](auto fixed) {
        GatherRows<decltype(fixed)::value>(gather, list, args.reads[0], args.writes[0], bytes);
      };
      switch (bytes) {
        case 1: return rows(std::integral_constant<size_t, 1>());
        case 2: return rows(std::integral_constant<size_t, 2>());
        case 4: return rows(std::integral_constant<size_t, 4>());
        case 8: return rows(std::integral_constant<size_t, 8>());
        default: return rows(std::integral_constant<size_t, 0>());
      }
    });
  };
  c.Add(node, KernelOf("copy.gather", run), std::move(reads), {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitScatterSum(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const Indexing scatter(node, node.type().shape, node.operand(0), "C6", c.threads());
  const DType dtype = node.type().dtype;
  Kernel kernel = KernelOf("scatter_sum", [scatter, dtype](const KernelArgs& args) {
    return scatter.WithIndices(args, 0, [&](const auto* list) {
      DispatchDType(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (!std::is_same_v<T, bool>) SumRows(scatter, list, args.read<T>(1), args.write<T>(0), args.scratch);
      });
    });
  });
  if (dtype == DType::kF16 || dtype == DType::kBF16)
    kernel.scratch_bytes = static_cast<uint64_t>(node.type().num_elements()) * sizeof(float);
  c.Add(node, std::move(kernel), std::move(reads), {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitScatter(const Node& node, EmitContext& c) {
  const std::optional<ReduceKind> kind = ReduceKindFromName(node.attr<std::string>("kind"));  // none: replace
  // A product that is rounded in each step may underflow although the final result does not.
  if (kind == ReduceKind::kProd && IsFloat(node.type().dtype)) return EmitReference(node, c);
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const Indexing scatter(node, node.type().shape, node.operand(1), "C8", c.threads());
  const auto run = [scatter, kind, dtype = node.type().dtype](const KernelArgs& args) {
    return scatter.WithIndices(args, 1, [&](const auto* list) {
      DispatchDType(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        CombineRows(scatter, list, kind, args.read<T>(0), args.read<T>(2), args.write<T>(0));
      });
    });
  };
  Instruction& instruction = c.Add(node, KernelOf("scatter", run), std::move(reads), {c.Write(node)});
  instruction.may_overwrite.emplace_back(0, 0);
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
