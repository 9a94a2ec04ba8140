// Matrix products of a warp on tensor cores (PTX ISA, "Matrix Fragments for mma.m16n8k8" and "mma.m16n8k16").
//
// Operands consist of words of 32 bits: one element in TF32, or two 16-bit elements that are neighbours along the
// contraction. One product is 16 rows of A times 8 columns of B over 8 words. Its operands and its result are
// distributed over the 32 threads of a warp. Thread 4 g + t has
//
//   of A: word t of rows g and g + 8, then word t + 4 of the same rows;
//   of B: words t and t + 4 of column g;
//   of C: elements 2 t and 2 t + 1 of row g, then of row g + 8.
//
// Words may be in any order that is the same for A and B.
//
// Operands in shared memory are read as matrices of 8 rows of 16 bytes, four at a time (PTX ISA, "ldmatrix"). Thread
// 8 m + r gives the address of row r of matrix m. Thread 4 g + t gets of each matrix word t of row g, or, transposed,
// the word of the 16-bit elements g of rows 2 t and 2 t + 1.

#pragma once

#include <stdint.h>

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

inline constexpr int kWarp = 32, kProductRows = 16, kProductColumns = 8, kProductWords = 8;

// The parts of one thread.
using PartOfA = uint32_t[4];
using PartOfB = uint32_t[2];
using PartOfC = float[4];

// Words<T> rounds f32 to words of elements of T, and words in memory to words for products. It adds the product of A
// and B to C, which all threads of the warp must call.
template <typename T>
struct Words;

using PartsOfMatrices = uint32_t[4];

#ifdef __NVPTX__

#define LOCKSTEP_LOAD_MATRICES(layout, row, parts)                                       \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" layout ".shared.b16 {%0,%1,%2,%3}, [%4];" \
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])          \
               : "r"(row)                                                                \
               : "memory")
inline void LoadMatrices(SharedAddress row, PartsOfMatrices& parts) { LOCKSTEP_LOAD_MATRICES("", row, parts); }
inline void LoadTransposed(SharedAddress row, PartsOfMatrices& parts) { LOCKSTEP_LOAD_MATRICES(".trans", row, parts); }

#define LOCKSTEP_PRODUCT(shape, type, a, b, c)                     \
  asm("mma.sync.aligned." shape ".row.col.f32." type "." type      \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <>
struct Words<float> {
  static constexpr int kElements = 1;
  static uint32_t Of(float x) {
    uint32_t word;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(x));
    return word;
  }
  static uint32_t Rounded(uint32_t word) { return Of(BitsAs<float>(word)); }
  static void MultiplyAdd(const PartOfA& a, const PartOfB& b, PartOfC& c) {
    LOCKSTEP_PRODUCT("m16n8k8", "tf32", a, b, c);
  }
};
#define LOCKSTEP_WORDS_OF_TWO(T, type)                                                 \
  template <>                                                                          \
  struct Words<T> {                                                                    \
    static constexpr int kElements = 2;                                                \
    static uint32_t Rounded(uint32_t word) { return word; }                            \
    static uint32_t Of(float first, float second) {                                    \
      uint32_t word;                                                                   \
      asm("cvt.rn." type "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first)); \
      return word;                                                                     \
    }                                                                                  \
    static void MultiplyAdd(const PartOfA& a, const PartOfB& b, PartOfC& c) {          \
      LOCKSTEP_PRODUCT("m16n8k16", type, a, b, c);                                     \
    }                                                                                  \
  }
LOCKSTEP_WORDS_OF_TWO(F16, "f16");
LOCKSTEP_WORDS_OF_TWO(BF16, "bf16");

#else

inline void LoadMatrices(SharedAddress row, PartsOfMatrices& parts) {
  grid_matrices(reinterpret_cast<const void*>(row), parts, /*transposed=*/false);
}
inline void LoadTransposed(SharedAddress row, PartsOfMatrices& parts) {
  grid_matrices(reinterpret_cast<const void*>(row), parts, /*transposed=*/true);
}

template <>
struct Words<float> {
  static constexpr int kElements = 1;
  // Rounds to nearest, ties away from zero. Infinities and NaN stay as they are.
  static uint32_t Of(float x) {
    const auto bits = BitsAs<uint32_t>(x);
    return x - x == 0 ? (bits + 0x1000) & 0xffffe000 : bits;
  }
  static uint32_t Rounded(uint32_t word) { return Of(BitsAs<float>(word)); }
  static void MultiplyAdd(const PartOfA& a, const PartOfB& b, PartOfC& c) {
    grid_product(a, b, c, [](uint32_t x, uint32_t y) { return BitsAs<float>(x) * BitsAs<float>(y); });
  }
};
template <typename T>
struct WordsOfTwo {
  static constexpr int kElements = 2;
  static uint32_t Rounded(uint32_t word) { return word; }
  static uint32_t Of(float first, float second) {
    return Number<T>::Of(first).bits | static_cast<uint32_t>(Number<T>::Of(second).bits) << 16;
  }
  static void MultiplyAdd(const PartOfA& a, const PartOfB& b, PartOfC& c) {
    grid_product(a, b, c, [](uint32_t x, uint32_t y) {
      const auto element = [](uint32_t bits) { return Number<T>::OrderedOf({static_cast<uint16_t>(bits)}); };
      return element(x) * element(y) + element(x >> 16) * element(y >> 16);
    });
  }
};
template <>
struct Words<F16> : WordsOfTwo<F16> {};
template <>
struct Words<BF16> : WordsOfTwo<BF16> {};

#endif

}  // namespace lockstep::cuda
