// Makes loops from parts. For passes and gradients that take a loop apart and make another of its parts.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/ops/scan.h"

namespace lockstep {

// The description of a scan to be made: its operands and results by their roles.
struct ScanParts {
  // An operand of the node, `outer`, and the input of the body that stands for it, `inner`.
  struct Operand {
    Value outer, inner;
  };
  std::vector<Operand> carried, scanned, constants;
  // Values of the body. next_carried[i] is the value of carried[i] in the next iteration.
  std::vector<Value> next_carried, stacked, summed;
  // Names of the node's results in that order. A new name replaces an empty one.
  std::vector<std::string> carried_names, stacked_names, summed_names;

  // The list to which input i, or result i, of a loop of that form belongs.
  std::vector<Operand>& operands_with(const ScanForm& form, size_t i) {
    return i < form.carried ? carried : form.is_scanned(i) ? scanned : constants;
  }
  std::vector<Value>& results_with(const ScanForm& form, size_t i) {
    return i < form.carried ? next_carried : form.is_stacked(i) ? stacked : summed;
  }
};

// Returns the scan node of these parts. Requires that all inner values are in `body`. Copies the nodes of `body` that
// the results need. Scanned and constant inputs that are not needed are left out. Inputs keep their names and
// placements.
absl::StatusOr<NodeSpec> MakeScan(const Graph& body, const ScanParts& parts, int64_t length, bool reverse,
                                  std::string source);

// Replaces `scan` by the node of these parts, with the other attributes of `scan`. The new results replace the results
// of `scan` with the indices `kept`, ascending, and get their names and placements. Requires that the other results of
// `scan` are not used.
absl::Status ReplaceScan(Graph& graph, Node& scan, const Graph& body, const ScanParts& parts,
                         const std::vector<size_t>& kept);

}  // namespace lockstep
