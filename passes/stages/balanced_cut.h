// Cuts a list into parts that cost about the same, where cuts cost something too: the layers of a network into the
// stages of a pipeline. A plain function of numbers; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::passes {

// `costs` has one number for each entry, `cut_costs` one more: that of a cut before entry i is borne by both parts;
// those before the first and behind the last entry are not asked for. Returns where each part begins, the first with 0.
// No part is empty, and the most expensive one is as cheap as can be; of equal ways that of cheaper cuts, as seen from
// the end. Exact, by dynamic programming over the entries, in O(entries^2 * parts). Requires 1 <= parts <= entries.
std::vector<size_t> BalancedCut(const std::vector<double>& costs, const std::vector<double>& cut_costs, int64_t parts);

}  // namespace lockstep::passes
