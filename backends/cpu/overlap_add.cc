// Adds overlapping windows. The window elements are added to each slice one after the other, so that the order of
// additions is the same for all numbers of threads.

#include <algorithm>
#include <type_traits>

#include "backends/cpu/emitters.h"

namespace lockstep::cpu {
namespace {

using Ints = std::vector<int64_t>;

int64_t Product(const Ints& dims) {
  int64_t product = 1;
  for (int64_t dim : dims) product *= dim;
  return product;
}

// The operand seen as `outer` x window x positions x `inner`, and the result as `outer` x size x `inner`.
struct OverlapAdd {
  Ints window, positions, size, stride, dilation;
  int64_t outer = 1, inner = 1;

  explicit OverlapAdd(const Node& node)
      : size(node.attr<Ints>("size")), stride(node.attr<Ints>("stride")), dilation(node.attr<Ints>("dilation")) {
    const Ints& dims = node.operand(0).shape().dims();
    const auto along = static_cast<int64_t>(size.size());
    const auto at = dims.begin() + node.attr<int64_t>("dim"), end = at + 2 * along;
    window.assign(at, at + along);
    positions.assign(at + along, end);
    outer = Product({dims.begin(), at});
    inner = Product({end, dims.end()});
    if (!size.empty()) return;  // without window dimensions: one position of one element
    for (Ints* each : {&window, &positions, &size, &stride, &dilation}) each->push_back(1);
  }

  // The beginning, in a slice, in rows of `inner` elements, of tap `tap` of the window at row `row` of positions.
  int64_t Begin(int64_t tap, int64_t row) const {
    int64_t begin = 0, step = 1;
    for (size_t i = size.size(); i-- > 0; step *= size[i]) {
      begin += tap % window[i] * dilation[i] * step;
      tap /= window[i];
      if (i + 1 == size.size()) continue;  // a row contains all positions along the last dimension
      begin += row % positions[i] * stride[i] * step;
      row /= positions[i];
    }
    return begin;
  }

  template <typename T, typename Sum>
  void AddSlice(const T* x, Sum* sums) const {
    const int64_t taps = Product(window), in_row = positions.back(),
                  rows = Product(positions) / std::max<int64_t>(in_row, 1);
    std::fill_n(sums, Product(size) * inner, Sum(0));
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t row = 0; row < rows; ++row) {
        Sum* to = sums + Begin(tap, row) * inner;
        AddRow(x, to, in_row, stride.back() * inner);
        x += in_row * inner;
      }
    }
  }

  // Adds `count` rows of `inner` elements to rows that are `step` elements apart.
  template <typename T, typename Sum>
  void AddRow(const T* x, Sum* to, int64_t count, int64_t step) const {
    if (step == inner) return AddTo(x, to, count * inner);
    if (inner == 1) {
      for (int64_t p = 0; p < count; ++p) to[p * step] += static_cast<Sum>(x[p]);
      return;
    }
    for (int64_t p = 0; p < count; ++p) AddTo(x + p * inner, to + p * step, inner);
  }
  template <typename T, typename Sum>
  static void AddTo(const T* x, Sum* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] += static_cast<Sum>(x[i]);
  }
};

// The type of sums: 16-bit floats have too few digits, and unsigned integers wrap around without undefined behaviour.
template <typename T>
auto SumOf(T) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) return float(0);
  else if constexpr (std::is_integral_v<T>) return std::make_unsigned_t<T>(0);
  else return T(0);
}

template <typename T>
void Run(const OverlapAdd& add, const T* x, T* y, std::byte* scratch, int threads) {
  using Sum = decltype(SumOf(T()));
  constexpr bool kInPlace = sizeof(Sum) == sizeof(T);
  const int64_t from = Product(add.window) * Product(add.positions) * add.inner, to = Product(add.size) * add.inner;
  Sum* sums = kInPlace ? reinterpret_cast<Sum*>(y) : reinterpret_cast<Sum*>(scratch);
#pragma omp parallel for num_threads(threads) if (threads > 1 && add.outer * (from + to) > 16384)
  for (int64_t i = 0; i < add.outer; ++i) {
    add.AddSlice(x + i * from, sums + i * to);
    if constexpr (!kInPlace) {
      for (int64_t j = i * to; j < (i + 1) * to; ++j) y[j] = ConvertElement<T>(sums[j]);
    }
  }
}

}  // namespace

absl::Status EmitOverlapAdd(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(const int read, c.Read(node, 0));
  const DType dtype = node.type().dtype;
  Kernel kernel;
  kernel.name = node.op_name();
  kernel.run = [add = OverlapAdd(node), dtype, threads = c.threads()](const KernelArgs& args) {
    DispatchDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (!std::is_same_v<T, bool>) Run(add, args.read<T>(0), args.write<T>(0), args.scratch, threads);
    });
    return absl::OkStatus();
  };
  if (dtype == DType::kF16 || dtype == DType::kBF16)
    kernel.scratch_bytes = static_cast<uint64_t>(node.type().num_elements()) * sizeof(float);
  c.Add(node, std::move(kernel), {read}, {c.Write(node)});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
