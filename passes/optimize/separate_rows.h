// Keeps several dimensions of rows separate through layers that were exported with the rows merged into one dimension.
// If the batch is not the first of the merged dimensions, its samples are not contiguous rows. Then ranks would gather
// them (passes/distribute/distribute.h), and micro-batches would need two passes over the model.
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
// Between the reshape that merges rows and the one that separates them, products with a matrix, elementwise ops, and
// broadcasts of values that are equal for all rows are allowed. If anything else uses a product or an elementwise
// result, all of them stay merged. Reshapes and broadcasts may be duplicated; the matrix of a product may have other
// uses. The products and sums are the same as before. A placed program is left alone.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass SeparateRows();

}  // namespace lockstep::passes
