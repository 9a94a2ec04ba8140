// Decides which values a program recomputes so that its memory stays within a budget; rematerialize.h describes the
// rule. It is a walk through the program that records events and does not change the program.

#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "backends/planning/program.h"

namespace lockstep {

// The facts about a program that the walk needs, computed once for all budgets.
class RecomputeFacts {
 public:
  // A storage with bytes of its own in the arena.
  struct Value {
    uint64_t bytes = 0;           // aligned
    int writer = -1;              // the only instruction that writes it, if it can run again; else -1
    bool can_be_dropped = false;  // may be dropped: it has a writer, whose operands are valid at each use
    std::vector<int> uses;        // positions of instructions that access it after its first write
    std::vector<int> dependents;  // values whose writers read it
  };
  struct Step {
    std::vector<int> reads, writes;               // values, each once
    std::vector<std::pair<int, int>> overwrites;  // (write, read) of equal size, where the write may overwrite the read
    uint64_t scratch = 0;                         // aligned bytes
    uint64_t outside = 0;                         // bytes that it writes outside the arena
    double cost = 0;                              // to run it again
  };

  explicit RecomputeFacts(const Program& program);

  // Returns the value of a root storage; -1 if it is not in the arena.
  int ValueOf(int root) const { return value_of_[static_cast<size_t>(root)]; }
  const Value& value(int id) const { return values_[static_cast<size_t>(id)]; }
  const Step& step(int position) const { return steps_[static_cast<size_t>(position)]; }
  int num_values() const { return static_cast<int>(values_.size()); }
  int num_steps() const { return static_cast<int>(steps_.size()); }

 private:
  void AddValues(const Program& program);
  void AddUses(const Program& program);
  void FindWriters(const Program& program);
  void FindDroppable(const Program& program);

  std::vector<int> value_of_;
  std::vector<Value> values_;
  std::vector<Step> steps_;
};

// The instruction at `position` of the program runs, or runs again. Then only `revived` of its writes are needed.
struct RecomputeEvent {
  int position = 0;
  bool again = false;
  std::vector<int> revived;  // values
};

struct RecomputePlan {
  std::vector<RecomputeEvent> events;
  double cost = 0;  // of the instructions that run again
};

// Returns nothing if the walk finds no way to stay within `budget` bytes.
std::optional<RecomputePlan> PlanRecomputation(const RecomputeFacts& facts, uint64_t budget);

}  // namespace lockstep
