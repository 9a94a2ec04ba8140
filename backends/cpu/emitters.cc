#include "backends/cpu/emitters.h"

#include <array>

namespace lockstep::cpu {

const Emitter* FindEmitter(std::string_view op) {
  static constexpr Emitter kEmitters[] = {
      {"matmul", SupportsMatMul, EmitMatMul},
      {"convolution", SupportsConvolution, EmitConvolution},
      {"convolution_grad_input", SupportsConvolution, EmitConvolutionGradInput},
      {"convolution_grad_filter", SupportsConvolution, EmitConvolutionGradFilter},
      {"max_pool", SupportsPooling, EmitMaxPool},
      {"max_pool_grad", SupportsPooling, EmitMaxPoolGrad},
      {"avg_pool", SupportsPooling, EmitAvgPool},
      {"avg_pool_grad", SupportsPooling, EmitAvgPoolGrad},
      {"softmax_cross_entropy", SupportsSoftmaxCrossEntropy, EmitSoftmaxCrossEntropy},
      {"concat", SupportsAnything, EmitConcat},
      {"pad", SupportsAnything, EmitPad},
      {"shard", SupportsAnything, EmitShard},
      {"axis_index", SupportsAnything, EmitAxisIndex},
      {"all_gather", SupportsAnything, EmitAllGather},
      {"reduce_scatter", SupportsAnything, EmitReduceScatter},
      {"argmax", SupportsAnything, EmitArgMax},
  };
  for (const Emitter& emitter : kEmitters) {
    if (emitter.op == op) return &emitter;
  }
  return nullptr;
}

}  // namespace lockstep::cpu
