// Finds the first op of a step that made a NaN or an infinity: the step is compiled again without optimization, runs
// once on copies of the states, and the values of all ops are looked at. The given program and its states stay as they
// are. Called for lockstep.find_nan, and after a step that compile(check_numerics=True) found wrong.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/compile_and_load.h"
#include "core/finite.h"
#include "core/status.h"

namespace lockstep {

// An op that made the first NaN or infinity, or an input or a state that had one.
struct NonFinite {
  struct Operand {
    std::string name;
    ElementCounts counts;
  };

  std::string op;     // "log"; "input" or "state" if the value came from there
  std::string value;  // the name of the value, without the '%'
  std::string layer;  // the source of the op in the model, such as "onnx:/fc1/Gemm"; may be empty
  int64_t rank = 0;
  ElementCounts counts;           // of the value on that rank
  std::vector<Operand> operands;  // on that rank; none of an input or a state
  // The first op whose result is NaN, if the op above made only infinities, as "sub %7, at onnx:/norm": an infinity is
  // an error only because of it. Empty if it is the op above, or if nothing is NaN.
  std::string becomes_nan;

  // Returns several lines: "step 12, rank 1: log makes %7: 3 NaN of 128, the others -4.6 to 0.0, at onnx:/head/Log",
  // its operands, and the op in which an infinity became NaN.
  std::string ToString(int64_t step) const;
};

// Runs the step once on `inputs`, this rank's, with the states and settings of `loaded`. Collective: all ranks call it,
// and get the same answer. Returns nothing if all values are as they should be.
//
// The op is found by these rules, in the order of the program and of ranks:
//  * The first op whose result has a NaN, while none of its operands has one, made it. If a NaN came from an input or a
//    state, this is named.
//  * If an operand of this op was infinite, the op is named that made the infinity from finite operands. An infinity
//    that was an input, a state or a constant, or was computed from constants alone, such as the mask of an attention,
//    is intended.
//  * Without any NaN, the first op that made an infinity from finite operands is named, if it is not computed from
//    constants alone.
// A sum over ranks made a value only if the terms of all ranks were finite.
//
// Errors: FailedPrecondition for parameter servers, which would update weights, and for stages, whose ranks run
// different programs. Otherwise errors of CompileAndLoad and Executor::Run.
absl::StatusOr<std::optional<NonFinite>> FindNonFinite(LoadedProgram& loaded, std::span<const NamedInput> inputs,
                                                       Communicator& communicator);

}  // namespace lockstep
