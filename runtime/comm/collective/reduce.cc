#include "runtime/comm/collective/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "core/check.h"

// Compiles a loop once for each of these instruction sets, among which the loader chooses. Sanitizers instrument
// functions that the loader calls before the sanitizers are ready, so they get the plain loop.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(LOCKSTEP_NO_CLONES)
#define LOCKSTEP_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LOCKSTEP_CLONES
#endif
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep {
namespace {

constexpr int64_t kBlock = 2048;  // elements accumulated at a time: at most 16 KiB, which stay in the first-level cache

// The type as which a buffer's elements are read. A bool is read as its byte, so that the loops work on plain integers.
template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

template <typename T, ReduceKind kKind>
using Sum =
    std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float,
                       std::conditional_t<kKind == ReduceKind::kMean && !std::is_floating_point_v<T>,
                                          std::conditional_t<std::is_unsigned_v<T>, uint64_t, int64_t>, Stored<T>>>;

// The conversions of core/dtype.h without branches or calls, so that loops over them are vectorised. reduce_test.cc
// compares them for every bit pattern.
LOCKSTEP_INLINE float ToFloat(Float16 value) {
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << 23);
  const uint32_t special = shifted | 0x7f800000u;
  // A subnormal is its mantissa over 2^24. The integer is small, so the conversion is exact.
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t finite = magnitude < 0x400u ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}
LOCKSTEP_INLINE float ToFloat(BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

LOCKSTEP_INLINE Float16 ToHalf(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (f >> 16) & 0x8000u;
  const uint32_t m = f & 0x7fffffffu;
  const uint32_t normal = (m + 0xc8000fffu + ((m >> 13) & 1u)) >> 13;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(m) + 0.5f) - 0x3f000000u;
  uint32_t half = m < 0x38800000u ? subnormal : normal;
  half = m >= 0x477ff000u ? 0x7c00u : half;  // 65520 rounds to infinity
  half = m > 0x7f800000u ? 0x7e00u : half;
  Float16 result;
  result.bits = static_cast<uint16_t>(sign | half);
  return result;
}
LOCKSTEP_INLINE BFloat16 ToBrain(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (f + 0x7fffu + ((f >> 16) & 1u)) >> 16;
  BFloat16 result;
  result.bits = static_cast<uint16_t>((f & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  return result;
}

template <typename A, typename T>
LOCKSTEP_INLINE A Load(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) return ToFloat(value);
  else return static_cast<A>(value);
}

template <typename T, typename A>
LOCKSTEP_INLINE Stored<T> Store(A sum) {
  if constexpr (std::is_same_v<T, Float16>) return ToHalf(sum);
  else if constexpr (std::is_same_v<T, BFloat16>) return ToBrain(sum);
  else if constexpr (std::is_same_v<T, bool>) return sum != 0;
  else return static_cast<T>(sum);
}

// Unsigned and at least 32 bits wide, so that overflow wraps instead of being undefined.
template <typename A>
using Wrapping = std::conditional_t<(sizeof(A) < 4), uint32_t,
                                    std::make_unsigned_t<std::conditional_t<std::is_integral_v<A>, A, int>>>;

template <ReduceKind kKind, typename T, typename A>
LOCKSTEP_INLINE A Combine(A a, A b) {
  if constexpr (kKind == ReduceKind::kMin) return (b < a) | (b != b) ? b : a;
  else if constexpr (kKind == ReduceKind::kMax) return (a < b) | (b != b) ? b : a;
  else if constexpr (std::is_floating_point_v<A>) return kKind == ReduceKind::kProd ? a * b : a + b;
  else if constexpr (std::is_same_v<T, bool> && kKind == ReduceKind::kSum) return a | b;
  else if constexpr (std::is_same_v<T, bool> && kKind == ReduceKind::kProd) return a & b;
  else if constexpr (kKind == ReduceKind::kProd)
    return static_cast<A>(static_cast<Wrapping<A>>(a) * static_cast<Wrapping<A>>(b));
  else return static_cast<A>(static_cast<Wrapping<A>>(a) + static_cast<Wrapping<A>>(b));
}

// The functions for one block. A block starts from the prefix, from one input, or from two inputs.
template <ReduceKind kKind, typename T, typename A>
LOCKSTEP_CLONES void LoadBlock(const Stored<T>* input, A* sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] = Load<A>(input[i]);
}

template <ReduceKind kKind, typename T, typename A>
LOCKSTEP_CLONES void LoadTwoBlocks(const Stored<T>* first, const Stored<T>* second, A* sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] = Combine<kKind, T, A>(Load<A>(first[i]), Load<A>(second[i]));
}

template <ReduceKind kKind, typename T, typename A>
LOCKSTEP_CLONES void CombineBlock(const Stored<T>* input, A* sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] = Combine<kKind, T, A>(sums[i], Load<A>(input[i]));
}

template <ReduceKind kKind, typename T, typename A>
LOCKSTEP_CLONES void CombineSums(const A* others, A* sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] = Combine<kKind, T, A>(sums[i], others[i]);
}

template <typename T, typename A>
LOCKSTEP_CLONES void DivideBlock(A* sums, A divisor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] / divisor;
}

template <typename T, typename A>
LOCKSTEP_CLONES void StoreBlock(const A* sums, Stored<T>* output, int64_t count) {
  for (int64_t i = 0; i < count; ++i) output[i] = Store<T, A>(sums[i]);
}

template <ReduceKind kKind, typename T>
void ReduceAs(const Reduction& r) {
  using S = Stored<T>;
  using A = Sum<T, kKind>;
  alignas(64) A sums[kBlock];
  alignas(64) S results[kBlock];
  for (int64_t begin = 0; begin < r.count; begin += kBlock) {
    const int64_t count = std::min(kBlock, r.count - begin);
    auto input = [&](size_t rank) { return reinterpret_cast<const S*>(r.inputs[rank]) + begin; };
    size_t next = 0;
    if (!r.partials.empty()) {
      std::memcpy(sums, r.partials[0] + begin * sizeof(A), count * sizeof(A));
      for (const std::byte* partial : r.partials.subspan(1))
        CombineSums<kKind, T, A>(reinterpret_cast<const A*>(partial) + begin, sums, count);
    } else if (r.prefix != nullptr) {
      std::memcpy(sums, r.prefix + begin * sizeof(A), count * sizeof(A));
    } else if (r.inputs.size() == 1) {
      LoadBlock<kKind, T, A>(input(0), sums, count);
      next = 1;
    } else {
      LoadTwoBlocks<kKind, T, A>(input(0), input(1), sums, count);
      next = 2;
    }
    for (; next < r.inputs.size(); ++next) CombineBlock<kKind, T, A>(input(next), sums, count);
    if (r.partial != nullptr) {
      std::memcpy(r.partial + begin * sizeof(A), sums, count * sizeof(A));
      continue;
    }
    if constexpr (kKind == ReduceKind::kMean) DivideBlock<T, A>(sums, static_cast<A>(r.world_size), count);
    const S* result = nullptr;
    if constexpr (std::is_same_v<S, A> && !std::is_same_v<T, bool>) {
      result = sums;
    } else {
      StoreBlock<T, A>(sums, results, count);
      result = results;
    }
    for (std::byte* output : r.outputs) std::memcpy(output + begin * sizeof(S), result, count * sizeof(S));
  }
}

template <typename F>
decltype(auto) DispatchKind(ReduceKind kind, F&& f) {
  switch (kind) {
    case ReduceKind::kSum: return f(std::integral_constant<ReduceKind, ReduceKind::kSum>());
    case ReduceKind::kMin: return f(std::integral_constant<ReduceKind, ReduceKind::kMin>());
    case ReduceKind::kMax: return f(std::integral_constant<ReduceKind, ReduceKind::kMax>());
    case ReduceKind::kProd: return f(std::integral_constant<ReduceKind, ReduceKind::kProd>());
    case ReduceKind::kMean: return f(std::integral_constant<ReduceKind, ReduceKind::kMean>());
  }
  LOCKSTEP_CHECK(false) << "reduce kind " << static_cast<int>(kind);
  __builtin_unreachable();
}

}  // namespace

size_t AccumulatorSize(DType dtype, ReduceKind kind) {
  return DispatchKind(kind, [&](auto k) {
    return DispatchDType(dtype,
                         [&](auto tag) { return sizeof(Sum<typename decltype(tag)::type, decltype(k)::value>); });
  });
}

void Reduce(const Reduction& reduction) {
  LOCKSTEP_CHECK(!reduction.inputs.empty() || !reduction.partials.empty());
  DispatchKind(reduction.kind, [&](auto k) {
    DispatchDType(reduction.dtype,
                  [&](auto tag) { ReduceAs<decltype(k)::value, typename decltype(tag)::type>(reduction); });
  });
}

}  // namespace lockstep
