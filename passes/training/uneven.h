// Steps with batches that are not full: some rows of a rank may be padding, which has no effect.
//
//   graph @f(%x: f32[8,3] split(0), …)
// becomes
//   graph @f(%x: f32[8,3] split(0), %rows: f32[8] split(0), …) -> (…, rows: f32[])
//
// %rows is 1 for a row of the batch, and 0 for one that pads. Losses are weighted by it, and batch normalisation takes
// its statistics over the rows that do not pad (training_mode.h). A step in which all rows of all ranks pad changes no
// state. The result `rows` is the number of rows that do not pad, over all ranks. So the step equals that of one rank
// with these rows only. Counts are sums over ranks like gradients, and travel with them (late_mean.h).
//
// Other rows must not see padding: an op that mixes rows, other than batch normalisation, is an error.

#pragma once

#include <string_view>

#include "core/builder.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// The name of the input, f32[batch], and of the result, f32[].
inline constexpr std::string_view kRows = "rows";

// Returns whether batches of this step or evaluation need not be full: it has that input and that result. An input of
// any model may be called `rows`, and so may a result.
bool IsUneven(const Graph& graph);

// Adds the input to a model in inference mode and returns it. Separates rows that layers have merged behind another
// dimension (passes/optimize/separate_rows.h). Returns an error if the model has an input of this name, if no input is
// a batch, if batches have different numbers of rows, or if an op mixes rows.
absl::StatusOr<Value> AddRows(Graph& model);

// Returns the input that AddRows has added, or else adds it.
absl::StatusOr<Value> FindOrAddRows(Graph& model);

// Returns `rows`, [batch], repeated for a dimension 0 with `extent` entries: in a batch of sentences, each word has the
// entry of its sentence. Returns an error if `extent` is not a multiple of the batch.
absl::StatusOr<Value> RowsOf(Builder& b, Value rows, int64_t extent);

// Adds the result to a complete step, and keeps all states unchanged if it is 0.
absl::Status FinishRows(Graph& step, Value rows);

// Makes the next values of states conditional: a state keeps its value unless the bool[] `condition` is true. Applies
// to all states with next values except those named in `except`. The value that was the next one until now is renamed
// to <state>.<suffix>.
absl::Status UpdateStatesIf(Graph& graph, Value condition, const std::vector<std::string>& except,
                            std::string_view suffix);

}  // namespace lockstep::passes
