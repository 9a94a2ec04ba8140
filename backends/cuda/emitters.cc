#include "backends/cuda/emitters.h"

#include <algorithm>
#include <iterator>

namespace lockstep::cuda {
namespace {

bool Always(const Node&) { return true; }

// The first emitter that supports a node is used.
constexpr Emitter kEmitters[] = {
    {"matmul", EmitMatMul, SupportsMatMul},
    {"matmul", EmitMatMulLoop, SupportsMatMulLoop},
    {"convolution", EmitConvolution, SupportsConvolution, Emitter::Layout::kByProblem},
    {"convolution", EmitConvolutionLoop, SupportsConvolutionLoop},
    {"convolution_grad_input", EmitConvolution, SupportsConvolution, Emitter::Layout::kByProblem},
    {"convolution_grad_input", EmitConvolutionLoop, SupportsConvolutionLoop},
    {"convolution_grad_filter", EmitConvolution, SupportsConvolution, Emitter::Layout::kByProblem},
    {"convolution_grad_filter", EmitConvolutionLoop, SupportsConvolutionLoop},
    {"attention", EmitAttention, SupportsAttention},
    {"attention_grad", EmitAttentionGrad, SupportsAttention},
    {"max_pool", EmitMaxPool, SupportsPool, Emitter::Layout::kEither},
    {"max_pool_grad", EmitMaxPoolGrad, SupportsPool, Emitter::Layout::kEither},
    {"avg_pool", EmitAvgPool, SupportsPool, Emitter::Layout::kEither},
    {"avg_pool_grad", EmitAvgPoolGrad, SupportsPool, Emitter::Layout::kEither},
    {"gather", EmitGather, Always},
    {"scatter_sum", EmitScatterSum, SupportsScatterSum},
    {"scatter", EmitScatter, SupportsScatter},
    {"top_k", EmitTopK, SupportsOrder},
    {"argmax", EmitArg, SupportsOrder},
    {"argmin", EmitArg, SupportsOrder},
    {"cumulative_sum", EmitCumulative, Always},
    {"cumulative_prod", EmitCumulative, Always},
    {"overlap_add", EmitOverlapAdd, SupportsOverlapAdd},
    {"scan", EmitScan, SupportsScan},
    {"concat", EmitConcat, Always},
    {"pad", EmitPad, SupportsPad},
    {"shard", EmitShard, Always},
    {"axis_index", EmitAxisIndex, Always},
    {"all_gather", EmitInnerCollective, Always},
    {"reduce_scatter", EmitInnerCollective, Always},
    {"all_to_all", EmitInnerCollective, Always},
    {"collective_gather", EmitInnerCollective, Always},
    {"collective_scatter", EmitInnerCollective, Always},
};

}  // namespace

const Emitter* FindEmitter(const Node& node) {
  const auto* found = std::find_if(std::begin(kEmitters), std::end(kEmitters), [&](const Emitter& emitter) {
    return node.Is(emitter.op) && emitter.supports(node);
  });
  return found == std::end(kEmitters) ? nullptr : found;
}

}  // namespace lockstep::cuda
