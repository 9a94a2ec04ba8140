// Softmax on rows in memory, with the processor's vectors: for attention's blocks of scores, and for logits. Any thread
// may call it.

#pragma once

#include <cstdint>

namespace lockstep::cpu {

// A step of an online softmax over `rows` rows of `count` scores, `stride` apart. Scores become exp(score - max), where
// max[i] is the largest score of a row so far, ignoring NaN (0 is used if that is minus infinity). sum[i] is the sum of
// these so far. factor[i] is the factor that the old sum was multiplied by; the caller must multiply values computed
// from earlier scores by it too. Before the first step max is minus infinity and sum is 0. f32 results are exact to 2
// units in the last place; below 2e-38 they are 0.
void SoftmaxStep(float* scores, int64_t rows, int64_t count, int64_t stride, float* max, float* sum, float* factor);
void SoftmaxStep(double* scores, int64_t rows, int64_t count, int64_t stride, double* max, double* sum, double* factor);

// Multiplies each row of x, [rows, count], by its factor. Rows with factor 0 become 0, whatever their elements.
void ScaleRows(float* x, int64_t rows, int64_t count, const float* factor);
void ScaleRows(double* x, int64_t rows, int64_t count, const double* factor);

// With p = exp(s[i] - log_sum_exp): sets s[i] to p and dp[i] to p * (dp[i] - delta).
void ScoreGradients(float* s, float* dp, int64_t count, float log_sum_exp, float delta);
void ScoreGradients(double* s, double* dp, int64_t count, double log_sum_exp, double delta);

}  // namespace lockstep::cpu
