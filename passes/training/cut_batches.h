// How a batch is cut into micro-batches, and put together again: by strides, so that each rank of a data axis has its
// share of each micro-batch whatever the number of ranks. Called by AccumulateGradients.
//
// A dimension of the batch consists of granules, as many in every value of a step: rows of a batch of 8 may be one
// granule each, and those of 8 sentences of 5 words that are one after the other [40], five rows. Micro-batch j of k
// has the granules j, j + k, j + 2 k, ….

#pragma once

#include <cstdint>

#include "core/builder.h"

namespace lockstep::passes {

struct BatchCut {
  int64_t micro_batches = 1;
  int64_t granules = 1;  // of the batch; a multiple of micro_batches

  // [k, …] of x, whose dimension `dim` is of the batch: dimension 0 counts the micro-batches, and dim + 1 has the rows
  // of one. Requires that `granules` divides x.shape()[dim].
  Value Cut(Builder& b, Value x, int64_t dim) const;
  // The x that Cut made `cut` of.
  Value Join(Builder& b, Value cut, int64_t dim) const;
};

}  // namespace lockstep::passes
