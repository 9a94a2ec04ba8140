// Which fusions cuBLASLt computes at the end of a product, so that it goes to memory once. For the backend's lowering.

#pragma once

#include <unordered_map>
#include <unordered_set>

#include "backends/cuda/cublaslt.h"
#include "core/graph.h"

namespace lockstep::cuda {

struct MatMulEpilogue {
  const Node* product = nullptr;  // a `matmul` that nothing but the fusion reads
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int bias = -1;  // operand of the fusion: a value for each column of the product; -1: none
};

struct MatMulEpilogues {
  std::unordered_map<const Node*, MatMulEpilogue> by_fusion;
  std::unordered_set<const Node*> products;  // of these fusions
};

// Of products of f32, f16 and bf16, the fusions
//
//   add(z, broadcast(bias))    relu(add(z, broadcast(bias)))    relu(z)
//
// and no others: what computes more, or has another result, reads the product in its loop. The sum is then rounded
// once, after the epilogue. GELU is not among them: where a gradient follows, its argument is read again.
MatMulEpilogues EpiloguesOf(const Graph& graph);

}  // namespace lockstep::cuda
