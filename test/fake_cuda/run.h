// Runs one rank on a fake GPU, for tests whose data contains //test/fake_cuda:libraries and whose LD_LIBRARY_PATH is
// test/fake_cuda.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backends/compile.h"
#include "core/graph.h"
#include "test/fake_cuda/fake_cublaslt.h"
#include "test/fake_cuda/fake_cudnn.h"

namespace lockstep::cuda {

// Compiles the graph for an H200, runs it `times` times with the same inputs on a new fake GPU, and returns the results
// of the last run. Misuse and leaks that the driver finds are failures of the test. `options.isa` is ignored.
absl::StatusOr<std::vector<Tensor>> RunOnFake(const Graph& graph, const std::vector<Tensor>& inputs,
                                              CompileOptions options = {}, int times = 1);

// The fakes of the libraries that programs on fake GPUs call.
FakeCudnn& TheFakeCudnn();
FakeCublasLt& TheFakeCublasLt();

// Parses a graph, and makes inputs for it: floats between -1 and 1, small integers.
Graph ParseForTest(const std::string& text);
std::vector<Tensor> InputsForTest(const Graph& graph);

}  // namespace lockstep::cuda
