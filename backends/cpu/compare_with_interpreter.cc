#include "backends/cpu/compare_with_interpreter.h"

#include <cmath>
#include <random>

#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "gtest/gtest.h"

namespace lockstep {

Tensor RandomTensor(const TensorType& type, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  Tensor wide(TensorType{DType::kF64, type.shape});
  for (double& x : wide.mutable_data<double>())
    x = IsFloat(type.dtype) ? uniform(random) : std::floor((uniform(random) + 1) * 2.5);
  return wide.Converted(type.dtype);
}

std::vector<std::vector<Tensor>> RandomInputs(const Graph& graph, uint64_t seed) {
  std::vector<std::vector<Tensor>> inputs(static_cast<size_t>(graph.mesh().num_ranks()));
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    for (size_t i = 0; i < graph.inputs().size(); ++i) {
      const Input& input = graph.inputs()[i];
      bool replicated = true;
      for (const auto& [axis, placement] : input.placements) replicated = replicated && placement.is_replicated();
      inputs[rank].push_back(RandomTensor(input.value.type(), seed * 1000 + i * 10 + (replicated ? 0 : rank)));
    }
  }
  return inputs;
}

std::string Difference(const Tensor& actual, const Tensor& expected, double tolerance) {
  if (actual.type() != expected.type()) return actual.type().ToString() + " against " + expected.type().ToString();
  double largest = 0;
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    if (std::isfinite(expected.At(i))) largest = std::max(largest, std::abs(expected.At(i)));
  }
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    const double a = actual.At(i), e = expected.At(i);
    if (a == e || (std::isnan(a) && std::isnan(e)) || std::abs(a - e) <= tolerance * largest) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(a) + ", expected " + std::to_string(e) +
           " (largest " + std::to_string(largest) + ")";
  }
  return "";
}

void ExpectAgreesWithInterpreter(const Graph& graph, const std::vector<std::vector<Tensor>>& inputs, double tolerance,
                                 const CompileOptions& options) {
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto expected = Interpret(graph, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto actual = RunInProcess(graph, **backend, inputs, options);
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
