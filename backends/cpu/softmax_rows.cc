#include "backends/cpu/softmax_rows.h"

#include <bit>
#include <cmath>
#include <limits>

#define LOCKSTEP_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))

namespace lockstep::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Computes e^x with the polynomial of Cephes' expf on [-ln 2 / 2, ln 2 / 2], times a power of two. It has no branches,
// so that loops are vectorized.
[[gnu::always_inline]] inline float Exp(float x) {
  constexpr float kLow = -86.6F, kHigh = 88.72F;  // the result is normal in this range
  constexpr float kRound = 12582912.0F;           // 1.5 * 2^23: after adding it, the low bits hold an integer
  const float bounded = x < kLow ? kLow : x > kHigh ? kHigh : x;
  const float shifted = bounded * 1.44269504088896341F + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const float y = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
  const float above = x > kHigh ? kInf : y;
  const float below = x < kLow ? 0.0F : above;
  return x == x ? below : x;
}
inline double Exp(double x) { return std::exp(x); }

template <typename T>
[[gnu::always_inline]] inline T Max(const T* x, int64_t count) {
  T max = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < count; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

template <typename T>
[[gnu::always_inline]] inline T ExpAndSum(T* x, int64_t count, T less) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    x[i] = Exp(x[i] - less);
    sum += x[i];
  }
  return sum;
}

template <typename T>
[[gnu::always_inline]] inline void Step(T* scores, int64_t rows, int64_t count, int64_t stride, T* max, T* sum,
                                        T* factor) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < rows; ++i) {
    T* const row = scores + i * stride;
    const T of_row = Max(row, count), next = of_row > max[i] ? of_row : max[i];
    const T less = next == kNone ? T(0) : next;  // nothing has been seen yet, or all is NaN
    factor[i] = Exp(max[i] - less);
    sum[i] = sum[i] * factor[i] + ExpAndSum(row, count, less);
    max[i] = next;
  }
}

template <typename T>
[[gnu::always_inline]] inline void Scale(T* x, int64_t rows, int64_t count, const T* factor) {
  for (int64_t i = 0; i < rows; ++i) {
    T* const row = x + i * count;
    const T by = factor[i];
    if (by == 1) continue;
    if (by == 0) {
      for (int64_t j = 0; j < count; ++j) row[j] = 0;
      continue;
    }
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) row[j] *= by;
  }
}

template <typename T>
[[gnu::always_inline]] inline void GradientsOfScores(T* s, T* dp, int64_t count, T log_sum_exp, T delta) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    s[i] = Exp(s[i] - log_sum_exp);
    dp[i] = s[i] * (dp[i] - delta);
  }
}

}  // namespace

LOCKSTEP_CLONES void SoftmaxStep(float* scores, int64_t rows, int64_t count, int64_t stride, float* max, float* sum,
                                 float* factor) {
  Step(scores, rows, count, stride, max, sum, factor);
}
void SoftmaxStep(double* scores, int64_t rows, int64_t count, int64_t stride, double* max, double* sum,
                 double* factor) {
  Step(scores, rows, count, stride, max, sum, factor);
}

LOCKSTEP_CLONES void ScaleRows(float* x, int64_t rows, int64_t count, const float* factor) {
  Scale(x, rows, count, factor);
}
void ScaleRows(double* x, int64_t rows, int64_t count, const double* factor) { Scale(x, rows, count, factor); }

LOCKSTEP_CLONES void ScoreGradients(float* s, float* dp, int64_t count, float log_sum_exp, float delta) {
  GradientsOfScores(s, dp, count, log_sum_exp, delta);
}
void ScoreGradients(double* s, double* dp, int64_t count, double log_sum_exp, double delta) {
  GradientsOfScores(s, dp, count, log_sum_exp, delta);
}

}  // namespace lockstep::cpu
