// Training steps of random models (test/random_graph/random_model.h), with random losses and with values for all
// inputs, for tests that compare batches of different sizes.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "passes/training/train_step.h"
#include "test/random_graph/random.h"
#include "test/random_graph/random_model.h"

namespace lockstep {

struct RandomStep {
  uint64_t seed = 0;
  RandomModel model;
  passes::TrainStepSpec spec;            // SGD with a rate of 1, so that the new weights show the gradients
  std::map<std::string, Tensor> values;  // with kModelRows rows: inputs of the model, labels, weights
};

// Counts of the seeds that give no step to compare, by reason.
struct Unused {
  int without_model = 0;  // no model that depends on both a batch and a state was drawn
  int refused = 0;        // by a loss, or because a value of each row is not part of the batch
  int mixing = 0;         // an op mixes rows, so batches have to be full
  int of_places = 0;      // the result of a row depends on its position in the batch
  int flat = 0;           // the loss does not depend on the batch, or no weight moves
};

// A step that computes each row on its own, with a loss that depends on the batch and moves a state. Returns nullopt,
// and counts the reason in `unused`, if the seed gives none.
std::optional<RandomStep> MakeRandomStep(uint64_t seed, Unused& unused);

// The training step of a model, for full batches or `uneven` ones.
absl::StatusOr<Graph> StepOf(Graph model, passes::TrainStepSpec spec, bool uneven);

// The step's inputs, with these rows of the batches. A state that has no value starts as zeros.
std::vector<Tensor> InputsOf(const Graph& step, const RandomStep& random_step, const std::vector<int64_t>& rows);
// The inputs of a rank that has these rows in a batch of `most`. Random rows fill the batch.
std::vector<Tensor> InputsOfRank(const Graph& step, const RandomStep& random_step, std::vector<int64_t> rows,
                                 int64_t most, Random& random);

// The results by name; those of states by "state " and the name.
std::map<std::string, Tensor> ByName(const Graph& step, const std::vector<Tensor>& results);
// The value before the step of the state that this result updates; null if it has none.
const Tensor* ValueBefore(const RandomStep& random_step, const std::string& result);

}  // namespace lockstep
