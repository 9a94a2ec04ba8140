// Cumulative sums and products. Each element is read once, and adjacent columns are processed together.

#include <algorithm>
#include <type_traits>

#include "backends/cpu/emitters.h"

namespace lockstep::cpu {
namespace {

// The type of totals. Integers use unsigned totals, because signed overflow is undefined.
template <typename T>
using Total = std::conditional_t<std::is_same_v<Accumulator<T>, double>, double, uint64_t>;

constexpr int64_t kTile = 64;  // columns

// A tensor seen as `outer` x `extent` x `inner`, accumulated along `extent`.
struct Scan {
  int64_t outer = 1, extent = 1, inner = 1;
  bool exclusive = false, reverse = false, multiplies = false;

  explicit Scan(const Node& node)
      : exclusive(node.attr<bool>("exclusive")),
        reverse(node.attr<bool>("reverse")),
        multiplies(node.Is("cumulative_prod")) {
    const Shape& shape = node.type().shape;
    const int64_t dim = node.attr<int64_t>("dim");
    extent = shape[dim];
    for (int64_t i = 0; i < dim; ++i) outer *= shape[i];
    for (int64_t i = dim + 1; i < shape.rank(); ++i) inner *= shape[i];
  }

  // Processes `columns` adjacent columns, at most kColumns. With kColumns = 1 the total stays in a register.
  template <bool kMultiplies, int64_t kColumns, typename T>
  void RunTile(const T* x, T* y, int64_t columns) const {
    Total<T> totals[kColumns];
    std::fill_n(totals, kColumns, kMultiplies ? Total<T>(1) : Total<T>(0));
    for (int64_t i = 0; i < extent; ++i) {
      const int64_t row = (reverse ? extent - 1 - i : i) * inner;
      for (int64_t j = 0; j < (kColumns == 1 ? 1 : columns); ++j) {
        const Total<T> before = totals[j], element = static_cast<Total<T>>(x[row + j]);
        totals[j] = kMultiplies ? before * element : before + element;
        y[row + j] = ConvertElement<T>(exclusive ? before : totals[j]);
      }
    }
  }

  template <bool kMultiplies, typename T>
  void Run(const T* x, T* y, int threads) const {
    const int64_t tiles = (inner + kTile - 1) / kTile;
#pragma omp parallel for num_threads(threads) if (threads > 1 && outer * extent * inner > 16384)
    for (int64_t k = 0; k < outer * tiles; ++k) {
      const int64_t column = k % tiles * kTile, first = k / tiles * extent * inner + column;
      if (inner == 1) RunTile<kMultiplies, 1>(x + first, y + first, 1);
      else RunTile<kMultiplies, kTile>(x + first, y + first, std::min(kTile, inner - column));
    }
  }
};

}  // namespace

absl::Status EmitCumulative(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(const int read, c.Read(node, 0));
  Kernel kernel;
  kernel.name = node.op_name();
  kernel.run = [scan = Scan(node), dtype = node.type().dtype, threads = c.threads()](const KernelArgs& args) {
    DispatchDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if (scan.multiplies) scan.Run<true>(args.read<T>(0), args.write<T>(0), threads);
      else scan.Run<false>(args.read<T>(0), args.write<T>(0), threads);
    });
    return absl::OkStatus();
  };
  c.Add(node, std::move(kernel), {read}, {c.Write(node)});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
