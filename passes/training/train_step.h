// Makes a training step of a model: the loss over the global batch, its gradients, and the optimizer's update of every trained
// state. What comes out is still the one-rank program; distribute() then makes it the program of each rank.
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

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"
#include "passes/pass.h"

namespace lockstep::passes {

// A mean over the global batch, hence independent of the number of ranks.
struct LossSpec {
  enum class Kind {
    kSoftmaxCrossEntropy,  // of the result `prediction` [N, C] and class labels `target` i64[N]
    kMeanSquaredError,     // of the result `prediction` and the input `target` of its type
    kResult,               // the model's own scalar result `prediction`
  };
  Kind kind = Kind::kSoftmaxCrossEntropy;
  std::string prediction = "logits";
  std::string target = "target";  // the name of the data input that is added (or used, if the model has it)
};

struct OptimizerSpec {
  enum class Kind { kSgd, kAdam, kAdamW };
  Kind kind = Kind::kSgd;
  double learning_rate = 0.01;
  double weight_decay = 0;
  double momentum = 0;                                // SGD
  bool nesterov = false;                              // SGD
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // Adam, AdamW
};

struct TrainStepSpec {
  LossSpec loss;
  OptimizerSpec optimizer;
  // Names of states, or patterns as the shell knows them: "*.weight", "fc[12].*". `trained` is every float state that
  // the loss depends on if it is empty; `frozen` is left out of it. A pattern that matches no state is an error.
  std::vector<std::string> trained, frozen;
  bool keep_results = false;  // keep the model's own results beside the loss
  // The model's nodes that drop values in training, as messages name them (ImportedModel::dropouts). There is no
  // randomness yet: an error if there are any, unless they are switched off.
  std::vector<std::string> dropouts;
  bool dropout_off = false;
};

// Replaces the results of `graph` by `loss` and the next values of the trained states. The optimizer's states are named
// <state>/momentum, <state>/adam_m, <state>/adam_v and optimizer/step, and start at zero. Batch normalisation must be in
// training mode already (passes/training/training_mode.h).
absl::Status MakeTrainStep(Graph& graph, const TrainStepSpec& spec);

// The states that an optimizer updates, in order.
std::vector<std::string> StatesTrainedBy(const Graph& graph);

// Makes states of constants, so that they can be trained: of those values in `constants` whose names match a pattern
// that matches no state. Returns what they held, by name. An error if a pattern matches neither a state nor a constant.
absl::StatusOr<std::map<std::string, Tensor>> ConstantsToStates(Graph& graph, const std::vector<std::string>& patterns,
                                                                const std::vector<std::string>& constants);

// The two halves, for those who want one. AddLoss returns the scalar, and adds no result. AddOptimizer updates each state
// by its gradient; gradients[i] has the type of states[i].
absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec);
absl::Status AddOptimizer(Graph& graph, const std::vector<Value>& states, const std::vector<Value>& gradients,
                          const OptimizerSpec& spec);

// MakeTrainStep as a pass, for lockstep-opt: `train-step` with the defaults of TrainStepSpec but for what is given.
Pass TrainStep(TrainStepSpec spec);

}  // namespace lockstep::passes
