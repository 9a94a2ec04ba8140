// Makes a training step of a model: the loss over the global batch, its gradients, and the optimizer's update of every
// trained state. What comes out is still the one-rank program; distribute() then makes it the program of each rank.
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

namespace lockstep::passes {

// States that have an optimizer of their own.
struct OptimizerGroup {
  std::string states;  // a name or pattern, of which the first that matches a state counts
  OptimizerSpec optimizer;
};

struct TrainStepSpec {
  std::vector<LossSpec> losses = {LossSpec()};  // whose sum is minimised
  // False: nothing is updated, and the gradients of the states are results, grad/<state>; there are then no groups and
  // no averages, and `optimizer` is not looked at.
  bool updates = true;
  OptimizerSpec optimizer;             // of all states that are in no group
  std::vector<OptimizerGroup> groups;  // the settings of one are optimizer/<states>/<option>
  ClippingSpec clipping;               // of the gradients of all groups together
  // bf16 and f16: what gains by it computes in that dtype, from weights that stay f32 (passes/training/precision.h);
  // with f16 the loss is scaled (passes/training/loss_scaling.h).
  DType precision = DType::kF32;
  bool average = false;  // keep averages of the trained states (passes/training/averaging.h)
  // Names of states, or patterns as the shell knows them: "*.weight", "fc[12].*". `trained` is every float state that
  // the loss depends on if it is empty; `frozen` is left out of it. A pattern that matches no state is an error.
  std::vector<std::string> trained, frozen;
  bool keep_results = false;  // keep the model's own results beside the loss
  // Micro-batches, one after the other (passes/training/accumulate.h).
  int64_t accumulate = 1;
  bool uneven = false;  // batches need not be full (passes/training/uneven.h); TrainingModeOptions said so, too
};

// Replaces the results of `graph` by `loss` and the next values of the trained states. The optimizer's states start as
// zeros (passes/training/optimizer.h), and the factor of loss scaling as kInitialLossScale. Batch normalisation must be
// in training mode already (passes/training/training_mode.h), and a `dropout` that is not is an error.
absl::Status MakeTrainStep(Graph& graph, const TrainStepSpec& spec);

// The states that an optimizer updates, in order.
std::vector<std::string> StatesTrainedBy(const Graph& graph);

// Takes out of `frozen` the patterns that match no state but one of `constants`: a constant is not trained as it is.
void DropConstants(const Graph& graph, std::vector<std::string>& frozen, const std::vector<std::string>& constants);

// Makes states of constants, so that they can be trained: of those values in `constants` whose names match a pattern
// that matches no state. Returns what they held, by name. An error if a pattern matches neither a state nor a constant.
absl::StatusOr<std::map<std::string, Tensor>> ConstantsToStates(Graph& graph, const std::vector<std::string>& patterns,
                                                                const std::vector<std::string>& constants);

// MakeTrainStep as a pass, for lockstep-opt: `train-step` with the defaults of TrainStepSpec but for what is given.
Pass TrainStep(TrainStepSpec spec);

}  // namespace lockstep::passes
