// Random small models of a batch, for tests of training steps: layers with states as people write them, such as batch
// normalisation, embeddings, convolutions and rows of words, and between these nodes of any op that has rows in the op
// cases. As with random graphs, a seed gives the same model on every machine, and all values are tame (random_graph.h).
//
// Most models compute each row of the batch on its own. Some nodes mix rows or depend on a row's position; the test has
// to detect that.

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

// The batch of a random model: a prime, of which no other extent of a model is a multiple.
constexpr int64_t kModelRows = 11;

struct RandomModel {
  // The graph has one result, `prediction`, of f32 or f64, with kModelRows rows or a multiple. It depends on a batch,
  // which is split along `data`, and on a float state.
  Graph graph;
  std::map<std::string, Tensor> inputs;  // including states
};

// Returns nullopt if the seed gives no value that can be the prediction.
std::optional<RandomModel> MakeRandomModel(uint64_t seed);

// The same model for a batch of `rows`, reduced to the nodes that its result needs. Returns an error if the extent of
// the batch is also that of a state or in a constant, or if the result's first dimension does not grow with the batch.
absl::StatusOr<Graph> WithRows(const Graph& model, int64_t rows);

// Of a tensor whose first extent is a multiple of kModelRows: takes these rows, in this order.
Tensor TakeRows(const Tensor& batch, const std::vector<int64_t>& rows);

}  // namespace lockstep
