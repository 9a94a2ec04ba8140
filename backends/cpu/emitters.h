// The table from op to emitter: one file per family. An op that is not in it, and is not lowered by ProgramBuilder, has no
// kernel here: the pipeline decomposes it, or compilation fails with an error that names it.

#pragma once

#include <string_view>

#include "backends/cpu/emit_context.h"

namespace lockstep::cpu {

struct Emitter {
  std::string_view op;
  // Whether there is a kernel for this node: dtypes, attributes.
  bool (*supports)(const Node& node);
  absl::Status (*emit)(const Node& node, EmitContext& c);
};

// Null if there is none.
const Emitter* FindEmitter(std::string_view op);

// matmul.cc
bool SupportsMatMul(const Node& node);
absl::Status EmitMatMul(const Node& node, EmitContext& c);
// convolution.cc
bool SupportsConvolution(const Node& node);
absl::Status EmitConvolution(const Node& node, EmitContext& c);
absl::Status EmitConvolutionGradInput(const Node& node, EmitContext& c);
absl::Status EmitConvolutionGradFilter(const Node& node, EmitContext& c);
// pooling.cc
bool SupportsPooling(const Node& node);
absl::Status EmitMaxPool(const Node& node, EmitContext& c);
absl::Status EmitMaxPoolGrad(const Node& node, EmitContext& c);
absl::Status EmitAvgPool(const Node& node, EmitContext& c);
absl::Status EmitAvgPoolGrad(const Node& node, EmitContext& c);
// softmax.cc
bool SupportsSoftmaxCrossEntropy(const Node& node);
absl::Status EmitSoftmaxCrossEntropy(const Node& node, EmitContext& c);
// data_movement.cc: what is copies of rows
bool SupportsAnything(const Node& node);
absl::Status EmitConcat(const Node& node, EmitContext& c);
absl::Status EmitPad(const Node& node, EmitContext& c);
absl::Status EmitShard(const Node& node, EmitContext& c);
absl::Status EmitAxisIndex(const Node& node, EmitContext& c);
absl::Status EmitAllGather(const Node& node, EmitContext& c);      // along an inner dimension
absl::Status EmitReduceScatter(const Node& node, EmitContext& c);  // along an inner dimension
absl::Status EmitArgMax(const Node& node, EmitContext& c);
// loop.cc: fusions, and whatever else the loop compiler takes as a body of one node
bool SupportsLoop(const Node& node);
absl::Status EmitLoop(const Node& node, EmitContext& c);

}  // namespace lockstep::cpu
