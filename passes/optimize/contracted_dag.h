// A directed acyclic graph whose vertices are merged, as long as it stays acyclic: which operations may become one.
//
// An order of the merged vertices is kept, so that whether two may be merged is looked for between them only (after
// Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs", 2006).

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace lockstep::passes {

class ContractedDag {
 public:
  explicit ContractedDag(size_t num_vertices);

  void AddEdge(size_t from, size_t to);  // requires from < to, and that nothing is merged yet

  // The vertex that v was merged into; v itself if it was not.
  size_t Find(size_t v) const { return merged_into_[v]; }

  // Merges b into a, which are different and were not merged into others. False if that would close a cycle: if a way
  // leads from one to the other through third ones. Also false where that cannot be found out within a fixed number
  // of steps, for which a thousand others must come after the one, and a thousand before the other, in between.
  bool Merge(size_t a, size_t b);

 private:
  // Of a search for a way from one merged vertex to another: those that are reached from one of them.
  struct Side {
    size_t id;
    bool is_forward;
    std::vector<size_t> open;
  };
  // The side that has found all that it reaches between the two, not having met the other; nothing if they met, or if
  // neither came to an end.
  std::optional<Side> SearchBetween(size_t first, size_t last);
  bool Step(Side& side, const Side& other, size_t first, size_t last);  // true if the sides have met
  // What depends on the two comes after them, and what they depend on before.
  void OrderAround(size_t first, size_t last, const Side& side);

  std::vector<std::vector<size_t>> successors_, predecessors_;  // of each vertex, as it was before it was merged
  std::vector<size_t> merged_into_;
  std::vector<std::vector<size_t>> members_;  // of a merged vertex
  std::vector<size_t> order_, place_;         // of merged vertices: place_[order_[i]] = i
  std::vector<size_t> seen_by_;               // of a merged vertex: the last side of a search that met it
  size_t last_search_ = 0;
};

}  // namespace lockstep::passes
