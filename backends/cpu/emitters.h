// The emitters, one file a family, and their table from ops (emitters.cc). There is no kernel here for an op that is
// not in the table, not lowered by ProgramBuilder and not a loop: the pipeline decomposes it, or it runs by its
// reference meaning.

#pragma once

#include <string_view>

#include "backends/cpu/emit_context.h"

namespace lockstep::cpu {

struct Emitter {
  std::string_view op;
  absl::Status (*emit)(const Node& node, EmitContext& c);
  // Called if `emit` returns Unimplemented, without having added anything, because oneDNN does not support the element
  // type or empty tensors.
  absl::Status (*fallback)(const Node& node, EmitContext& c) = nullptr;
  // For products of 16-bit floats on processors that support them: true if there is a kernel that is faster than in
  // f32.
  bool (*has_fast_16_bit_kernel)(const Node& node) = nullptr;
};

// Lowers all nodes of a graph, or of a loop's body, with the emitters below.
absl::StatusOr<Program> LowerGraph(const Graph& graph, const Target& target);

// Returns the entry of the table in emitters.cc; null if there is none.
const Emitter* FindEmitter(std::string_view op);

// Returns Unimplemented if oneDNN does not support the node's types.
absl::Status CheckForOneDnn(const Node& node);
// matmul.cc, convolution.cc, pooling.cc
absl::Status EmitMatMul(const Node& node, EmitContext& c);
absl::Status EmitMatMulLoop(const Node& node, EmitContext& c);
absl::StatusOr<Kernel> MatMulKernel(const Node& node, const EmitContext& c);  // one of the two above
absl::Status EmitConvolution(const Node& node, EmitContext& c);
bool HasFastConvolution(const Node& node);  // for the three convolution ops; false if oneDNN has only its reference
                                            // implementation
absl::Status EmitConvolutionGradInput(const Node& node, EmitContext& c);
absl::Status EmitConvolutionGradFilter(const Node& node, EmitContext& c);
absl::Status EmitMaxPool(const Node& node, EmitContext& c);
absl::Status EmitMaxPoolGrad(const Node& node, EmitContext& c);
absl::Status EmitAvgPool(const Node& node, EmitContext& c);
absl::Status EmitAvgPoolGrad(const Node& node, EmitContext& c);
// reference.cc: any op except collectives, by its meaning for the interpreter
absl::Status EmitReference(const Node& node, EmitContext& c);
// cumulative.cc
absl::Status EmitCumulative(const Node& node, EmitContext& c);
// overlap_add.cc
absl::Status EmitOverlapAdd(const Node& node, EmitContext& c);
// indexing.cc
absl::Status EmitGather(const Node& node, EmitContext& c);
absl::Status EmitScatterSum(const Node& node, EmitContext& c);
absl::Status EmitScatter(const Node& node, EmitContext& c);
// top_k.cc
absl::Status EmitTopK(const Node& node, EmitContext& c);
// scan.cc
absl::Status EmitScan(const Node& node, EmitContext& c);
// softmax.cc
absl::Status EmitSoftmaxCrossEntropy(const Node& node, EmitContext& c);
// attention.cc, attention_grad.cc
absl::Status EmitAttention(const Node& node, EmitContext& c);
absl::Status EmitAttentionGrad(const Node& node, EmitContext& c);
absl::Status EmitAttentionMaskGrad(const Node& node, EmitContext& c);
// data_movement.cc: ops that copy rows
absl::Status EmitConcat(const Node& node, EmitContext& c);
absl::Status EmitPad(const Node& node, EmitContext& c);
absl::Status EmitShard(const Node& node, EmitContext& c);
absl::Status EmitAxisIndex(const Node& node, EmitContext& c);
absl::Status EmitInnerCollective(const Node& node, EmitContext& c);  // along an inner dimension
// loop.cc: fusions, and other ops that the loop compiler accepts as a body of one node
bool SupportsLoop(const Node& node);
bool IsSum(const Node& node);  // true for a fusion that only adds values of its type, which it does in any layout
absl::Status EmitLoop(const Node& node, EmitContext& c);

}  // namespace lockstep::cpu
