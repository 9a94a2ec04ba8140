// Decides which parts of a step are computed by loops over micro-batches, for AccumulateGradients alone.
//
// The step is placed along the axis of micro-batches (core/micro_batches.h). A value of which each micro-batch has a
// part is *in a loop*, and so are values computed from it. Other values are *whole*. A *crossing* is a collective: it
// makes a whole value from one in a loop, and is a result of that loop. A *slice* is the part of a whole value that a
// micro-batch gets; a loop scans it. It is a slice of an input, of a replicated value, or of the result of a crossing.
//
//   %d = matmul %x, %w        in a loop, of the slice %x and the whole %w
//   %c = all_reduce %n        a crossing of loop 0: the number of counted labels
//   %l = div %d, %c           in loop 1, as it needs %c
//   %g = all_reduce %l        a crossing of loop 1

#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/graph.h"

namespace lockstep::passes {

// Returns the name of the axis of micro-batches.
const std::string& MicroBatchAxis();

class MicroBatchPlan {
 public:
  // Borrows `placed`, which must outlive the plan and must not change.
  explicit MicroBatchPlan(Graph& placed);

  static bool IsCrossing(const Node& node);
  // Returns true if a value is whole. Slices are not, nor are replicated values that are computed in a loop, such as
  // the counter of a recurrence.
  bool IsWhole(Value value) const;
  // Returns the whole value that `value` is a slice of: for an input or a reduce_scatter it is `value` itself. Returns
  // null if it is no slice.
  Value WholeOf(Value value) const;
  // Returns true if a node is computed once, outside of loops.
  bool IsOutside(const Node& node) const { return !IsCrossing(node) && !node.Is("shard") && !in_loop_.contains(&node); }

  int num_loops() const { return num_loops_; }
  // Returns the loop that a crossing is a result of; for a node outside of loops, the number of loops before it. Other
  // nodes have no loop of their own: they are computed in each loop that needs them.
  int loop_of(const Node& node) const { return loops_.at(&node); }
  // Returns the number of granules of the batch (cut_batches.h): the greatest common divisor of all cut dimensions.
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
  // `before_`: the minimum number of loops before a value, or before the loop that computes it. `loops_`: loop_of.
  std::unordered_map<const Node*, int> before_, loops_;
  int num_loops_ = 0;
};

}  // namespace lockstep::passes
