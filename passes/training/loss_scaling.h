// Dynamic loss scaling, for gradients in f16, whose range is small. Computes the gradients of the loss times a factor,
// and divides them by it before they are used. A step whose gradients are not all finite changes no state and reduces
// the factor (Micikevicius et al., "Mixed Precision Training", 2018; the same as torch.amp.GradScaler). Called by
// MakeTrainStep. One thread at a time may use a Graph.
//
// The check is of the gradients of the whole batch, so that all ranks agree.

#pragma once

#include <string_view>
#include <vector>

#include "core/builder.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// The name of the state of the factor, f32[]. The factor that is used if the state is 0, as it is without a value, or
// not a positive finite number. The smallest factor, whose reciprocal is finite.
inline constexpr std::string_view kLossScale = "loss_scale/scale";
inline constexpr double kInitialLossScale = 65536;
inline constexpr double kLeastLossScale = 0x1p-126;

// The source of the ops that it adds, among which are the gradients divided by the factor.
inline constexpr std::string_view kLossScalingSource = "loss scaling";

// Returns whether the step has a factor that LossScaling added, not merely a state of that name.
bool IsLossScaled(const Graph& step);

class LossScaling {
 public:
  // Adds the states loss_scale/scale and loss_scale/good_steps, i64[], the number of steps since the factor last
  // changed, and the settings loss_scale/growth, /backoff and /interval. After `interval` finite steps in a row the
  // factor is multiplied by `growth`, and after a step that is not finite by `backoff`.
  static absl::StatusOr<LossScaling> Add(Graph& graph);

  // Returns the factor as a scalar of this dtype.
  absl::StatusOr<Value> FactorAs(DType dtype);

  // Divides the gradients by the factor. Those that will be exchanged (core/ops/exchange.cc) are checked on each rank,
  // since an exchange gets the ranks' terms, and may send something finite for a term that is not.
  absl::Status Unscale(std::vector<Value>& gradients, const std::vector<bool>& are_exchanged);

  // Also requires that `x` is finite.
  absl::Status Require(Value x);

  // Adds the update of the factor, and the condition that keeps states unchanged if some gradient is not finite. The
  // condition applies to states that got their next values after Add. Must be called after everything that depends on
  // the gradients was added.
  absl::Status Finish();

 private:
  explicit LossScaling(Graph& graph) : graph_(&graph) {}

  absl::Status MakeFactor();
  void RequireAlso(Builder& b, Value is_finite);
  absl::Status SetNext(Value state, Value next);
  absl::Status UpdateFactor();

  Graph* graph_;
  Value scale_, good_steps_, growth_, backoff_, interval_;
  Value factor_;                     // f32[], the factor of this step
  Value are_finite_;                 // bool[], true if all gradients are finite
  std::vector<std::string> before_;  // the states that had next values before Add
};

}  // namespace lockstep::passes
