#include "test/random/draws.h"

#include "core/interpreter.h"
#include "core/random.h"
#include "core/verifier.h"

namespace lockstep {

Graph GraphOfDraws(const MakeDraws& make) {
  Graph graph("draws");
  Builder b(graph);
  const std::vector<Value> values = make(b);
  LOCKSTEP_CHECK(b.status().ok()) << b.status();
  for (size_t i = 0; i < values.size(); ++i)
    LOCKSTEP_CHECK(graph.AddResult("r" + std::to_string(i), values[i]).ok()) << i;
  const absl::Status verified = Verify(graph);
  LOCKSTEP_CHECK(verified.ok()) << verified;
  return graph;
}

std::vector<Tensor> Draws(const MakeDraws& make, int64_t seed, int64_t step) {
  const Graph graph = GraphOfDraws(make);
  std::vector<Tensor> inputs, results;
  for (const Input& input : graph.inputs()) {
    LOCKSTEP_CHECK(input.name() == kRandomSeed || input.name() == kRandomStep) << input.name();
    inputs.push_back(Tensor::Of<int64_t>({}, {input.name() == kRandomSeed ? seed : step}));
  }
  const absl::StatusOr<std::vector<Tensor>> found = InterpretOneRank(graph, inputs);
  LOCKSTEP_CHECK(found.ok()) << found.status();
  for (size_t i = 0; i < found->size(); ++i) {
    if (graph.results()[i].is_state) LOCKSTEP_CHECK((*found)[i].data<int64_t>()[0] == step + 1) << "the next step";
    else results.push_back((*found)[i]);
  }
  return results;
}

Tensor DrawOne(const std::function<Value(Builder& b)>& make, int64_t seed, int64_t step) {
  return Draws([&](Builder& b) { return std::vector<Value>{make(b)}; }, seed, step)[0];
}

std::vector<double> Numbers(const Tensor& tensor) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) numbers.push_back(tensor.At(i));
  return numbers;
}

}  // namespace lockstep
