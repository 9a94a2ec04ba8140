// Softmax on rows in memory, with the vectors of the processor at hand: of attention's blocks of scores, and of logits.
// Any thread.

#pragma once

#include <cstdint>

namespace lockstep::cpu {

// A step of an online softmax over `rows` rows of `count` scores, `stride` apart: scores become exp(score - max), where
// max[i] is the largest of a row so far (NaN aside; if that is minus infinity: 0), sum[i] the sum of these so far, and
// factor[i] what the sum was multiplied with, and what came of it before has to be. Before the first step max is minus
// infinity and sum 0. In f32 to 2 units in the last place; what is below 2e-38 is 0.
void SoftmaxStep(float* scores, int64_t rows, int64_t count, int64_t stride, float* max, float* sum, float* factor);
void SoftmaxStep(double* scores, int64_t rows, int64_t count, int64_t stride, double* max, double* sum, double* factor);

// Each row of x, [rows, count], times its factor; rows of factor 0 become 0, whatever they are.
void ScaleRows(float* x, int64_t rows, int64_t count, const float* factor);
void ScaleRows(double* x, int64_t rows, int64_t count, const double* factor);

// With p = exp(s[i] - log_sum_exp): s[i] becomes p and dp[i] becomes p * (dp[i] - delta).
void ScoreGradients(float* s, float* dp, int64_t count, float log_sum_exp, float delta);
void ScoreGradients(double* s, double* dp, int64_t count, double log_sum_exp, double delta);

}  // namespace lockstep::cpu
