// Finds the op that made a NaN or an infinity in a result or in the next value of a state: the step is compiled again
// without optimization, runs once on copies of the states, and the values of all ops are looked at. The given program
// and its states stay as they are. Called for lockstep.find_nan, and after a step that compile(check_numerics=True)
// found wrong.

#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backends/compile_and_load.h"
#include "core/finite.h"
#include "core/status.h"

namespace lockstep {

// An op that made a NaN or an infinity, or an input, a state or a constant that had one.
struct NonFinite {
  struct Operand {
    std::string name;
    ElementCounts counts;
  };

  std::string op;     // "log"; "input", "state" or "constant" if the value came from there
  std::string value;  // the name of the value, without the '%'
  std::string layer;  // the source of the op in the model, such as "onnx:/fc1/Gemm"; may be empty
  // In a loop, such as that over micro-batches: which iteration, from 0, as "iteration 1 of 2". Else empty.
  std::string iteration;
  int64_t rank = 0;
  ElementCounts counts;        // of the value on that rank; of an input, without the rows that pad it
  std::vector<int64_t> first;  // the index of its first NaN, or else infinity, on that rank; empty: unknown or a scalar
  std::vector<Operand> operands;  // on that rank; none of an input, a state or a constant
  // The op whose result is NaN, if the op above made only infinities, as "sub %7, at onnx:/norm". Empty if it is the op
  // above, or if nothing is NaN.
  std::string becomes_nan;
  // The input, state or constant that gave the op infinite operands, if no op made these, as "input %x on rank 1: 1
  // infinite of 24".
  std::string infinite_since;
  bool has_no_effect = false;  // all results and next states of the step are finite: a loss scale skips it
  // Set if the value is finite with optimize=False: only the program that was compiled has it.
  bool only_optimized = false;
  std::string fused;  // then, of a kernel of several ops: these, as "mul at /square, add at /sum"

  // Returns several lines: "step 12, rank 1: log makes %7: 3 NaN of 128, the others -4.6 to 0.0, at onnx:/head/Log",
  // its operands, and the op in which an infinity became NaN.
  std::string ToString(int64_t step) const;
};

// Runs the step once on `inputs`, this rank's, with the states and settings of `loaded`. Collective: all ranks call it,
// with equal names, and get the same answer. Returns nothing if all results and next states are as they should be.
//
// Starts from the results and next states that are not finite: those with these names, such as "result loss" or "state
// w"; null: from all and, if a loss scale is used and these are finite, from the gradients that it found wrong. Follows
// non-finite operands backwards, so a value that has no effect is never named:
//  * A NaN leads to the operands with a NaN. The op that has none of these made it, or the input, state or constant
//    that had one.
//  * An infinity, also that among the operands of such an op, leads to the infinite operands. The op that has none of
//    these made it, or a state that the program updates. An infinity that is another state, an input or a constant, or
//    is computed from constants alone, is intended, such as the mask of an attention.
//  * Of several causes, the first in the order of the program and then of ranks is named; one of a NaN before others.
//  * An operand of an elementwise op counts only if it is not finite at an element at which the result is not.
// A sum over ranks made a value only if the terms of all ranks were finite.
//
// If nothing is found, the program is compiled as `loaded` was, and runs once, too: a kernel may have made a value that
// the ops one by one do not make.
//
// `prepared`: the error of preparing the inputs on this rank, if any.
//
// Errors: FailedPrecondition for parameter servers, which would update weights, and for stages, whose ranks run
// different programs. If `prepared` is an error on some rank or its inputs do not fit, all ranks return an error, and
// the communicator remains usable. Otherwise errors of CompileAndLoad and Executor::Run.
absl::StatusOr<std::optional<NonFinite>> FindNonFinite(LoadedProgram& loaded, std::span<const NamedInput> inputs,
                                                       Communicator& communicator,
                                                       const std::set<std::string>* names = nullptr,
                                                       const absl::Status& prepared = absl::OkStatus());

}  // namespace lockstep
