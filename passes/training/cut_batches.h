// Cuts a batch into micro-batches, and joins them again. The cut is strided, so that each rank of a data axis has its
// share of each micro-batch for any number of ranks. Called by AccumulateGradients.
//
// A dimension of the batch consists of granules, the same number in each value of a step. For a batch of 8, a granule
// may be one row of [8, …], or five rows of [40, …], where 8 sentences of 5 words are one after the other. Micro-batch
// j of k has the granules j, j + k, j + 2 k, ….

#pragma once

#include <cstdint>

#include "core/builder.h"

namespace lockstep::passes {

struct BatchCut {
  int64_t micro_batches = 1;
  int64_t granules = 1;  // the number of granules of the batch; a multiple of micro_batches

  // Returns [k, …] of x, whose dimension `dim` is the batch: dimension 0 is the micro-batch, and dimension dim + 1 has
  // the rows of one. Requires that `granules` divides x.shape()[dim].
  Value Cut(Builder& b, Value x, int64_t dim) const;
  // Returns the inverse of Cut.
  Value Join(Builder& b, Value cut, int64_t dim) const;
};

}  // namespace lockstep::passes
