// The part of a program that one rank computes if values are each at one rank of a mesh axis (Placement::At), such as
// those of a pipeline's stages (passes/stages/cut_into_stages.h). All ranks have the same list of nodes. A rank's own
// part is the nodes at that rank, its ends of transfers, and the nodes that depend on no rank, if its part needs them.
// Lowering skips the rest. Borrows the graph; any thread.
//
//   %h = matmul %x, %w : f32[2,5] at(0, stage)                                              rank 0
//   %g = collective_permute %h {axis=stage, sources=[0], targets=[1]} : f32[2,5] at(1, …)   rank 0 gives, rank 1 gets
//   %y = matmul %g, %v : f32[2,2] at(1, stage)                                              rank 1
//   %l = collective_broadcast %y {axis=stage, root=1} : f32[2,2]                            all; rank 1 gives
//
// Each rank starts its collectives in the order of the list. Therefore no rank waits for ever: consider the first
// collective in the list that some rank waits for. A rank that has not started it waits for a collective that it
// started before, which is earlier in the list: a contradiction. runtime/execution/part_order.h checks the order.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/graph.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// The rank's place along the axis whose ranks compute different parts.
struct PlaceOfPart {
  std::string axis;
  int64_t coordinate = 0;
};

class OwnPart {
 public:
  // Without a place, the rank computes the whole list.
  OwnPart(const Graph& graph, std::optional<PlaceOfPart> place);

  bool is_whole() const { return !place_.has_value(); }
  // Returns true if this rank has a value with these placements.
  bool Has(const PlacementMap& placements) const;
  bool Has(Value value) const { return Has(value.placements()); }
  // Returns true if the rank computes the node or takes part in it.
  bool Computes(const Node& node) const { return is_whole() || !nodes_of_other_ranks_.contains(&node); }
  // Returns true for a collective that moves a value of one rank if this rank is its source, its target, or both.
  bool HasEndOf(const Node& node) const;
  // Returns the number of the node's lane; -1 if it is not a transfer between two ranks.
  int LaneOf(const Node& node) const;
  // The lanes of all ranks, in the order of the list.
  const std::vector<Lane>& lanes() const { return lanes_; }

 private:
  void AddLanes(const Graph& graph);
  void FindOwn(const Graph& graph);

  const std::optional<PlaceOfPart> place_;
  std::vector<Lane> lanes_;
  std::unordered_set<const Node*> nodes_of_other_ranks_;  // nodes that only other ranks compute
};

}  // namespace lockstep
