#include "backends/cpu/emitters.h"

#include <array>

namespace lockstep::cpu {

const Emitter* FindEmitter(std::string_view op) {
  static constexpr Emitter kEmitters[] = {
      {"matmul", EmitMatMul, EmitMatMulLoop},
      {"convolution", EmitConvolution, EmitReference},
      {"convolution_grad_input", EmitConvolutionGradInput, EmitReference},
      {"convolution_grad_filter", EmitConvolutionGradFilter, EmitReference},
      {"max_pool", EmitMaxPool, EmitReference},
      {"max_pool_grad", EmitMaxPoolGrad, EmitReference},
      {"avg_pool", EmitAvgPool, EmitReference},
      {"avg_pool_grad", EmitAvgPoolGrad, EmitReference},
      {"softmax_cross_entropy", EmitSoftmaxCrossEntropy, EmitReference},
      {"concat", EmitConcat},
      {"pad", EmitPad},
      {"shard", EmitShard},
      {"axis_index", EmitAxisIndex},
      {"all_gather", EmitAllGather},
      {"reduce_scatter", EmitReduceScatter},
  };
  for (const Emitter& emitter : kEmitters) {
    if (emitter.op == op) return &emitter;
  }
  return nullptr;
}

absl::Status CheckForOneDnn(const Node& node) {
  bool fits = OneDnnType(node.type().dtype).has_value() && node.type().num_elements() > 0;
  for (const Value& operand : node.operands()) fits = fits && operand.type().num_elements() > 0;
  return fits ? absl::OkStatus() : absl::UnimplementedError("a type that oneDNN does not have, or an empty tensor");
}

}  // namespace lockstep::cpu
