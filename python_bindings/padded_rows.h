// Calls of a step whose batches need not be full (passes/training/uneven.h).

#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/tensor.h"
#include "runtime/executor.h"

namespace lockstep::python {

// Of each batch the first row that this rank has had, by input.
using FirstRows = std::map<std::string, std::vector<std::byte>, std::less<>>;

// Where the program has the input `rows` and `inputs` lacks it, adds it, and fills up the batches that have fewer rows
// than the rank's share; `padded` keeps what these borrow. Without any batch there are no rows. Batches with different
// numbers of rows are an error; what else is wrong with an input, the executor will say.
//
// What pads is computed like all else, and a weight of 0 makes no number of NaN. So it is a row that the model is meant
// for: the first of `first_rows`, which is kept there; zeros if the rank has had none yet.
absl::Status PadRows(const Executable& program, std::vector<NamedInput>& inputs, FirstRows& first_rows,
                     std::vector<Tensor>& padded);

}  // namespace lockstep::python
