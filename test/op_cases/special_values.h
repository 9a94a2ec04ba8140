// The rows of the table once more with NaN, infinities, zeros of both signs and denormals among their operands: what a
// backend makes of those must be what the interpreter, and with it PyTorch, makes of them.

#pragma once

#include <span>
#include <string>
#include <vector>

#include "test/op_cases/op_case.h"

namespace lockstep {

struct SpecialInputs {
  std::string name;                         // "nan"
  std::vector<std::vector<Tensor>> inputs;  // as RankInputs gives them
};

// For each special value the inputs of every rank, where about every seventh element of each operand of floats is that
// value; one set with all values among each other; and one of nothing but -inf. The same at each call. Without what the
// row is exempt from; empty if it has no elements of floats.
std::vector<SpecialInputs> SpecialRankInputs(const OpCase& row);

// What special values have no agreed meaning for, or are not kept apart by any kernel for the op.
enum class Exemption {
  kTapsOverZeros,  // an element may be that of either result of taps_over_zeros.h
  kDenormals,      // no denormals
  kMaySpread,      // NaN may come out where none is expected, but never the other way round
};
// Whether the row is exempt. The list, with the reasons, is in special_values.cc.
bool IsExempt(const OpCase& row, Exemption exemption);

// What differs between two tensors if one looks at more than numbers, or the empty string. NaN equals NaN; infinities
// must be the same; a zero has the sign of the expected one where the row's op defines it; where a denormal is
// expected, none is taken for zero. Other elements may differ by `tolerance` times the largest finite magnitude
// expected. An element may be that of any tensor of `expected`.
std::string SpecialDifference(const OpCase& row, const Tensor& actual, std::span<const Tensor> expected,
                              double tolerance);
std::string SpecialDifference(const OpCase& row, const Tensor& actual, const Tensor& expected, double tolerance);

}  // namespace lockstep
