// Makes a program that evaluates a model: its loss and metrics over the global batch, without gradients, and with batch
// normalisation and dropout as in inference. Like a training step it is the one-rank program; its states are the
// model's.
//
//   graph @mlp(%x: f32[128,784] split(0), state %w: f32[784,10]) -> (logits: f32[128,10] split(0)) { … }
// becomes, with softmax cross-entropy of logits and label, and the metric accuracy,
//   graph @mlp(%x: …, state %w: …, %rows: f32[128] split(0), %label: i64[128] split(0))
//       -> (loss: f32[], loss/0/sum: f32[], loss/0/count: f32[],
//           accuracy: f32[], accuracy/0/sum: f32[], accuracy/0/count: f32[], rows: f32[]) { … }
//
// `loss` is of one batch. Term i of the loss is <sum> / <count>, or <sum> alone where it has no result of that name:
// sums and counts of several batches, added up, give the loss of all their samples as if these had been one batch.
// Metrics likewise.

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
  std::vector<LossSpec> losses = {LossSpec()};  // whose sum is the loss
  // By the names of their results, each a sum too: losses, and what AllMetrics() has.
  std::vector<std::pair<std::string, std::vector<LossSpec>>> metrics;
  bool keep_results = false;  // keep the model's own results of other names beside these
  bool uneven = true;         // batches need not be full: adds the input and the result `rows` (uneven.h)
};

// Replaces the results of `graph`, a model in inference mode. Errors name the loss or metric, the option, the result or
// the input.
absl::Status MakeEvaluation(Graph& graph, const EvaluationSpec& spec);

// MakeEvaluation as a pass, for lockstep-opt.
Pass Evaluation(EvaluationSpec spec);

}  // namespace lockstep::passes
