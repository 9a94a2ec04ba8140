// Random small models of a batch, for tests of training steps: layers with states as people write them, among them
// batch normalisation, embeddings, convolutions and rows of words, and between these nodes of any op that has rows of
// op cases. As with random graphs, a seed gives the same model on every machine, and all values are tame
// (random_graph.h).
//
// Most models compute each row of the batch for itself. Where nodes of any op mix rows, or depend on a row's place, it
// is for the test to find out.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

// Of the batch of a random model. A prime, and no other extent of a model is a multiple of it.
constexpr int64_t kModelRows = 11;

struct RandomModel {
  // One result, `prediction`: of kModelRows rows, or of a multiple, of f32 or f64. It depends on a batch, which is
  // split along `data`, and on a float state.
  Graph graph;
  std::map<std::string, Tensor> inputs;  // states, too
};

// Null if the seed gives nothing to predict with.
std::optional<RandomModel> MakeRandomModel(uint64_t seed);

// The same model for a batch of so many rows, with what its result needs alone. An error if an extent of the batch is
// that of a state or in a constant, or if the result's first dimension does not grow with the batch.
absl::StatusOr<Graph> WithRows(const Graph& model, int64_t rows);

// Of what has a multiple of kModelRows as its first extent, these rows, one after the other.
Tensor TakeRows(const Tensor& batch, const std::vector<int64_t>& rows);

}  // namespace lockstep
