// Keeps the rows of several dimensions apart through layers that were exported as ones of a matrix: merged, the samples
// of a batch that is not the first of the dimensions are no range of rows, and ranks would gather them
// (passes/distribute/distribute.h), or micro-batches need two passes over the model.
//
//   %rows = reshape %x {shape=[12, 8]} : f32[12,8]                         // %x: f32[3,4,8], the batch is the second
//   %product = matmul %rows, %w : f32[12,5]
//   %wide = broadcast %bias {dims=[1], shape=[12, 5]} : f32[12,5]
//   %sum = add %product, %wide : f32[12,5]
//   %y = reshape %sum {shape=[3, 4, 5]} : f32[3,4,5]
// becomes
//   %product = matmul %x, %w : f32[3,4,5]
//   %wide = broadcast %bias {dims=[2], shape=[3, 4, 5]} : f32[3,4,5]
//   %y = add %product, %wide : f32[3,4,5]
//
// Between the reshape that merges and the one that undoes it there may be products with a matrix, elementwise ops, and
// broadcasts of what is the same for every row. Where anything else uses a product or an elementwise result, the whole
// stays merged; reshapes, broadcasts and what a product has for its matrix may be there twice. It computes the same
// products and sums. No mesh: a placed program is left alone.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass SeparateRows();

}  // namespace lockstep::passes
