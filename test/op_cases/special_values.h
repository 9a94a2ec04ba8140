// The rows of the table once more, with NaN, infinities, zeros of both signs and denormals among their operands: a
// backend must give the results of the interpreter, which are those of PyTorch.

#pragma once

#include <span>
#include <string>
#include <vector>

#include "test/op_cases/op_case.h"

namespace lockstep {

struct SpecialInputs {
  std::string name;                         // "nan"
  std::vector<std::vector<Tensor>> inputs;  // in the form of RankInputs
};

// Returns, for each special value, the inputs of every rank, in which about every seventh element of each float operand
// is that value; one set with all values mixed; and one with only -inf. Equal at each call. Values from which the row
// is exempt are left out. Empty if the row has no float elements.
std::vector<SpecialInputs> SpecialRankInputs(const OpCase& row);

// Special values without an agreed meaning for an op, or that no kernel of the op treats as required.
enum class Exemption {
  kTapsOverZeros,  // an element may be that of either result in taps_over_zeros.h
  kDenormals,      // no denormals
  kMaySpread,      // NaN may appear where it is not expected, but must not be missing
};
// Returns true if the row is exempt. The list, with reasons, is in special_values.cc.
bool IsExempt(const OpCase& row, Exemption exemption);

// Returns the first difference of the tensors, or "". NaN equals NaN; infinities must be equal; a zero must have the
// expected sign if the row's op defines it; an expected denormal must not be flushed to zero. Other elements may differ
// by `tolerance` times the largest finite expected magnitude. An element may equal that of any tensor of `expected`.
std::string SpecialDifference(const OpCase& row, const Tensor& actual, std::span<const Tensor> expected,
                              double tolerance);
std::string SpecialDifference(const OpCase& row, const Tensor& actual, const Tensor& expected, double tolerance);

}  // namespace lockstep
