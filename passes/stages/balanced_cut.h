// Cuts a list into parts of about equal cost, where cuts have a cost too. Used to cut the layers of a network into the
// stages of a pipeline. A pure function of numbers; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::passes {

// Returns the index of the first entry of each part; the first is 0. No part is empty, and the cost of the most
// expensive part is minimal. Among equal solutions it prefers cheaper cuts, from the last cut on. `costs` has one
// number for each entry. `cut_costs` has one more: cut_costs[i] is the cost of a cut before entry i, added to both
// parts; its first and last numbers are not read. Exact, by dynamic programming over the entries, in O(entries^2 *
// parts). Requires 1 <= parts <= entries.
std::vector<size_t> BalancedCut(const std::vector<double>& costs, const std::vector<double>& cut_costs, int64_t parts);

}  // namespace lockstep::passes
