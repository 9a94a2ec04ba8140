// Support for tests of compiled loops. Runs a body given as text, compares it with the interpreter, and checks the
// guarantees of LoopCompiler: the same bits for all divisions of the units, results that may overwrite operands, and no
// writes outside buffers.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/loops/grid_plan.h"
#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep::loop_test {

enum class Values {
  kEverything,  // NaN, infinities, -0.0, denormals, the ends of the range, and random values of all magnitudes
  kDivisors,    // the same without zeros
  kNearOne,     // floats between 0.5 and 1.5, small positive integers: for measuring errors of sums
};

Tensor RandomTensor(const TensorType& type, Values values, uint64_t seed);

// Returns the distance of a and b in units in the last place of their dtype, in the order of their bits; 0 if both are
// NaN, and between -0.0 and 0.0. For integers, 0 or 1.
int64_t UlpDistance(const Tensor& a, const Tensor& b, int64_t at);

struct LoopCase {
  std::string body;  // in the text form
  Values values = Values::kEverything;
  int64_t ulps = 0;  // the largest distance from the interpreter's results
};

// Runs the case in all ways and reports failures to GoogleTest. Returns the largest distance.
int64_t CheckLoop(const LoopCase& loop_case);

// Returns the results of one run with the given inputs, without checks.
std::vector<Tensor> RunLoop(const Graph& body, const std::vector<Tensor>& inputs);

// Returns the results of the body as a kernel of a GPU, run on the host. Checks that all orders of blocks and threads,
// and results that overwrite operands, give the same bits.
std::vector<Tensor> RunGrid(const Graph& body, const std::vector<Tensor>& inputs, const GridSizes& sizes);

}  // namespace lockstep::loop_test
