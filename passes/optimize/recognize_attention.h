// Replaces attention that is written out as single ops by one `attention` node. Runs before gradients are added:
// attention_grad needs no matrix of queries x keys, while the gradients of softmax keep one.
//
//   %scaled = mul %q, %c : f32[2,4,8,16]                                   // %c: a constant everywhere
//   %scores = matmul %scaled, %k {transpose_b=true} : f32[2,4,8,8]
//   %masked = add %scores, %mask : f32[2,4,8,8]                            // or a select of minus infinity
//   %p = softmax %masked {dim=3} : f32[2,4,8,8]
//   %y = matmul %p, %v : f32[2,4,8,16]
// becomes
//   %y, %log_sum_exp = attention %q, %k, %v, %mask {scale=0.25} : f32[2,4,8,16], f32[2,4,8]
//
// Factors may be on either operand of the product, or after it. k may be transposed by an op of its own. Masks, keys
// and values that are repeated for several heads are passed unrepeated. A constant mask that hides later keys becomes
// `causal`. Some exporters add a select so that a query that sees no keys gives zeros where the softmax is NaN; it is
// removed too. Without that select, such a query now gives zeros instead of NaN. If anything else uses the scores or
// the probabilities, nothing is replaced. Unused nodes remain for dce. A placed program is left alone.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass RecognizeAttention();

}  // namespace lockstep::passes
