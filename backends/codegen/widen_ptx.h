// Text of PTX without the arithmetic of 16 bits that NVIDIA's assembler gets wrong. A pure function; any thread.
//
// ptxas 13.0, and with it the drivers of that age, which compile PTX when a program is loaded, know the result of
// `neg.s16` and `abs.s16` (and of a `sub.s16` from 0) in 32 bits and forget that it wraps: of -32768 it is greater than
// 0, and 32768 where it is converted. On sm_90 and sm_100 they make one instruction of `max.s16`, `min.s16`, `max.u16`
// or `min.u16` and a comparison of what it gives with an operand, VIMNMX.S16x2, and take the answer for the half that
// is not there. Decision 0052 has what was found, and how.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The same program, in which each of these instructions extends its operands to 32 bits, computes there, and takes the
// lower half.
std::string WidenPtx(std::string_view ptx);

}  // namespace lockstep
