#include "passes/training/loss_scaling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "core/builder.h"
#include "passes/training/uneven.h"

namespace lockstep::passes {
namespace {

constexpr char kGrowth[] = "loss_scale/growth";

// Returns a bool that is true if all elements are finite. Ranks with parts of x take the maximum of 0 or 1, not of x,
// since not every library's maximum propagates NaN.
Value AreFinite(Builder& b, Value x) {
  const Value size = b.Unary("abs", x);
  const Value is_finite = b.Compare(size, b.SplatLike(HUGE_VAL, size), "lt");
  Value bad = b.Select(is_finite, b.SplatLike(0, size), b.SplatLike(1, size));
  if (x.shape().rank() > 0) {
    std::vector<int64_t> dims(static_cast<size_t>(x.shape().rank()));
    std::iota(dims.begin(), dims.end(), 0);
    bad = b.ReduceMax(bad, std::move(dims));
  }
  return b.Compare(bad, b.SplatLike(1, bad), "lt");
}

// The same for all terms of a sum that no rank has as a whole. 0 times what is not finite is NaN, and a sum of products
// needs only one number of each rank.
Value TermsAreFinite(Builder& b, Value x) {
  Value zero = b.Mul(x, b.SplatLike(0, x));
  if (x.shape().rank() > 0) {
    std::vector<int64_t> dims(static_cast<size_t>(x.shape().rank()));
    std::iota(dims.begin(), dims.end(), 0);
    zero = b.ReduceSum(zero, std::move(dims));
  }
  return b.Compare(zero, b.SplatLike(1, zero), "lt");
}

}  // namespace

bool IsLossScaled(const Graph& step) {
  const Input* const growth = step.FindInput(kGrowth);
  return growth != nullptr && growth->setting.has_value() && step.FindInput(kLossScale) != nullptr;
}

absl::StatusOr<LossScaling> LossScaling::Add(Graph& graph) {
  LossScaling scaling(graph);
  for (const Result& result : graph.results()) {
    if (result.is_state) scaling.before_.push_back(result.name);
  }
  const Shape scalar;
  ASSIGN_OR_RETURN(scaling.scale_, graph.AddInput(std::string(kLossScale), {DType::kF32, scalar}, /*is_state=*/true));
  ASSIGN_OR_RETURN(scaling.good_steps_, graph.AddInput("loss_scale/good_steps", {DType::kI64, scalar}, true));
  ASSIGN_OR_RETURN(scaling.growth_, graph.AddSetting(kGrowth, {2, AtLeast(1)}));
  ASSIGN_OR_RETURN(scaling.backoff_, graph.AddSetting("loss_scale/backoff", {0.5, Above(0, 1)}));
  ASSIGN_OR_RETURN(scaling.interval_, graph.AddSetting("loss_scale/interval", {2000, AtLeast(1)}));
  RETURN_IF_ERROR(scaling.MakeFactor());
  return scaling;
}

absl::Status LossScaling::MakeFactor() {
  Builder b(*graph_, nullptr, std::string(kLossScalingSource));
  const Value is_given = b.Op(
      "and", {b.Compare(scale_, b.SplatLike(0, scale_), "gt"), b.Compare(scale_, b.SplatLike(HUGE_VAL, scale_), "lt")});
  const Value least = b.SplatLike(kLeastLossScale, scale_);
  factor_ = b.Select(is_given, b.Max(scale_, least), b.SplatLike(kInitialLossScale, scale_));
  return b.status();
}

absl::StatusOr<Value> LossScaling::FactorAs(DType dtype) {
  Builder b(*graph_, nullptr, std::string(kLossScalingSource));
  const Value factor = b.Convert(factor_, dtype);
  RETURN_IF_ERROR(b.status());
  return factor;
}

absl::Status LossScaling::Unscale(std::vector<Value>& gradients, const std::vector<bool>& are_exchanged) {
  Builder b(*graph_, nullptr, std::string(kLossScalingSource));
  const Value by = b.Div(b.SplatLike(1, factor_), factor_);
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = b.Mul(gradients[i], b.Broadcast(b.Convert(by, gradients[i].dtype()), gradients[i].shape(), {}));
    RequireAlso(b, are_exchanged[i] ? TermsAreFinite(b, gradients[i]) : AreFinite(b, gradients[i]));
  }
  return b.status();
}

absl::Status LossScaling::Require(Value x) {
  Builder b(*graph_, nullptr, std::string(kLossScalingSource));
  RequireAlso(b, AreFinite(b, x));
  return b.status();
}

void LossScaling::RequireAlso(Builder& b, Value is_finite) {
  are_finite_ = are_finite_ ? b.Op("and", {are_finite_, is_finite}) : is_finite;
}

absl::Status LossScaling::Finish() {
  RETURN_IF_ERROR(UpdateStatesIf(*graph_, are_finite_, before_, "if_finite"));
  return UpdateFactor();
}

absl::Status LossScaling::SetNext(Value state, Value next) {
  graph_->SetName(next, state.name() + ".next");
  return graph_->AddStateResult(state.name(), next);
}

absl::Status LossScaling::UpdateFactor() {
  Builder b(*graph_, nullptr, std::string(kLossScalingSource));
  const Value good_steps = b.AddScalar(good_steps_, 1);
  const Value is_due = b.Compare(b.Convert(good_steps, DType::kF64), interval_, "ge");
  const Value grown = b.Mul(factor_, b.Convert(growth_, DType::kF32));
  const Value can_grow = b.Op("and", {is_due, b.Compare(grown, b.SplatLike(HUGE_VAL, grown), "lt")});
  const Value product = b.Mul(factor_, b.Convert(backoff_, DType::kF32));
  const Value smaller = b.Max(product, b.SplatLike(kLeastLossScale, product));
  const Value scale = b.Select(are_finite_, b.Select(can_grow, grown, factor_), smaller);
  const Value counts = b.Op("and", {are_finite_, b.Op("not", {is_due})});
  const Value next_good_steps = b.Select(counts, good_steps, b.SplatLike(0, good_steps));
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(SetNext(scale_, scale));
  return SetNext(good_steps_, next_good_steps);
}

}  // namespace lockstep::passes
