// The first k elements in sorted order, line by line.

#include <algorithm>
#include <numeric>

#include "backends/cpu/emitters.h"
#include "core/ops/order.h"
#include "omp.h"

namespace lockstep::cpu {
namespace {

// x seen as `outer` x `extent` x `inner`; a line is along `extent`.
struct TopK {
  int64_t outer = 1, extent = 1, inner = 1, k = 0;
  bool largest = true;

  explicit TopK(const Node& node) : k(node.attr<int64_t>("k")), largest(node.attr<bool>("largest")) {
    const Shape& shape = node.operand(0).shape();
    const int64_t dim = node.attr<int64_t>("dim");
    extent = shape[dim];
    for (int64_t i = 0; i < dim; ++i) outer *= shape[i];
    for (int64_t i = dim + 1; i < shape.rank(); ++i) inner *= shape[i];
  }

  // `order` has room for the positions of one line.
  template <typename T>
  void RunLine(const T* x, T* values, int64_t* indices, int64_t* order) const {
    std::iota(order, order + extent, int64_t{0});
    std::partial_sort(order, order + k, order + extent, [&](int64_t i, int64_t j) {
      using Wide = Accumulator<T>;
      const auto a = static_cast<Wide>(x[(largest ? j : i) * inner]),
                 b = static_cast<Wide>(x[(largest ? i : j) * inner]);
      return ops::IsLess(a, b) || (i < j && !ops::IsLess(b, a));
    });
    for (int64_t i = 0; i < k; ++i) {
      indices[i * inner] = order[i];
      values[i * inner] = x[order[i] * inner];
    }
  }

  // `orders` has room for one line per thread.
  template <typename T>
  void Run(const T* x, T* values, int64_t* indices, int64_t* orders, int threads) const {
#pragma omp parallel for num_threads(threads) if (threads > 1 && outer * extent * inner > 4096)
    for (int64_t line = 0; line < outer * inner; ++line) {
      const int64_t block = line / inner, column = line % inner, to = block * k * inner + column;
      RunLine(x + block * extent * inner + column, values + to, indices + to, orders + omp_get_thread_num() * extent);
    }
  }
};

}  // namespace

absl::Status EmitTopK(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(const int read, c.Read(node, 0));
  const TopK top(node);
  Kernel kernel;
  kernel.name = "top_k";
  kernel.scratch_bytes = static_cast<uint64_t>(top.extent * c.threads()) * sizeof(int64_t);
  kernel.run = [top, dtype = node.type().dtype, threads = c.threads()](const KernelArgs& args) {
    DispatchDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      top.Run(args.read<T>(0), args.write<T>(0), args.write<int64_t>(1), reinterpret_cast<int64_t*>(args.scratch),
              threads);
    });
    return absl::OkStatus();
  };
  const int values = c.Write(node, 0), indices = c.Write(node, 1);
  c.Add(node, std::move(kernel), {read}, {values, indices});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
