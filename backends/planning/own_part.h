// What one rank computes of a program whose values are at one rank each of a mesh axis (Placement::At), as those of a
// pipeline's stages are (passes/stages/cut_into_stages.h). All ranks have the same list; a rank's own part of it is
// what is at it, what follows from nothing that is at any rank, where it needs that, and its ends of transfers.
// Lowering skips the rest. Borrows the graph; any thread.
//
//   %h = matmul %x, %w : f32[2,5] at(0, stage)                                              rank 0
//   %g = collective_permute %h {axis=stage, sources=[0], targets=[1]} : f32[2,5] at(1, …)   rank 0 gives, rank 1 gets
//   %y = matmul %g, %v : f32[2,2] at(1, stage)                                              rank 1
//   %l = collective_broadcast %y {axis=stage, root=1} : f32[2,2]                            all; rank 1 gives
//
// Each rank starts what it takes part in in the order of the list. So none waits for ever: of the collectives that
// ranks wait for take the first of the list. A rank that has not started it waits for one that it started before, which
// comes before it in the list, and is a contradiction. runtime/execution/part_order.h looks whether it is so.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/graph.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// The rank's place along the axis whose ranks compute parts of their own.
struct PlaceOfPart {
  std::string axis;
  int64_t coordinate = 0;
};

class OwnPart {
 public:
  // Without a place the whole: the rank computes all that is in the list.
  OwnPart(const Graph& graph, std::optional<PlaceOfPart> place);

  bool is_whole() const { return !place_.has_value(); }
  // Whether the rank has what is placed so.
  bool Has(const PlacementMap& placements) const;
  bool Has(Value value) const { return Has(value.placements()); }
  // Whether it computes the node, or takes part in it.
  bool Computes(const Node& node) const { return is_whole() || !elsewhere_.contains(&node); }
  // Whether it is a collective that moves what one rank alone has, of which this one has an end, or both.
  bool HasEndOf(const Node& node) const;
  // The number of the node's lane; -1 if it is no transfer from one rank to another one.
  int LaneOf(const Node& node) const;
  // Those of all ranks, in the order of the list.
  const std::vector<Lane>& lanes() const { return lanes_; }

 private:
  void AddLanes(const Graph& graph);
  void FindOwn(const Graph& graph);

  const std::optional<PlaceOfPart> place_;
  std::vector<Lane> lanes_;
  std::unordered_set<const Node*> elsewhere_;  // nodes
};

}  // namespace lockstep
