// Small models with a batch of 12, which 1, 2, 3 and 4 ranks share, for the tests of this folder.

#pragma once

#include <string_view>

namespace lockstep {

inline constexpr std::string_view kMlp = R"(
graph @mlp(%x: f32[12,5] split(0), state %w1: f32[5,7], state %b1: f32[7], state %w2: f32[7,3]) -> (logits: f32[12,3] split(0)) {
  %h  = matmul %x, %w1 : f32[12,7]
  %bb = broadcast %b1 {shape=[12,7], dims=[1]} : f32[12,7]
  %hb = add %h, %bb : f32[12,7]
  %a  = tanh %hb : f32[12,7]
  %z  = matmul %a, %w2 : f32[12,3]
  return %z
}
)";

inline constexpr std::string_view kConvNet = R"(
graph @convnet(%x: f32[12,2,6,6] split(0), state %k: f32[4,2,3,3], state %scale: f32[4], state %bias: f32[4], state %w: f32[16,3]) -> (logits: f32[12,3] split(0)) {
  %c = convolution %x, %k {stride=[1,1], padding_low=[0,0], padding_high=[0,0], dilation=[1,1]} : f32[12,4,4,4]
  %n, %mean, %var = batch_norm_training %c, %scale, %bias {epsilon=1e-5} : f32[12,4,4,4], f32[4], f32[4]
  %r = relu %n : f32[12,4,4,4]
  %p = max_pool %r {window=[2,2], stride=[2,2], padding_low=[0,0], padding_high=[0,0], dilation=[1,1]} : f32[12,4,2,2]
  %f = reshape %p {shape=[12,16]} : f32[12,16]
  %z = matmul %f, %w : f32[12,3]
  return %z
}
)";

inline constexpr std::string_view kEmbedding = R"(
graph @tokens(%x: i64[12,4] split(0), state %table: f32[5,6], state %w: f32[24,3]) -> (logits: f32[12,3] split(0)) {
  %e = gather %table, %x {dim=0} : f32[12,4,6]
  %f = reshape %e {shape=[12,24]} : f32[12,24]
  %z = matmul %f, %w : f32[12,3]
  return %z
}
)";

// The batch is split within the loop, in which ranks do not communicate: the gradients of its weights are sums over the
// loop and then over the ranks.
inline constexpr std::string_view kRecurrent = R"(
graph @recurrent(%x: f32[12,4,5] split(0), state %w: f32[5,6], state %r: f32[6,6], state %b: f32[6], state %v: f32[6,3]) -> (logits: f32[12,3] split(0)) {
  %xs = transpose %x {permutation=[1,0,2]} : f32[4,12,5]
  %0 = constant {value=dense<f32[]: 0.0>} : f32[]
  %h = broadcast %0 {dims=[], shape=[12,6]} : f32[12,6]
  %last = scan %h, %xs, %w, %r, %b {carried=1, length=4, scanned=1, body=
    graph @step(%h: f32[12,6], %x: f32[12,5], %w: f32[5,6], %r: f32[6,6], %b: f32[6]) -> (h: f32[12,6]) {
      %of_x = matmul %x, %w : f32[12,6]
      %of_h = matmul %h, %r : f32[12,6]
      %sum = add %of_x, %of_h : f32[12,6]
      %bias = broadcast %b {dims=[1], shape=[12,6]} : f32[12,6]
      %biased = add %sum, %bias : f32[12,6]
      %next = tanh %biased : f32[12,6]
      return %next
    }} : f32[12,6]
  %z = matmul %last, %v : f32[12,3]
  return %z
}
)";

// Six layers, a value that skips two of them, and a table that both the first and the last layer use.
inline constexpr std::string_view kDeep = R"(
graph @deep(%x: f32[12,6] split(0), state %w: f32[6,6], state %b: f32[6], state %u: f32[6,6], state %v: f32[6,6], state %z: f32[6,3]) -> (logits: f32[12,3] split(0)) {
  %h0 = matmul %x, %w : f32[12,6]
  %bb = broadcast %b {shape=[12,6], dims=[1]} : f32[12,6]
  %h1 = add %h0, %bb : f32[12,6]
  %a1 = tanh %h1 : f32[12,6]
  %h2 = matmul %a1, %u : f32[12,6]
  %a2 = tanh %h2 : f32[12,6]
  %h3 = matmul %a2, %v : f32[12,6]
  %s3 = add %h3, %a1 : f32[12,6]
  %a3 = tanh %s3 : f32[12,6]
  %h4 = matmul %a3, %w {transpose_b=true} : f32[12,6]
  %a4 = tanh %h4 : f32[12,6]
  %y  = matmul %a4, %z : f32[12,3]
  return %y
}
)";

// Dropout masks on both stages, from one seed and step.
inline constexpr std::string_view kDropouts = R"(
graph @dropouts(%x: f32[12,5] split(0), state %w1: f32[5,16], state %w2: f32[16,3]) -> (logits: f32[12,3] split(0)) {
  %p = constant {value=dense<f32[]: 0.3>} : f32[]
  %h  = matmul %x, %w1 : f32[12,16]
  %a  = tanh %h : f32[12,16]
  %d, %dm = dropout %a, %p : f32[12,16], bool[12,16]
  %z  = matmul %d, %w2 : f32[12,3]
  %e, %em = dropout %z, %p : f32[12,3], bool[12,3]
  return %e
}
)";

}  // namespace lockstep
