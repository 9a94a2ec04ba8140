// One rank on a fake GPU, for tests whose data holds //test/fake_cuda:libraries and whose LD_LIBRARY_PATH is
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

// What the graph gives on a fake GPU made anew, compiled for an H200; the last of `times` runs with the same inputs.
// What the driver finds to be misuse, or not given back, is a failure of the test. `options.isa` is not looked at.
absl::StatusOr<std::vector<Tensor>> RunOnFake(const Graph& graph, const std::vector<Tensor>& inputs,
                                              CompileOptions options = {}, int times = 1);

// Of the libraries that programs on fake GPUs call.
FakeCudnn& TheFakeCudnn();
FakeCublasLt& TheFakeCublasLt();

// A graph of a text, and inputs for it: floats between -1 and 1, small integers.
Graph ParseForTest(const std::string& text);
std::vector<Tensor> InputsForTest(const Graph& graph);

}  // namespace lockstep::cuda
