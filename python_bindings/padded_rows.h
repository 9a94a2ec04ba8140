// Calls of a step whose batches need not be full (passes/training/uneven.h).

#pragma once

#include <vector>

#include "absl/status/status.h"
#include "core/tensor.h"
#include "runtime/executor.h"

namespace lockstep::python {

// Where the program has the input `rows` and `inputs` lacks it, adds it, and fills up with zeros the batches that have
// fewer rows than the rank's share; `padded` keeps what these borrow. Without any batch there are no rows. Batches with
// different numbers of rows are an error; what else is wrong with an input, the executor will say.
absl::Status PadRows(const Executable& program, std::vector<NamedInput>& inputs, std::vector<Tensor>& padded);

}  // namespace lockstep::python
