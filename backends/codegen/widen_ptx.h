// Replaces the 16-bit arithmetic in PTX that NVIDIA's assembler gets wrong. A pure function; any thread may call it.
//
// The error is in ptxas 13.0, and in drivers of the same age, which compile PTX when a program is loaded. They track
// the result of `neg.s16` and `abs.s16` (and of `sub.s16` from 0) in 32 bits and forget that it wraps: for -32768 the
// result is greater than 0, and is converted to 32768. On sm_90 and sm_100 they merge `max.s16`, `min.s16`, `max.u16`
// or `min.u16` and a comparison of the result with an operand into one instruction, VIMNMX.S16x2, and use the
// comparison of the wrong half. Decision 0052 describes the findings.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Returns the same program, in which each of these instructions extends its operands to 32 bits, computes in 32 bits,
// and truncates the result.
std::string WidenPtx(std::string_view ptx);

}  // namespace lockstep
