// Decides what a program computes again so that what is in memory at once stays within a budget; rematerialize.h says
// by which rule. It is a walk through the program that notes what it does, and changes nothing.

#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "backends/planning/program.h"

namespace lockstep {

// What the walk needs to know of a program, once for all budgets.
class RecomputeFacts {
 public:
  // A storage with bytes of its own in the arena.
  struct Value {
    uint64_t bytes = 0;           // aligned
    int writer = -1;              // the only instruction that writes it, if it can be run again; else -1
    bool may_go = false;          // whether it may leave memory: it has a writer, which finds all it reads at each use
    std::vector<int> uses;        // positions of instructions that touch it after it is first written
    std::vector<int> dependents;  // values whose writers read it
  };
  struct Step {
    std::vector<int> reads, writes;  // values, each once
    std::vector<std::pair<int, int>>
        overwrites;        // (write, read) of as many bytes, where one may take the other's place
    uint64_t scratch = 0;  // aligned bytes
    uint64_t outside = 0;  // that it writes elsewhere than in the arena
    double cost = 0;       // to run it again
  };

  explicit RecomputeFacts(const Program& program);

  // By root storage; -1 for what is not in the arena.
  int ValueOf(int root) const { return value_of_[static_cast<size_t>(root)]; }
  const Value& value(int id) const { return values_[static_cast<size_t>(id)]; }
  const Step& step(int position) const { return steps_[static_cast<size_t>(position)]; }
  int num_values() const { return static_cast<int>(values_.size()); }
  int num_steps() const { return static_cast<int>(steps_.size()); }

 private:
  void AddValues(const Program& program);
  void AddUses(const Program& program);
  void FindWriters(const Program& program);
  void FindWhatMayGo(const Program& program);

  std::vector<int> value_of_;
  std::vector<Value> values_;
  std::vector<Step> steps_;
};

// The instruction at `position` of the program runs; again, if it has run before. Of what it writes then only `revived`
// is wanted.
struct RecomputeEvent {
  int position = 0;
  bool again = false;
  std::vector<int> revived;  // values
};

struct RecomputePlan {
  std::vector<RecomputeEvent> events;
  double cost = 0;  // of what runs again
};

// Nothing if the walk finds no way to keep within `budget` bytes.
std::optional<RecomputePlan> PlanRecomputation(const RecomputeFacts& facts, uint64_t budget);

}  // namespace lockstep
