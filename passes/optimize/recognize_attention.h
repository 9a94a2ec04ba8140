// Makes one attention of the written-out form, before its gradients are made of that: attention_grad needs no matrix of
// queries x keys, which the gradients of softmax keep.
//
//   %scaled = mul %q, %c : f32[2,4,8,16]                                   // %c: a constant everywhere
//   %scores = matmul %scaled, %k {transpose_b=true} : f32[2,4,8,8]
//   %masked = add %scores, %mask : f32[2,4,8,8]                            // or a select of minus infinity
//   %p = softmax %masked {dim=3} : f32[2,4,8,8]
//   %y = matmul %p, %v : f32[2,4,8,16]
// becomes
//   %y, %log_sum_exp = attention %q, %k, %v, %mask {scale=0.25} : f32[2,4,8,16], f32[2,4,8]
//
// Factors may be on either side of the product, or after it; k may be transposed by an op of its own. Masks and keys
// and values that are repeated for several heads are given once. A constant mask that hides what comes later is
// `causal`. What exporters write so that a query that sees nothing gives zeros (a select where the softmax is NaN) goes
// too; where they write no such thing, that query now gives zeros instead of NaN. Scores or probabilities that anything
// else uses stay as they are, and so does the whole. The nodes that are no longer used remain for dce. No mesh: a
// placed program is left alone.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass RecognizeAttention();

}  // namespace lockstep::passes
