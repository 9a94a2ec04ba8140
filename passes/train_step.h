// Makes a training step of a model: the loss over the global batch, its gradients, and the optimizer's update of every trained
// state. What comes out is still the one-rank program; distribute() then makes it the program of each rank.
//
//   graph @mlp(%x: f32[128,784] split(0), state %w: f32[784,10]) -> (logits: f32[128,10] split(0)) { … }
// becomes, with softmax cross-entropy of logits and label, and SGD,
//   graph @mlp(%x: …, state %w: …, %label: i64[128] split(0)) -> (loss: f32[], %w: f32[784,10]) {
//     %z = matmul %x, %w : f32[128,10]
//     %loss, %dz = softmax_cross_entropy %z, %label {scale=0.0078125} : f32[], f32[128,10]
//     %dw = matmul %x, %dz {transpose_a=true} : f32[784,10]
//     %w1 = sgd %w, %dw {learning_rate=0.1} : f32[784,10]
//     return %loss, %w1
//   }

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
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
  std::vector<std::string> trained;  // names of states; empty: every float state that the loss depends on
  bool keep_results = false;         // keep the model's own results beside the loss
};

// Replaces the results of `graph` by `loss` and the next values of the trained states. The optimizer's states are named
// <state>/momentum, <state>/adam_m, <state>/adam_v and optimizer/step, and start at zero. Batch normalisation must be in
// training mode already (passes/training_mode.h).
absl::Status MakeTrainStep(Graph& graph, const TrainStepSpec& spec);

// The two halves, for those who want one. AddLoss returns the scalar, and adds no result. AddOptimizer updates each state
// by its gradient; gradients[i] has the type of states[i].
absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec);
absl::Status AddOptimizer(Graph& graph, const std::vector<Value>& states, const std::vector<Value>& gradients,
                          const OptimizerSpec& spec);

// MakeTrainStep as a pass, for lockstep-opt: `train-step` with the defaults of TrainStepSpec but for what is given.
Pass TrainStep(TrainStepSpec spec);

}  // namespace lockstep::passes
