// Steps of batches that are not full: some of a rank's rows may be there to pad, and count for nothing.
//
//   graph @f(%x: f32[8,3] split(0), …)
// becomes
//   graph @f(%x: f32[8,3] split(0), %rows: f32[8] split(0), …) -> (…, rows: f32[])
//
// %rows is 1 where a row of the batch is there, and 0 where it pads. Losses are weighted by it, batch normalisation
// takes its statistics over the rows that are there (training_mode.h), and a step for which no rank has a row changes
// no state; the result `rows` is how many there were on all ranks. So a step is that of one rank with those rows alone.
// Counts are sums over ranks like gradients, and travel with them (late_mean.h).
//
// What pads is not seen by other rows: an op that mixes rows, other than batch normalisation, is an error.

#pragma once

#include <string_view>

#include "core/builder.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// The input, f32[batch], and the result, f32[].
inline constexpr std::string_view kRows = "rows";

// Adds the input to a model in inference mode, and returns it; where it is there already, that one. Takes rows apart
// that layers have merged behind another dimension (passes/optimize/separate_rows.h). An error if no input is a batch,
// if batches differ in their rows, or if an op mixes rows.
absl::StatusOr<Value> AddRows(Graph& model);

// Of `rows`, [batch], one for each entry of dimension 0 of what has `extent` entries there: of rows of a batch of
// sentences each word has that of its sentence. An error that says so if that dimension holds no rows of the batch.
absl::StatusOr<Value> RowsOf(Builder& b, Value rows, int64_t extent);

// Adds the result to a whole step, and keeps all states as they are where it is 0.
absl::Status FinishRows(Graph& step, Value rows);

// Gives each state that has a next value, but those whose names are in `except`, that one only where the bool[]
// `condition` holds. The value until now is named `suffix` in place of "next".
absl::Status UpdateStatesIf(Graph& graph, Value condition, const std::vector<std::string>& except,
                            std::string_view suffix);

}  // namespace lockstep::passes
