// Calls of a step whose batches need not be full (passes/training/uneven.h).

#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/graph.h"
#include "core/tensor.h"
#include "runtime/execution/executor.h"

namespace lockstep::python {

// Of each batch, by name, the first row that this rank had.
using FirstRows = std::map<std::string, Tensor>;

// The inputs that ranks along the axis "data" share by rows. It is the graph before any pass that knows: a program for
// one rank along that axis forgets it.
std::set<std::string> BatchesOf(const Graph& graph);

// Where the program has the input `rows` and `inputs` lacks it, adds it, and fills up the `batches` that have fewer
// rows than the rank's share; `padded` keeps what these borrow. Without any batch there are no rows. Batches with
// different numbers of rows are an error, and so is a program of which no input is known as a batch; what else is wrong
// with an input, the executor will say.
//
// What pads are copies of the first row that the rank had, in this call or before, and zeros where it never had one:
// nothing of it counts, as long as it is finite wherever the model is, and of zeros a logarithm is not.
absl::Status PadRows(const Executable& program, const std::set<std::string>& batches, FirstRows& first_rows,
                     std::vector<NamedInput>& inputs, std::vector<Tensor>& padded);

}  // namespace lockstep::python
