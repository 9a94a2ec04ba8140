// Makes a training step from a model: adds the loss over the global batch, its gradients, and the optimizer's update of
// every trained state. The result is still a one-rank program; distribute() then makes the program of each rank.
//
//   graph @mlp(%x: f32[128,784] split(0), state %w: f32[784,10]) -> (logits: f32[128,10] split(0)) { … }
// becomes, with softmax cross-entropy of logits and label, and SGD,
//   graph @mlp(%x: …, state %w: …, %label: i64[128] split(0)) -> (loss: f32[], %w: f32[784,10]) {
//     %z = matmul %x, %w : f32[128,10]
//     %loss, %dz = softmax_cross_entropy %z, %label {scale=0.0078125} : f32[], f32[128,10]
//     %grad/w = matmul %x, %dz {transpose_a=true} : f32[784,10]
//     %w.next = sgd %w, %grad/w {learning_rate=0.1} : f32[784,10]
//     return %loss, %w.next
//   }

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"
#include "passes/pass.h"
#include "passes/training/clipping.h"
#include "passes/training/loss.h"
#include "passes/training/optimizer.h"
#include "passes/training/training_mode.h"

namespace lockstep::passes {

// States that have an optimizer of their own.
struct OptimizerGroup {
  std::string states;  // a name or pattern; a state is in the first group that matches it
  OptimizerSpec optimizer;
};

// How the ranks exchange the gradients of some states (core/ops/exchange.cc).
struct ExchangeSpec {
  std::string states;       // a name or pattern; a state is in the first that matches it
  std::string by;           // the attribute of `exchange`; empty: a plain all_reduce, without that op
  std::string wire = {};    // of the all_reduce, if whoever compiles gives the exchange no body
  bool of_weights = false;  // exchanges the weights, and leaves each rank its own gradient (exchange_weights)
};

struct TrainStepSpec {
  std::vector<LossSpec> losses = {LossSpec()};  // their sum is minimised
  // False: nothing is updated, and the gradients are results grad/<state>. Groups and averages are then not allowed,
  // and `optimizer` is ignored.
  bool updates = true;
  OptimizerSpec optimizer;              // for all states that are in no group
  std::vector<OptimizerGroup> groups;   // their settings are optimizer/<states>/<option>
  std::vector<ExchangeSpec> exchanges;  // of states that are in none, an all_reduce
  ClippingSpec clipping;                // applies to the gradients of all groups together
  // bf16 and f16: ops that profit from it compute in that dtype, from weights that stay f32
  // (passes/training/precision.h). With f16 the loss is scaled (passes/training/loss_scaling.h).
  DType precision = DType::kF32;
  bool average = false;  // keeps averages of the trained states (passes/training/averaging.h)
  // Names of states, or shell patterns: "*.weight", "fc[12].*". If `trained` is empty, every float state that the loss
  // depends on is trained. States that match `frozen` are not trained. A pattern that matches no state is an error.
  std::vector<std::string> trained, frozen;
  bool keep_results = false;  // keeps the model's own results beside the loss
  // The number of micro-batches, computed one after the other (passes/training/accumulate.h).
  int64_t accumulate = 1;
  bool uneven = false;  // allows batches that are not full (passes/training/uneven.h); TrainingModeOptions must agree
};

// Replaces the results of `graph` by `loss` and the next values of the trained states. The optimizer's states start as
// zeros (passes/training/optimizer.h), and the factor of loss scaling starts as kInitialLossScale. Requires that the
// graph is in training mode already (passes/training/training_mode.h); a remaining `dropout` is an error.
absl::Status MakeTrainStep(Graph& graph, const TrainStepSpec& spec);

// Returns the names of the states that optimizers update, in order.
std::vector<std::string> StatesTrainedBy(const Graph& graph);

// Removes from `frozen` the patterns that match one of `constants` but no state: constants are not trained anyway.
void DropConstants(const Graph& graph, std::vector<std::string>& frozen, const std::vector<std::string>& constants);

// Turns constants into states, so that they can be trained: those named in `constants` whose names match a pattern that
// matches no state. Returns their values, by name. Returns an error if a pattern matches neither a state nor a
// constant.
absl::StatusOr<std::map<std::string, Tensor>> ConstantsToStates(Graph& graph, const std::vector<std::string>& patterns,
                                                                const std::vector<std::string>& constants);

// Makes a training step of a model as a frontend imports it: puts it in training mode, makes states of the constants
// that `spec` trains, calls MakeTrainStep and verifies the graph. `values` has the initial values of states, by name,
// to which those of the new states are added that do not start as zeros. States are removed from `constants`. `seed` is
// that of the graph's random draws, such as dropout. After an error, the arguments are unspecified.
absl::Status MakeTrainStepOfModel(Graph& graph, std::map<std::string, Tensor>& values,
                                  std::vector<std::string>& constants, TrainStepSpec spec,
                                  const TrainingModeOptions& mode = {}, int64_t seed = 0);

// Returns MakeTrainStep as a pass, for lockstep-opt.
Pass TrainStep(TrainStepSpec spec);

}  // namespace lockstep::passes
