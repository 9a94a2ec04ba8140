#include "backends/cpu/emitters.h"

namespace lockstep::cpu {
namespace {

constexpr Emitter kEmitters[] = {
    {"matmul", EmitMatMul, EmitMatMulLoop, [](const Node&) { return true; }},
    {"convolution", EmitConvolution, EmitReference, HasFastConvolution},
    {"convolution_grad_input", EmitConvolutionGradInput, EmitReference, HasFastConvolution},
    {"convolution_grad_filter", EmitConvolutionGradFilter, EmitReference, HasFastConvolution},
    {"max_pool", EmitMaxPool, EmitReference},
    {"max_pool_grad", EmitMaxPoolGrad, EmitReference},
    {"avg_pool", EmitAvgPool, EmitReference},
    {"avg_pool_grad", EmitAvgPoolGrad, EmitReference},
    {"softmax_cross_entropy", EmitSoftmaxCrossEntropy, EmitReference},
    {"attention", EmitAttention},
    {"attention_grad", EmitAttentionGrad},
    {"attention_mask_grad", EmitAttentionMaskGrad},
    {"cumulative_sum", EmitCumulative},
    {"cumulative_prod", EmitCumulative},
    {"overlap_add", EmitOverlapAdd},
    {"gather", EmitGather},
    {"scatter_sum", EmitScatterSum},
    {"scatter", EmitScatter},
    {"top_k", EmitTopK},
    {"scan", EmitScan},
    {"concat", EmitConcat},
    {"pad", EmitPad},
    {"shard", EmitShard},
    {"axis_index", EmitAxisIndex},
    {"all_gather", EmitInnerCollective},
    {"reduce_scatter", EmitInnerCollective},
    {"all_to_all", EmitInnerCollective},
    {"collective_gather", EmitInnerCollective},
    {"collective_scatter", EmitInnerCollective},
};

}  // namespace

const Emitter* FindEmitter(std::string_view op) {
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
