// Finds the fusions that cuBLASLt computes at the end of a product, so that the product is written to memory once. For
// the backend's lowering.

#pragma once

#include <unordered_map>
#include <unordered_set>

#include "backends/cuda/cublaslt.h"
#include "core/graph.h"

namespace lockstep::cuda {

struct MatMulEpilogue {
  const Node* product = nullptr;  // a `matmul` that only the fusion reads
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int bias = -1;  // the operand of the fusion with one value per column of the product; -1: none
};

struct MatMulEpilogues {
  std::unordered_map<const Node*, MatMulEpilogue> by_fusion;
  std::unordered_set<const Node*> products;  // of these fusions
};

// Finds these fusions of products in f32, f16 and bf16:
//
//   add(z, broadcast(bias))    relu(add(z, broadcast(bias)))    relu(z)
//
// Other fusions, which compute more or have another result, read the product in their loop. With an epilogue the sum is
// rounded once, after the epilogue. GELU is not included, because its gradient reads the product again.
MatMulEpilogues EpiloguesOf(const Graph& graph);

}  // namespace lockstep::cuda
