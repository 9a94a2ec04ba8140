// Loops from parts: for what takes one apart, and makes another of the pieces.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/ops/scan.h"

namespace lockstep {

// A scan that is yet to be made: its operands and results, and what they are.
struct ScanParts {
  // Inputs of the body with the operands that they stand for.
  struct Operand {
    Value outer, inner;
  };
  std::vector<Operand> carried, scanned, constants;
  // Values of the body. next_carried[i] is that of carried[i] for the next iteration.
  std::vector<Value> next_carried, stacked, summed;
  // Names of the node's results in that order; empty ones are made up.
  std::vector<std::string> carried_names, stacked_names, summed_names;

  // Where input i, or result i, of a loop of that form belongs.
  std::vector<Operand>& operands_with(const ScanForm& form, size_t i) {
    return i < form.carried ? carried : form.is_scanned(i) ? scanned : constants;
  }
  std::vector<Value>& results_with(const ScanForm& form, size_t i) {
    return i < form.carried ? next_carried : form.is_stacked(i) ? stacked : summed;
  }
};

// The node of these parts: what the results need of the nodes of `body`, in which all inner values lie, is copied.
// What is scanned or constant and not needed is left out. Inputs keep their names and placements.
absl::StatusOr<NodeSpec> MakeScan(const Graph& body, const ScanParts& parts, int64_t length, bool reverse,
                                  std::string source);

// Puts the node of these parts in the place of `scan`, with its other attributes. The new results stand for those
// of `scan` whose numbers are `kept`, ascending, and have their names and placements; nobody uses the others.
absl::Status ReplaceScan(Graph& graph, Node& scan, const Graph& body, const ScanParts& parts,
                         const std::vector<size_t>& kept);

}  // namespace lockstep
