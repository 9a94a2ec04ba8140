// A directed acyclic graph whose vertices can be merged as long as it stays acyclic. It decides which operations may
// become one.
//
// It maintains a topological order of the merged vertices, so that a check of two vertices searches only the vertices
// between them (after Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs", 2006).

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace lockstep::passes {

class ContractedDag {
 public:
  explicit ContractedDag(size_t num_vertices);

  void AddEdge(size_t from, size_t to);  // requires from < to, and that nothing is merged yet

  // Returns the vertex that v was merged into; v itself if it was not merged.
  size_t Find(size_t v) const { return merged_into_[v]; }

  // Merges b into a and returns true. Returns false if that would close a cycle, that is, if a path leads from one to
  // the other through a third vertex. Also returns false if the search does not end within a fixed number of steps;
  // this needs at least a thousand vertices between the two that depend on the first, and a thousand that the second
  // depends on. Requires that a and b are different and were not merged into others.
  bool Merge(size_t a, size_t b);

 private:
  // One side of a search for a path between two merged vertices: the vertices reached from one of the two.
  struct Side {
    size_t id;
    bool is_forward;
    std::vector<size_t> open;
  };
  // Searches from both vertices. Returns the side that has visited all that it reaches between the two without meeting
  // the other side; nullopt if they met, or if neither side ended.
  std::optional<Side> SearchBetween(size_t first, size_t last);
  bool Step(Side& side, const Side& other, size_t first, size_t last);  // true if the sides have met
  // Changes the order so that the two are adjacent: the vertices between them that depend on them come after them, and
  // those that they depend on before.
  void OrderAround(size_t first, size_t last, const Side& side);

  std::vector<std::vector<size_t>> successors_, predecessors_;  // of each original vertex
  std::vector<size_t> merged_into_;
  std::vector<std::vector<size_t>> members_;  // the original vertices of each merged vertex
  std::vector<size_t> order_, place_;         // of merged vertices: place_[order_[i]] = i
  std::vector<size_t> seen_by_;               // for each merged vertex, the last side of a search that visited it
  size_t last_search_ = 0;
};

}  // namespace lockstep::passes
