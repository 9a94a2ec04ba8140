// The format of gradients on an int8 wire. The elements of a tensor, in row-major order, are cut into blocks; the last
// block is padded with zeros. A block is sent as an f32 scale, its largest magnitude / 127, and an i8 code for each
// element: element / scale, rounded to nearest. The receiver gets code * scale. An element takes 1 + 4/256 bytes.
//
// A block of zeros has the scale 0 and is received unchanged. A block of numbers so small that the scale rounds to 0 is
// received as zeros. A block with an infinite or NaN element is received as NaN in all elements, so that the error is
// visible.
//
// Used by the reference meaning of all_reduce (collective.cc) and the pass that expands it to ops
// (passes/distribute/quantize_wire.h). Pure functions; any thread.

#pragma once

#include <cstdint>
#include <span>

namespace lockstep::ops {

inline constexpr int64_t kWireBlock = 256;       // elements
inline constexpr double kLargestWireCode = 127;  // the code of the largest element of a block

// Rounds the elements of a tensor to the values that the receiver gets.
void RoundToInt8Wire(std::span<float> elements);

}  // namespace lockstep::ops
