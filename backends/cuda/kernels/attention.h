// Arguments of the kernels of attention and of its gradients (core/ops/attention.h).

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// Where the rows of all heads lie, in elements: row i of head h begins at element
// h / heads * batch + h % heads * head + i * row, where `heads` is the number of heads in a batch.
struct AttentionRows {
  int64_t heads, batch, head, row;
};

// attention_<dtype>_<size>: y and log_sum_exp; a block has some queries of a head (AttentionBlockOf).
// attention_grad_q_<dtype>_<size>: dq; a block has some queries of a head.
// attention_grad_kv_<dtype>_<size>: dk and dv; a block has some keys of a head of k.
//
// <dtype> is f16, bf16 or f32. Products of f32 are computed in TF32. The softmax is computed in f32, and its result is
// rounded to <dtype> for the product with v. <size> is 64 or 128; the size of keys and that of values are at most that.
// All rows but those of the mask are whole multiples of 16 bytes, at such addresses.
struct AttentionArgs {
  static constexpr int kPointers = 11;
  const void *q, *k, *v;
  const void* mask;    // null; bool if mask_is_bool, else <dtype>
  float* log_sum_exp;  // [heads, queries]: a result of attention, an operand of the gradients
  void* y;             // results, and null in the kernels of which they are none
  void *dq, *dk, *dv;
  const void* dy;      // operands of the gradients, else null
  const float* delta;  // [heads, queries]
  AttentionRows q_rows, k_rows, v_rows, y_rows, dy_rows, dq_rows, dk_rows, dv_rows;
  AttentionRows mask_rows;  // of [heads, queries, keys]; strides are 0 where heads or queries share rows
  int64_t heads;            // of q
  int32_t group;            // head h of q uses head h / group of k and v
  int32_t queries, keys;
  int32_t past;              // if causal, query i sees the keys [0, i + past]; from -queries to keys
  int32_t size, value_size;  // of rows, in elements
  float scale, softcap;
  uint32_t causal, mask_is_bool;
};

enum class AttentionKernel { kForward, kGradQ, kGradKV };

// The blocks of a kernel. A warp has 16 rows, queries or keys, whose sums are in its registers.
struct AttentionBlock {
  int threads;
  int at_once;  // on a multiprocessor, as its registers allow

  constexpr int rows() const { return threads / 2; }
};
constexpr AttentionBlock AttentionBlockOf(AttentionKernel kernel, int64_t element_bytes, int64_t size) {
  const bool has_large_rows = size > 64, is_forward = kernel == AttentionKernel::kForward;
  if (has_large_rows) return {128, is_forward ? 3 : 2};
  if (is_forward || (kernel == AttentionKernel::kGradQ && element_bytes == 2)) return {256, 2};
  return {128, element_bytes == 2 ? 3 : 2};
}

}  // namespace lockstep::cuda
