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

// The first row without NaN of those that began a batch of this rank, by input name.
using FirstRows = std::map<std::string, Tensor>;

// Returns the inputs that ranks along the axis "data" share by rows. Requires the graph before any pass, because a
// program for one rank along that axis no longer has this information.
std::set<std::string> BatchesOf(const Graph& graph);

// Requires an uneven program. If `inputs` lacks its input `rows`, adds that, and pads the `batches` that have fewer
// rows than the rank's share. `padded` owns the memory that the new inputs borrow. Without any batch there are no rows.
// Returns an error if batches have different numbers of rows, or if no input of the program is known to be a batch. The
// executor detects other errors in inputs.
//
// Padding consists of copies of the row of this input that the rank keeps: the first row of this or an earlier call, as
// long as it has no NaN; or of zeros if there is none. Padding does not count if its results are finite. A row of the
// batch has finite results if the model has, but zeros may not: their logarithm is infinite.
absl::Status PadRows(const Executable& program, const std::set<std::string>& batches, FirstRows& first_rows,
                     std::vector<NamedInput>& inputs, std::vector<Tensor>& padded);

}  // namespace lockstep::python
