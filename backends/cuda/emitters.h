// The table from ops to emitters, and the emitters; each family has a file. There is no GPU kernel for an op that is
// not in the table, not lowered by ProgramBuilder and not a loop: the pipeline decomposes it, or compilation fails with
// an error that names it.

#pragma once

#include <string_view>

#include "backends/cuda/emit_context.h"
#include "backends/cuda/matmul_epilogue.h"

namespace lockstep::cuda {

struct Emitter {
  enum class Layout { kRowMajor, kEither, kByProblem };  // the last: convolution_problem.h

  std::string_view op;
  absl::Status (*emit)(const Node& node, EmitContext& c);
  // Returns true if the emitter supports the node, above all its dtypes.
  bool (*supports)(const Node& node);
  Layout layout = Layout::kRowMajor;  // that its kernels need
};

// Returns true if there is a kernel for the node as it is. NeedsTf32 says whether it may be used only under TF32.
bool Supports(const Node& node);
bool NeedsTf32(const Node& node);

// Lowers a graph, or a loop's body.
absl::StatusOr<Program> LowerGraph(const Graph& graph, const LoweringContext& with);

// Returns the emitter that supports the node; null if there is none.
const Emitter* FindEmitter(const Node& node);

// loop.cc: fusions, other ops that the loop compiler accepts as a body of one node, and reorders
bool SupportsLoop(const Node& node);
absl::Status EmitLoop(const Node& node, EmitContext& c);
absl::Status EmitLoopOf(const Node& node, Graph body, EmitContext& c);  // `body` has the node's inputs and results
// Returns a kernel that copies a value of N,C,spatial from one layout to the other.
Kernel ReorderKernel(const TensorType& type, bool to_channels_last, EmitContext& c);
// matmul.cc: with cuBLASLt, and loops for integers
absl::Status EmitMatMul(const Node& node, EmitContext& c);
bool SupportsMatMul(const Node& node);
// Adds the kernel of a product of matrices, whose operands are in `reads` in the order of the op matmul.
void AddProductOf(const Node& node, const MatMulProblem& problem, std::vector<int> reads, int write, EmitContext& c);
absl::Status EmitMatMulWithEpilogue(const Node& fusion, const MatMulEpilogue& epilogue, EmitContext& c);
absl::Status EmitMatMulLoop(const Node& node, EmitContext& c);
bool SupportsMatMulLoop(const Node& node);
// convolution.cc: the op and its two gradients with cuDNN, a wide gradient of a filter as one product, and zeros if a
// tensor is empty
absl::Status EmitConvolution(const Node& node, EmitContext& c);
bool SupportsConvolution(const Node& node);
// Returns true for a gradient of a filter: cuDNN has no accurate and fast engine that reads 16 bits and writes f32.
bool RoundsFilterGradient(const Node& node);
absl::Status EmitConvolutionLoop(const Node& node, EmitContext& c);
bool SupportsConvolutionLoop(const Node& node);

// attention.cc: with products in 16 bits or TF32
absl::Status EmitAttention(const Node& node, EmitContext& c);
absl::Status EmitAttentionGrad(const Node& node, EmitContext& c);
bool SupportsAttention(const Node& node);
// pooling.cc
absl::Status EmitMaxPool(const Node& node, EmitContext& c);
absl::Status EmitMaxPoolGrad(const Node& node, EmitContext& c);
bool SupportsPool(const Node& node);
absl::Status EmitAvgPool(const Node& node, EmitContext& c);
absl::Status EmitAvgPoolGrad(const Node& node, EmitContext& c);
// indexing.cc
absl::Status EmitGather(const Node& node, EmitContext& c);
absl::Status EmitScatterSum(const Node& node, EmitContext& c);
bool SupportsScatterSum(const Node& node);
absl::Status EmitScatter(const Node& node, EmitContext& c);
bool SupportsScatter(const Node& node);
// order.cc
absl::Status EmitTopK(const Node& node, EmitContext& c);
absl::Status EmitArg(const Node& node, EmitContext& c);
bool SupportsOrder(const Node& node);
// cumulative.cc
absl::Status EmitCumulative(const Node& node, EmitContext& c);
// overlap_add.cc
absl::Status EmitOverlapAdd(const Node& node, EmitContext& c);
bool SupportsOverlapAdd(const Node& node);
// scan.cc
absl::Status EmitScan(const Node& node, EmitContext& c);
bool SupportsScan(const Node& node);
// movement.cc
absl::Status EmitConcat(const Node& node, EmitContext& c);
absl::Status EmitPad(const Node& node, EmitContext& c);
bool SupportsPad(const Node& node);
absl::Status EmitShard(const Node& node, EmitContext& c);
absl::Status EmitAxisIndex(const Node& node, EmitContext& c);
absl::Status EmitInnerCollective(const Node& node, EmitContext& c);  // along an inner dimension

}  // namespace lockstep::cuda
