// How gradients travel as 8-bit integers. The elements of a tensor, in row-major order, are cut into blocks, of which
// the last is filled up with zeros. A block travels as a scale, f32, which is a 127th of its largest magnitude, and a
// code for each element, i8: element / scale, rounded to the nearest. What arrives is code * scale. So an element
// weighs 1 + 4/256 bytes.
//
// A block of zeros has the scale 0, and arrives as it was. A block of numbers so small that a 127th of them is 0
// arrives as zeros. A block with an element that is infinite or NaN arrives as NaN, all of it: nobody takes it for
// numbers.
//
// For the reference meaning of all_reduce (collective.cc) and the pass that writes it out
// (passes/distribute/quantize_wire.h). Pure functions; any thread.

#pragma once

#include <cstdint>
#include <span>

namespace lockstep::ops {

inline constexpr int64_t kWireBlock = 256;       // elements
inline constexpr double kLargestWireCode = 127;  // of an element that is as large as any of its block

// The elements of a tensor as they arrive.
void RoundToInt8Wire(std::span<float> elements);

}  // namespace lockstep::ops
