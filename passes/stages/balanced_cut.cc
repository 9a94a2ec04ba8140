#include "passes/stages/balanced_cut.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace lockstep::passes {

std::vector<size_t> BalancedCut(const std::vector<double>& costs, const std::vector<double>& cut_costs, int64_t parts) {
  const size_t entries = costs.size(), count = static_cast<size_t>(parts);
  LOCKSTEP_CHECK(parts >= 1 && count <= entries && cut_costs.size() == entries + 1) << parts << " of " << entries;
  std::vector<double> before(entries + 1, 0.0);  // the sum of the costs of the entries before an index
  for (size_t i = 0; i < entries; ++i) before[i + 1] = before[i] + costs[i];
  const auto cut = [&](size_t i) { return i == 0 || i == entries ? 0.0 : cut_costs[i]; };
  // For a number of parts and of first entries: the cost of the most expensive part, then of the cut before the last.
  using Best = std::pair<double, double>;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<std::vector<Best>> best(count + 1, std::vector<Best>(entries + 1, {kInfinity, kInfinity}));
  std::vector<std::vector<size_t>> begin(count + 1, std::vector<size_t>(entries + 1, 0));
  best[0][0] = {0, 0};
  for (size_t part = 1; part <= count; ++part) {
    for (size_t end = part; end <= entries; ++end) {
      for (size_t start = end; start-- >= part;) {
        const double inside = before[end] - before[start];
        if (inside > best[part][end].first) break;  // earlier starts cost even more
        const double cost = std::max(best[part - 1][start].first, inside + cut(start) + cut(end));
        if (const Best found{cost, cut(start)}; found < best[part][end]) {
          best[part][end] = found;
          begin[part][end] = start;
        }
      }
    }
  }
  std::vector<size_t> begins(count);
  size_t end = entries;
  for (size_t part = count; part >= 1; --part) end = begins[part - 1] = begin[part][end];
  return begins;
}

}  // namespace lockstep::passes
