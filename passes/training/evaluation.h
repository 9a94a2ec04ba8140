// Makes a program that evaluates a model: its loss and metrics over the global batch, without gradients, and with batch
// normalisation and dropout in inference mode. Like a training step it is a one-rank program. Its states are the
// model's.
//
//   graph @mlp(%x: f32[128,784] split(0), state %w: f32[784,10]) -> (logits: f32[128,10] split(0)) { … }
// becomes, with softmax cross-entropy of logits and label, and the metric accuracy,
//   graph @mlp(%x: …, state %w: …, %rows: f32[128] split(0), %label: i64[128] split(0))
//       -> (loss: f32[], loss/0/sum: f32[], loss/0/count: f32[],
//           accuracy: f32[], accuracy/0/sum: f32[], accuracy/0/count: f32[], rows: f32[]) { … }
//
// `loss` is the loss of one batch. Its term i is loss/<i>/sum divided by loss/<i>/count, or the sum if there is no such
// count. The sums and counts of several batches can be added up: this gives the loss of all their samples as of one
// batch. Metrics likewise.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"
#include "passes/training/loss.h"

namespace lockstep::passes {

struct EvaluationSpec {
  std::vector<LossSpec> losses = {LossSpec()};  // the loss is their sum
  // Metrics by the names of their results. Each is a sum too, of losses or entries of AllMetrics().
  std::vector<std::pair<std::string, std::vector<LossSpec>>> metrics;
  bool keep_results = false;  // keeps the model's own results with other names
  bool uneven = true;         // allows batches that are not full: adds the input and the result `rows` (uneven.h)
};

// Replaces the results of `graph`, a model in inference mode. An error names the loss or metric, the option, the result
// or the input.
absl::Status MakeEvaluation(Graph& graph, const EvaluationSpec& spec);

// Returns MakeEvaluation as a pass, for lockstep-opt.
Pass Evaluation(EvaluationSpec spec);

}  // namespace lockstep::passes
