// Dynamic loss scaling, for gradients in f16, whose range is small: the gradients of the loss times a factor are
// computed, and divided by it before anybody looks at them; a step whose gradients are not all finite changes no state,
// and makes the factor smaller (Micikevicius et al., "Mixed Precision Training", 2018; as torch.amp.GradScaler does
// it). Called by MakeTrainStep; one thread at a time may use a Graph.
//
// What is finite is asked of the gradients of the whole batch, so that all ranks agree.

#pragma once

#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// The state that is the factor, f32[]; the number that stands for 0, as a state without a value is, and for
// what is no finite number; and the least, whose reciprocal is finite, below which it does not go.
inline constexpr std::string_view kLossScale = "loss_scale/scale";
inline constexpr double kInitialLossScale = 65536;
inline constexpr double kLeastLossScale = 0x1p-126;

class LossScaling {
 public:
  // Adds the states loss_scale/scale and loss_scale/good_steps, i64[], how many steps there were since the factor last
  // changed, and the settings loss_scale/growth, /backoff and /interval: after so many steps in a row that were finite
  // the factor is multiplied by the first, after one that was not by the second.
  static absl::StatusOr<LossScaling> Add(Graph& graph);

  // The factor as a scalar of this dtype.
  absl::StatusOr<Value> FactorAs(DType dtype);

  // Divides the gradients by the factor.
  absl::Status Unscale(std::vector<Value>& gradients);

  // After all that depends on the gradients: the next values of states that were not among the graph's results when the
  // scaling was added are those of before if some gradient is not finite; and the factor has its next value.
  absl::Status Finish();

 private:
  explicit LossScaling(Graph& graph) : graph_(&graph) {}

  absl::Status MakeFactor();
  absl::Status SetNext(Value state, Value next);
  absl::Status UpdateFactor();

  Graph* graph_;
  Value scale_, good_steps_, growth_, backoff_, interval_;
  Value factor_;                     // f32[], by which this step multiplies
  Value are_finite_;                 // bool[]
  std::vector<std::string> before_;  // the states that had next values
};

}  // namespace lockstep::passes
