#include "backends/conformance/compare_with_interpreter.h"

#include <cmath>
#include <string>

#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "gtest/gtest.h"

namespace lockstep {

namespace {

// Returns an empty text if each element of `actual` is within `tolerance` times the largest magnitude in `expected` and
// integers are equal; otherwise describes the difference.
std::string Difference(const Tensor& actual, const Tensor& expected, double tolerance) {
  if (actual.type() != expected.type()) return actual.type().ToString() + " against " + expected.type().ToString();
  if (!IsFloat(expected.dtype()) && actual == expected) return "";
  if (!IsFloat(expected.dtype())) tolerance = 0;
  double largest = 0;
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    if (std::isfinite(expected.At(i))) largest = std::max(largest, std::abs(expected.At(i)));
  }
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    const double a = actual.At(i), e = expected.At(i);
    if (a == e || (std::isnan(a) && std::isnan(e)) || std::abs(a - e) <= tolerance * largest) continue;
    return "element " + std::to_string(i) + " is " + DoubleToString(a) + ", expected " + DoubleToString(e) +
           " (largest " + DoubleToString(largest) + ")";
  }
  return IsFloat(expected.dtype()) ? "" : "integers differ that are equal as doubles";
}

}  // namespace

void ExpectAgreesWithInterpreter(const Graph& graph, const std::vector<std::vector<Tensor>>& inputs, double tolerance,
                                 const CompileOptions& options) {
  const auto expected = Interpret(graph, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto actual = RunInProcess(graph, TestedBackend(), inputs, options);
  if (LacksKernel(actual.status())) GTEST_SKIP() << actual.status();
  ASSERT_TRUE(actual.ok()) << actual.status();
  ASSERT_EQ(actual->size(), expected->size());
  for (size_t rank = 0; rank < expected->size(); ++rank) {
    for (size_t i = 0; i < graph.results().size(); ++i) {
      const std::string difference = Difference((*actual)[rank][i], (*expected)[rank][i], tolerance);
      EXPECT_EQ(difference, "") << "result " << graph.results()[i].name << " of rank " << rank;
    }
  }
}

}  // namespace lockstep
