// Reductions over virtual ranks along one binary tree, whose leaves are the virtual ranks in order: (0+1)+(2+3), then
// the sum of it and (4+5)+(6+7), and so on. The order is the same for every number of ranks that run them, because
// collectives only move terms and ops add them. For FoldVirtualRanks alone.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/placement.h"
#include "core/status.h"
#include "passes/distribute/fold_virtual_ranks.h"
#include "passes/distribute/local_emitter.h"

namespace lockstep::passes {

// The number of virtual ranks of the ranks before `rank`; 0 if the options have no counts.
int64_t FirstOf(const VirtualRanks& options, int64_t rank);

class SumTree {
 public:
  SumTree(LocalEmitter& emit, const VirtualRanks& options) : emit_(emit), options_(options) {}

  // Reduces operands of one dtype: terms[i] are this rank's terms of operand i, one for each of its virtual ranks.
  // `name`, which is the same on all ranks, begins the names of what they exchange. Returns the reductions over all
  // ranks, which are replicated and row-major. Floats of 16 bits are combined in f32 and rounded once. Returns an error
  // for means of integers.
  absl::StatusOr<std::vector<Value>> Reduce(ReduceKind kind, const std::vector<std::vector<Value>>& terms,
                                            const std::string& name);

 private:
  struct Level;

  Value BlocksOfThisRank(const Level& level, const std::vector<Value>& terms);
  Value OfThisRank(const Level& level, std::vector<Value> terms);
  Value AsRow(const Level& level, Value term);
  Value Named(const Level& level, Value value, std::string_view part);
  Value AsColumns(const Level& level, Value sum, Placement placement);
  Value AcrossRanks(const Level& level, const std::vector<Value>& rows);
  Value Combined(const Level& level, const std::vector<Value>& inputs, Placement placement, bool is_last);

  LocalEmitter& emit_;
  const VirtualRanks options_;
};

}  // namespace lockstep::passes
