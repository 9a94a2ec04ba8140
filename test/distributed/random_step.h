// Training steps of random models (test/random_graph/random_model.h), with random losses, and values for all of their
// inputs: for tests that compare what they do with batches of different sizes.

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
  passes::TrainStepSpec spec;            // SGD with a rate of 1: what the gradients are, the new weights say
  std::map<std::string, Tensor> values;  // of kModelRows rows: inputs of the model, labels, weights
};

// What became of seeds of which there is no step to compare.
struct Unused {
  int without_model = 0;  // nothing of a batch and a state was drawn
  int refused = 0;        // by the losses, or of values for each row that are no batch
  int mixing = 0;         // rows, so that batches have to be full
  int of_places = 0;      // what a row gives depends on its place in the batch
  int flat = 0;           // the loss does not depend on the batch, or no weight on the loss
};

// A step whose rows are computed each for itself, of a loss that depends on the batch and moves a state. Null, and
// counted, if the seed gives none.
std::optional<RandomStep> MakeRandomStep(uint64_t seed, Unused& unused);

// The step of a model, of full batches or not.
absl::StatusOr<Graph> StepOf(Graph model, passes::TrainStepSpec spec, bool uneven);

// The step's inputs, with these rows of batches. A state that has no value starts as zeros.
std::vector<Tensor> InputsOf(const Graph& step, const RandomStep& random_step, const std::vector<int64_t>& rows);
// Of a rank that has these rows in a batch of `most`. What pads are rows, too, whichever.
std::vector<Tensor> InputsOfRank(const Graph& step, const RandomStep& random_step, std::vector<int64_t> rows,
                                 int64_t most, Random& random);

// By name; those of states by "state " and the name.
std::map<std::string, Tensor> ByName(const Graph& step, const std::vector<Tensor>& results);
// What a state of that result was, where it has a value.
const Tensor* ValueBefore(const RandomStep& random_step, const std::string& result);

}  // namespace lockstep
