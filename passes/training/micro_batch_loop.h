// A loop over micro-batches in the making: for AccumulateGradients alone.

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
  // Borrows both; `plan` is of `placed`.
  MicroBatchLoop(const Graph& placed, const MicroBatchPlan& plan);

  // What each iteration is to make, in any order and as often as need be: values of `placed` that are in a loop.
  void AddStacked(Value value);
  void AddSummed(Value value);
  bool is_empty() const { return stacked_.empty() && summed_.empty(); }

  // Inserts the loop with `b`, in whose graph `outer` has the whole values of `placed` that come before. What
  // AddStacked got maps to its stack, of all micro-batches, and what AddSummed got to its sum.
  absl::StatusOr<ValueMap> Insert(Builder& b, const ValueMap& outer, const BatchCut& cut);

 private:
  void Need(Value value);
  absl::StatusOr<Graph> Body();
  absl::StatusOr<ValueMap> InsertNode(Builder& b, std::vector<Value> operands, Graph body, int64_t length) const;

  const Graph& placed_;
  const MicroBatchPlan& plan_;
  Graph body_;    // placed, in types of the whole batch
  ValueMap map_;  // from values of placed_ to those of body_
  std::vector<Value> stacked_, summed_, slices_, wholes_;
  std::unordered_set<const Node*> nodes_;  // of placed_ that the body has copies of
  std::unordered_set<Value, ValueHash> seen_;
};

}  // namespace lockstep::passes
