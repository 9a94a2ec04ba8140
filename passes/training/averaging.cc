#include "passes/training/averaging.h"

#include "core/builder.h"
#include "passes/state_names.h"

namespace lockstep::passes {
namespace {

Value Averaged(Builder& b, Value average, Value next, Value weight) {
  const DType dtype = average.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const Shape& shape = average.shape();
  const Value rest = b.Sub(b.SplatLike(1, weight), weight);
  const auto spread = [&](Value scalar) { return b.Broadcast(b.Convert(scalar, dtype), shape, {}); };
  const Value kept = b.Mul(spread(rest), b.Convert(average, dtype));
  const Value taken = b.Mul(spread(weight), b.Convert(next, dtype));
  const Value sum = b.Convert(b.Add(kept, taken), average.dtype());
  // The weights 0 and 1 are selected, since infinity times 0 is NaN.
  const auto is = [&](double number) {
    return b.Broadcast(b.Compare(weight, b.SplatLike(number, weight), "eq"), shape, {});
  };
  return b.Select(is(0), average, b.Select(is(1), next, sum));
}

}  // namespace

absl::Status AddAverages(Graph& graph, const std::vector<Value>& states) {
  if (states.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Value weight, graph.AddSetting("averaging/weight", {1, Between(0, 1)}));
  Builder b(graph, nullptr, "averaging");
  for (Value state : states) {
    ASSIGN_OR_RETURN(const Value average, graph.AddInput(AverageOf(state.name()), state.type(), /*is_state=*/true));
    const Value next = Averaged(b, average, graph.FindResult(state.name(), /*is_state=*/true)->value, weight);
    RETURN_IF_ERROR(b.status());
    graph.SetName(next, average.name() + ".next");
    RETURN_IF_ERROR(graph.AddStateResult(average.name(), next));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::passes
