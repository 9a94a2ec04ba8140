// Builds a loop over micro-batches, for AccumulateGradients alone.

#pragma once

#include <unordered_set>
#include <vector>

#include "core/builder.h"
#include "core/graph.h"
#include "core/status.h"
#include "passes/training/cut_batches.h"
#include "passes/training/micro_batch_plan.h"

namespace lockstep::passes {

class MicroBatchLoop {
 public:
  // Borrows both. Requires that `plan` is the plan of `placed`.
  MicroBatchLoop(const Graph& placed, const MicroBatchPlan& plan);

  // Adds values of `placed` that are in a loop as results of the loop. May be called in any order, and repeatedly for
  // the same value.
  void AddStacked(Value value);
  void AddSummed(Value value);
  bool is_empty() const { return stacked_.empty() && summed_.empty(); }

  // Inserts the loop with `b`. `outer` maps whole values of `placed` to values of b's graph. Returns a map from each
  // value given to AddStacked to the stack of all micro-batches, and from each value given to AddSummed to its sum.
  absl::StatusOr<ValueMap> Insert(Builder& b, const ValueMap& outer, const BatchCut& cut);

 private:
  void Need(Value value);
  absl::StatusOr<Graph> Body();
  absl::StatusOr<ValueMap> InsertNode(Builder& b, std::vector<Value> operands, Graph body, int64_t length) const;

  const Graph& placed_;
  const MicroBatchPlan& plan_;
  Graph body_;    // placed, with types of the whole batch
  ValueMap map_;  // from values of placed_ to those of body_
  std::vector<Value> stacked_, summed_, slices_, wholes_;
  std::unordered_set<const Node*> nodes_;  // the nodes of placed_ that are copied into the body
  std::unordered_set<Value, ValueHash> seen_;
};

}  // namespace lockstep::passes
