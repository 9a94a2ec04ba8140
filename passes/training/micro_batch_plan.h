// Which parts of a step micro-batches compute, and in which loops: for AccumulateGradients alone.
//
// The step is placed along the axis of micro-batches (core/micro_batches.h). A value of which each micro-batch has a
// part is *in a loop*, and so is what is made with it; others are *whole*. A *crossing* is a collective: it makes a
// whole value of one in a loop, and is a result of that loop. A *slice* is the part of a whole value that a micro-batch
// gets, which a loop scans: of an input, of what all ranks would hold, or of what a crossing made.
//
//   %d = matmul %x, %w        in a loop, of the slice %x and the whole %w
//   %c = all_reduce %n        a crossing of loop 0: how many labels count
//   %l = div %d, %c           in loop 1, as it needs %c
//   %g = all_reduce %l        a crossing of loop 1

#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/graph.h"

namespace lockstep::passes {

// The axis as a mesh has it.
const std::string& MicroBatchAxis();

class MicroBatchPlan {
 public:
  // `placed` stays as it is, and outlives the plan.
  explicit MicroBatchPlan(Graph& placed);

  static bool IsCrossing(const Node& node);
  // A slice is not, nor is what all micro-batches hold alike but make in a loop: a recurrence's count beside its state.
  bool IsWhole(Value value) const;
  // The whole value that `value` is a slice of; a crossing that is sliced, or an input, is that itself. Null if it is
  // no slice.
  Value WholeOf(Value value) const;
  // Computed once, outside of loops.
  bool IsOutside(const Node& node) const { return !IsCrossing(node) && !node.Is("shard") && !in_loop_.contains(&node); }

  int num_loops() const { return num_loops_; }
  // The loop that a crossing is a result of; of what is outside: the number of loops that come before. What is in a
  // loop is in each that needs it.
  int loop_of(const Node& node) const { return loops_.at(&node); }
  // The parts that the dimensions have in common that are cut: see cut_batches.h.
  int64_t granules() const;

 private:
  void FindSlices();
  void FindWhatIsInLoops();
  int Before(Value value) const;
  void CountLoops();
  void ChooseLoops();

  Graph& placed_;
  ValueMap whole_of_;
  std::unordered_set<const Node*> in_loop_;
  // How many loops come before a value, or before the loop that computes it, at least; and what loop_of says.
  std::unordered_map<const Node*, int> before_, loops_;
  int num_loops_ = 0;
};

}  // namespace lockstep::passes
