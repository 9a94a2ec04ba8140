// Calls of a step whose batches need not be full (passes/training/uneven.h).

#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/tensor.h"
#include "runtime/executor.h"

namespace lockstep::python {

// Of each batch, by name, the first row that this rank had.
using FirstRows = std::map<std::string, Tensor>;

// Where the program has the input `rows` and `inputs` lacks it, adds it, and fills up the batches that have fewer rows
// than the rank's share; `padded` keeps what these borrow. Without any batch there are no rows. Batches with different
// numbers of rows are an error; what else is wrong with an input, the executor will say.
//
// What pads are copies of the first row that the rank had, in this call or before, and zeros where it never had one:
// nothing of it counts, as long as it is finite wherever the model is, and of zeros a logarithm is not.
absl::Status PadRows(const Executable& program, FirstRows& first_rows, std::vector<NamedInput>& inputs,
                     std::vector<Tensor>& padded);

}  // namespace lockstep::python
