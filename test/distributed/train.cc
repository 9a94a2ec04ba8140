#include "test/distributed/train.h"

#include <gtest/gtest.h>

#include <random>

#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/random_tensor.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/localize.h"
#include "passes/distribute/merge_collectives.h"
#include "passes/distribute/overlap_collectives.h"
#include "passes/training/loss_scaling.h"

namespace lockstep {
namespace {

// Labels from 0 to 2, small floats.
Tensor RandomValues(const TensorType& type, std::mt19937_64& random) {
  return IsFloat(type.dtype) ? RandomTensor(type, random, -0.5, 0.5) : RandomTensor(type, random, 0, 2);
}

}  // namespace

History Train(const Graph& step, int64_t ranks, int steps, const std::vector<passes::Pass>& passes) {
  return Train(step, Mesh({{"data", ranks}}), steps, passes);
}

History Train(const Graph& step, const Mesh& mesh, int steps, const std::vector<passes::Pass>& passes) {
  const int64_t ranks = mesh.num_ranks();
  absl::StatusOr<Graph> graph = passes::DistributeGraph(step, mesh);
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  const absl::Status passed = passes::RunPasses(passes, *graph);
  EXPECT_TRUE(passed.ok()) << passed << "\n" << graph->ToString();
  const absl::Status merged = passes::RunPasses({passes::MergeCollectives({.max_bytes = 200, .first_bytes = 100}),
                                                 passes::Localize(), passes::OverlapCollectives()},
                                                *graph);
  EXPECT_TRUE(merged.ok()) << merged << "\n" << graph->ToString();
  EXPECT_EQ(graph->mesh().num_ranks(), ranks);
  std::mt19937_64 random(7);
  History run;
  run.states.resize(static_cast<size_t>(ranks));
  for (const Input& input : step.inputs()) {
    if (!input.is_state) continue;
    const bool starts_at_zero = input.name().find('/') != std::string::npos;
    Tensor value = starts_at_zero ? Tensor(input.value.type()) : RandomValues(input.value.type(), random);
    if (input.name() == passes::kLossScale) value = Tensor::Scalar(DType::kF32, passes::kInitialLossScale);
    for (int64_t rank = 0; rank < ranks; ++rank)
      run.states[static_cast<size_t>(rank)][input.name()] = LocalPart(value, input.placements(), mesh, rank);
  }
  for (int s = 0; s < steps; ++s) {
    std::vector<std::vector<Tensor>> inputs(static_cast<size_t>(ranks));
    for (const Input& input : step.inputs()) {
      const Tensor batch = input.is_data() ? RandomValues(input.value.type(), random) : Tensor();
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto r = static_cast<size_t>(rank);
        if (input.is_state) inputs[r].push_back(run.states[r][input.name()]);
        else if (input.setting) inputs[r].push_back(Tensor::Scalar(DType::kF64, input.setting->value));
        else inputs[r].push_back(LocalPart(batch, input.placements(), mesh, rank));
      }
    }
    const auto results = Interpret(*graph, inputs);
    EXPECT_TRUE(results.ok()) << results.status();
    if (!results.ok()) return run;
    for (size_t i = 0; i < graph->results().size(); ++i) {
      const Result& result = graph->results()[i];
      for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) {
        if (result.is_state) run.states[r][result.name] = (*results)[r][i];
      }
      if (result.name == "loss") run.losses.push_back((*results)[0][i].At(0));
    }
  }
  return run;
}

}  // namespace lockstep
