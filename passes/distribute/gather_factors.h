// Sends the factors of a sum over ranks instead of the sum, if they are smaller. The gradient of a layer's weights is
// the product of its activations and of the gradients of its outputs. With few rows and a wide layer these factors are
// small and the product is large. Then the rows of all ranks are gathered, and each rank computes the whole product:
//
//   %dw = matmul %x, %dz {transpose_a=true} : f32[4096,4096] partial(sum)
//   %dw.1 = all_reduce %dw {axis=data, kind=sum} : f32[4096,4096]
// becomes for a batch of 128
//   %x.1 = all_gather %x {axis=data, dim=0} : f32[128,4096]
//   %dz.1 = all_gather %dz {axis=data, dim=0} : f32[128,4096]
//   %dw.1 = matmul %x.1, %dz.1 {transpose_a=true} : f32[4096,4096]
//
// The gradient of an embedding is a sum of few rows into a large table: the rows and their indices are gathered. The
// pass works for any op that computes a whole result from whole operands. Ops between the product and the all_reduce
// are computed whole too, such as the sum of a product's and an embedding's gradient. Values that were gathered for one
// sum make other sums free, such as the gradient of a bias.
//
// This is "sufficient factor broadcasting" of Xie et al., "Distributed machine learning via distributed sufficient
// factors" (2014), chosen for each layer as Poseidon does (Zhang et al., "Poseidon: an efficient communication
// architecture for distributed deep learning on GPU clusters", 2017). Each of n ranks sends 2 (n - 1) / n times the
// bytes of a sum that is reduced, and (n - 1) / n times the bytes of gathered values. In addition to its own rows it
// computes (n - 1) / n of all operations of the product. The factor (n - 1) / n is common to all three.
//
// The order of additions is that of one rank with the whole batch, so the bits differ from those of sums over ranks.
// All ranks compute the same from the same values, so replicas stay equal.
//
// Sums in loops stay: the factors of all iterations would have to be kept until the last. Sums that are reduced to
// slices, buckets of several operands and reductions other than sums stay, too.

#pragma once

#include <string>

#include "core/placement.h"
#include "passes/pass.h"

namespace lockstep::passes {

// The ratio that `compile` uses for ranks on several hosts: 100 GFlop/s for each rank and 1 GB/s for each link. Most
// ranks are faster, and most links are slower.
inline constexpr double kOperationsPerByte = 100;

struct FactorOptions {
  // The number of operations that a rank computes in the time in which one byte is sent. A sum is computed from its
  // factors if the saved bytes times this number exceed the added operations. Infinity: computing is free. 0: the pass
  // does nothing.
  double operations_per_byte = 0;
  std::string axis = std::string(kDataAxis);  // the mesh axis over which sums are taken
  bool ignore_cost = false;                   // for tests: gathers factors wherever it is possible
};

// Runs after ChooseWire, which determines the bytes of a sum.
Pass GatherFactors(FactorOptions options);

}  // namespace lockstep::passes
