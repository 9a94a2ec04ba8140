#include "passes/training/accumulate.h"

#include <string>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/reduce_before_scale.h"
#include "passes/optimize/dce.h"
#include "passes/training/cut_batches.h"
#include "passes/training/micro_batch_loop.h"
#include "passes/training/micro_batch_plan.h"

namespace lockstep::passes {
namespace {

// --- Before ----------------------------------------------------------------------------------------------------------

// Returns the placement along the data axis if the input is a batch; else replicated.
Placement PlacementOfCut(const Input& input) {
  const Placement placement = input.value.placement(kDataAxis);
  return input.is_data() && placement.is_split() ? placement : Placement::Replicated();
}

absl::Status CheckBatch(const Graph& step, int64_t micro_batches) {
  if (micro_batches < 1) return InvalidArgument() << "accumulate is " << micro_batches << ", expected at least 1";
  std::string inputs;
  bool any = false;
  for (const Input& input : step.inputs()) {
    if (!input.is_data()) continue;
    inputs += (inputs.empty() ? "" : ", ") + input.name() + " " + input.value.type().ToString();
    const Placement placement = PlacementOfCut(input);
    if (!placement.is_split()) continue;
    any = true;
    const int64_t extent = input.value.shape()[placement.dim()];
    if (extent > 0 && extent % micro_batches == 0) continue;
    ErrorStream error = InvalidArgument()
                        << "accumulate is " << micro_batches << ", but dimension " << placement.dim() << " of input %"
                        << input.name() << " (" << input.value.type() << "), the batch, is " << extent
                        << ", no multiple of " << micro_batches << (extent > 0 ? "; it can be" : " but 0");
    for (int64_t k = 1; k <= extent && k <= 1024; ++k) {
      if (extent % k == 0) error << (k == 1 ? " " : ", ") << k;
    }
    return error;
  }
  if (any) return absl::OkStatus();
  return InvalidArgument() << "accumulate is " << micro_batches << ", but no input of graph @" << step.name()
                           << " is a batch, which is split along axis " << kDataAxis << "; its inputs are "
                           << (inputs.empty() ? "none" : inputs);
}

// Returns the step placed over the axis of micro-batches.
absl::StatusOr<Graph> Placed(const Graph& step, int64_t micro_batches) {
  Graph graph = step.Clone();
  for (size_t i = 0; i < graph.inputs().size(); ++i)
    graph.set_input_placements(i, {{MicroBatchAxis(), PlacementOfCut(graph.inputs()[i])}});
  for (size_t i = 0; i < graph.results().size(); ++i) graph.set_result_placements(i, {});
  ASSIGN_OR_RETURN(Graph placed, DistributeGraph(graph, Mesh({{MicroBatchAxis(), micro_batches}})));
  RETURN_IF_ERROR(Dce().run(placed).status());
  RETURN_IF_ERROR(ReduceBeforeScale().run(placed).status());  // moves divisions by a count out of the loops
  return placed;
}

// --- After -----------------------------------------------------------------------------------------------------------

// Returns true if a loop sums the value; others are stacked. The terms of a mean are summed and divided after the loop.
bool IsSummed(Value value) {
  const Placement placement = value.placement(MicroBatchAxis());
  return placement.is_partial(ReduceKind::kSum) || placement.is_partial(ReduceKind::kMean);
}

class Accumulation {
 public:
  Accumulation(const Graph& step, Graph placed, int64_t micro_batches)
      : step_(step),
        placed_(std::move(placed)),
        plan_(placed_),
        cut_{micro_batches, plan_.granules()},
        to_(step.name()) {}

  absl::StatusOr<Graph> Run() {
    for (size_t i = 0; i < step_.inputs().size(); ++i) {
      const Input& input = step_.inputs()[i];
      ASSIGN_OR_RETURN(map_[placed_.inputs()[i].value],
                       to_.AddInputLike(input, input.value.type(), input.placements()));
    }
    for (int loop = 0; loop <= plan_.num_loops(); ++loop) {
      for (const Node& node : placed_.nodes()) {
        if (plan_.IsOutside(node) && plan_.loop_of(node) == loop) RETURN_IF_ERROR(AddOutside(node));
      }
      if (loop < plan_.num_loops()) RETURN_IF_ERROR(AddLoop(loop));
    }
    for (size_t i = 0; i < step_.results().size(); ++i) {
      const Result& result = step_.results()[i];
      const Value value = map_.at(placed_.results()[i].value);
      RETURN_IF_ERROR(result.is_state ? to_.AddStateResult(result.name, value, result.placements)
                                      : to_.AddResult(result.name, value, result.placements));
    }
    return std::move(to_);
  }

 private:
  absl::Status AddOutside(const Node& node) {
    for (Value operand : node.operands()) {
      if (!map_.contains(operand))
        return Internal() << "accumulate: " << node.Describe() << " is whole, and %" << operand.name() << " is not";
    }
    NodeSpec spec = CopyOf(node, map_);
    spec.placements.clear();
    ASSIGN_OR_RETURN(Node* const copy, to_.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) map_[const_cast<Node&>(node).result(i)] = copy->result(i);
    return absl::OkStatus();
  }

  // Returns the results of the program that micro-batches compute. They are results of the last loop.
  std::vector<Value> CutResults(int loop) const {
    std::vector<Value> values;
    for (const Result& result : placed_.results()) {
      if (loop + 1 == plan_.num_loops() && !plan_.IsWhole(result.value)) values.push_back(result.value);
    }
    return values;
  }

  absl::Status AddLoop(int number) {
    MicroBatchLoop loop(placed_, plan_);
    std::vector<Node*> crossings;
    for (Node& node : placed_.nodes()) {
      if (!MicroBatchPlan::IsCrossing(node) || plan_.loop_of(node) != number) continue;
      crossings.push_back(&node);
      if (IsSummed(node.operand(0))) loop.AddSummed(node.operand(0));
      else loop.AddStacked(node.operand(0));
    }
    for (Value value : CutResults(number)) loop.AddStacked(value);
    if (loop.is_empty()) return absl::OkStatus();
    Builder b(to_, nullptr, std::string(kMicroBatchesSource));
    ASSIGN_OR_RETURN(const ValueMap made, loop.Insert(b, map_, cut_));
    const auto add = [&](Value whole, Value part) -> absl::Status {
      map_[whole] = Whole(b, part, made.at(part));
      RETURN_IF_ERROR(b.status());
      to_.SetName(map_[whole], part.name());
      return absl::OkStatus();
    };
    for (Node* crossing : crossings) RETURN_IF_ERROR(add(crossing->result(), crossing->operand(0)));
    for (Value value : CutResults(number)) RETURN_IF_ERROR(add(value, value));
    return absl::OkStatus();
  }

  // Returns the value of the whole batch. `part` is the value of one micro-batch, and `made` the result of the loop.
  Value Whole(Builder& b, Value part, Value made) const {
    const Placement placement = part.placement(MicroBatchAxis());
    if (placement.is_split()) return cut_.Join(b, made, placement.dim());
    if (placement.is_replicated()) return First(b, made);
    if (placement.is_partial(ReduceKind::kSum)) return made;
    if (placement.is_partial(ReduceKind::kMean)) return b.Scale(made, 1.0 / static_cast<double>(cut_.micro_batches));
    return b.Op("reduce_" + std::string(ReduceKindName(placement.reduce())), {made},
                {{"dims", std::vector<int64_t>{0}}});
  }

  // Returns the first entry of a stack.
  static Value First(Builder& b, Value stack) {
    const std::vector<int64_t> start(static_cast<size_t>(stack.shape().rank()));
    std::vector<int64_t> limit = stack.shape().dims();
    limit[0] = 1;
    const std::vector<int64_t> rest(limit.begin() + 1, limit.end());
    return b.Reshape(b.Slice(stack, start, std::move(limit)), Shape(rest));
  }

  const Graph& step_;
  Graph placed_;
  const MicroBatchPlan plan_;
  const BatchCut cut_;
  Graph to_;
  ValueMap map_;  // from whole values of placed_ to those of to_
};

}  // namespace

absl::Status AccumulateGradients(Graph& step, int64_t micro_batches) {
  if (micro_batches == 1) return absl::OkStatus();
  RETURN_IF_ERROR(CheckBatch(step, micro_batches));
  absl::StatusOr<Graph> placed = Placed(step, micro_batches);
  if (!placed.ok()) return Annotate(placed.status(), "accumulate");
  ASSIGN_OR_RETURN(step, Accumulation(step, *std::move(placed), micro_batches).Run());
  return Dce().run(step).status();  // removes nodes that were copied into bodies
}

}  // namespace lockstep::passes
