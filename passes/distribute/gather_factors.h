// Sends what a sum over ranks is computed from, where that is less than the sum. The gradient of a layer's weights is a
// product of its activations and of what came back to them: of a batch of few rows and of a wide layer these factors
// are small, and the product is large. So the rows of all ranks are gathered, and each rank computes the whole product:
//
//   %dw = matmul %x, %dz {transpose_a=true} : f32[4096,4096] partial(sum)
//   %dw.1 = all_reduce %dw {axis=data, kind=sum} : f32[4096,4096]
// becomes for a batch of 128
//   %x.1 = all_gather %x {axis=data, dim=0} : f32[128,4096]
//   %dz.1 = all_gather %dz {axis=data, dim=0} : f32[128,4096]
//   %dw.1 = matmul %x.1, %dz.1 {transpose_a=true} : f32[4096,4096]
//
// The gradient of an embedding is a sum of few rows into a large table: the rows are gathered, and their indices. For
// any op it is the same: a value that ranks have shares of is computed whole of operands that are whole, those between
// it and the all_reduce too, such as the sum of a product's and an embedding's gradient. Of what is gathered for one
// sum another one is computed for nothing: that of a bias.
//
// This is "sufficient factor broadcasting" of Xie et al., "Distributed machine learning via distributed sufficient
// factors" (2014), chosen for each layer as Poseidon does (Zhang et al., "Poseidon: an efficient communication
// architecture for distributed deep learning on GPU clusters", 2017). Of n ranks each sends 2 (n - 1) / n times the
// bytes of a sum that is reduced, and (n - 1) / n times those of what is gathered; and computes, besides its own rows',
// (n - 1) / n of all operations of the product. The factor is common to all three.
//
// The order of adding is that of one rank which has the whole batch: other bits than those of ranks' sums. All ranks
// compute the same of the same, so replicas stay equal.
//
// Sums in loops stay: an iteration's factors would have to be kept until the last. So do those that are reduced to
// slices, buckets of several operands, and all kinds but sums.

#pragma once

#include <string>

#include "core/placement.h"
#include "passes/pass.h"

namespace lockstep::passes {

// What compile takes for ranks on several hosts: 100 GFlop/s a rank and 1 GB/s a link. Most ranks compute more, and
// most links are slower.
inline constexpr double kOperationsPerByte = 100;

struct FactorOptions {
  // How many operations a rank computes in the time in which a byte is sent; infinity: what is computed costs nothing.
  // A sum is computed from its factors if so many times the bytes that this saves is more than its operations. 0: none
  // is.
  double operations_per_byte = 0;
  std::string axis = std::string(kDataAxis);  // of the mesh, over which sums are taken
  bool whatever_it_costs = false;             // for tests: wherever it can be
};

// After ChooseWire, as that says how many bytes a sum is.
Pass GatherFactors(FactorOptions options);

}  // namespace lockstep::passes
