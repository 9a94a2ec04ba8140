#include "passes/optimize/contracted_dag.h"

#include <numeric>
#include <utility>

#include "core/check.h"

namespace lockstep::passes {

ContractedDag::ContractedDag(size_t num_vertices)
    : successors_(num_vertices),
      predecessors_(num_vertices),
      merged_into_(num_vertices),
      members_(num_vertices),
      order_(num_vertices),
      place_(num_vertices),
      seen_by_(num_vertices) {
  std::iota(merged_into_.begin(), merged_into_.end(), 0);
  std::iota(order_.begin(), order_.end(), 0);
  std::iota(place_.begin(), place_.end(), 0);
  for (size_t v = 0; v < num_vertices; ++v) members_[v] = {v};
}

void ContractedDag::AddEdge(size_t from, size_t to) {
  LOCKSTEP_CHECK(from < to) << from << " -> " << to;
  successors_[from].push_back(to);
  predecessors_[to].push_back(from);
}

bool ContractedDag::Merge(size_t a, size_t b) {
  const auto [first, last] = place_[a] < place_[b] ? std::pair(a, b) : std::pair(b, a);
  const std::optional<Side> side = SearchBetween(first, last);
  if (!side) return false;
  OrderAround(first, last, *side);
  for (size_t v : members_[b]) merged_into_[v] = a;
  members_[a].insert(members_[a].end(), members_[b].begin(), members_[b].end());
  members_[b].clear();
  return true;
}

// Both sides search alternately, so the search ends as soon as one is exhausted. Usually one of the two vertices
// depends on few vertices, or few depend on it. If both sides are large, as between a value of a deep network and its
// gradient, there is a path.
std::optional<ContractedDag::Side> ContractedDag::SearchBetween(size_t first, size_t last) {
  constexpr size_t kMostSteps = 1000;
  Side forward{++last_search_, true, {first}}, backward{++last_search_, false, {last}};
  seen_by_[first] = forward.id;
  seen_by_[last] = backward.id;
  for (size_t i = 0; i < kMostSteps; ++i) {
    for (Side* side : {&forward, &backward}) {
      if (side->open.empty()) return *side;
      if (Step(*side, side == &forward ? backward : forward, first, last)) return std::nullopt;
    }
  }
  return std::nullopt;
}

bool ContractedDag::Step(Side& side, const Side& other, size_t first, size_t last) {
  const size_t at = side.open.back();
  side.open.pop_back();
  const auto is_end = [&](size_t v) { return v == first || v == last; };
  for (size_t member : members_[at]) {
    for (size_t neighbor : (side.is_forward ? successors_ : predecessors_)[member]) {
      const size_t next = Find(neighbor);
      const bool is_direct = is_end(at) && is_end(next);
      if (is_direct || seen_by_[next] == side.id) continue;
      if (seen_by_[next] == other.id) return true;
      if (place_[next] < place_[first] || place_[next] > place_[last]) continue;
      seen_by_[next] = side.id;
      side.open.push_back(next);
    }
  }
  return false;
}

void ContractedDag::OrderAround(size_t first, size_t last, const Side& side) {
  const size_t begin = place_[first], end = place_[last];
  std::vector<size_t> before, after;
  for (size_t place = begin + 1; place < end; ++place) {
    const bool is_met = seen_by_[order_[place]] == side.id;
    (is_met == side.is_forward ? after : before).push_back(order_[place]);
  }
  size_t place = begin;
  for (const std::vector<size_t>& vertices : {before, {first, last}, after}) {
    for (size_t v : vertices) {
      place_[v] = place;
      order_[place++] = v;
    }
  }
}

}  // namespace lockstep::passes
