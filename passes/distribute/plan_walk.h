// Goes through nodes along one axis as the distribute pass does (distribute.h), but without making a graph: asks the
// ops' placement rules for the placements of operands and results, and adds up the time of kernels and collectives. A
// rule is asked once for each node and placements of its operands. A node that the pass would decompose, or a loop, is
// distributed by itself, once. For the search of placements (plan_search.h).
//
// It differs from the pass where the pass looks ahead or back: a slice of a whole value takes the time to store it,
// whatever it is computed from, and values without dimensions are always whole.

#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "core/placement.h"
#include "passes/distribute/plan_costs.h"
#include "passes/distribute/plan_program.h"

namespace lockstep::passes {

// The cost of an impossible placement.
inline constexpr double kImpossible = std::numeric_limits<double>::infinity();

// A placement as a number below 32. Requires dimensions up to 23.
using PlaceCode = uint8_t;
PlaceCode CodeOf(const Placement& placement);
Placement PlacementOf(PlaceCode code);
inline constexpr PlaceCode kReplicatedCode = 0;

// The placement of a value (`is`), and the placements that it has been moved to in addition (`also`, a bit for each
// code).
struct ValuePlacements {
  PlaceCode is = kReplicatedCode;
  uint32_t also = 0;
  auto operator<=>(const ValuePlacements&) const = default;
};

class PlanWalk {
 public:
  // Borrows all arguments. The last axis of `mesh` is the one to place along, of at least two ranks.
  PlanWalk(const Graph& graph, const PlanProgram& program, const Mesh& mesh, const PlanMachine& machine);

  // Returns the seconds of the items, run one after the other. Each item reads the placements of its operands from
  // `where` and writes those of its results there. Returns kImpossible if an item cannot be placed.
  double Run(const std::vector<PlanItem>& items, std::vector<ValuePlacements>& where);

  // Returns the bytes of one rank's part of a value.
  int64_t BytesOf(int value, PlaceCode code) const;

 private:
  // The placements and the seconds of a node, for given placements of its operands.
  struct Ruling {
    std::vector<PlaceCode> required, results;
    double seconds = 0;
  };

  double Run(const PlanItem& item, std::vector<ValuePlacements>& where);
  double End(const PlanItem& item, std::vector<ValuePlacements>& where);
  double Move(int value, PlaceCode to, std::vector<ValuePlacements>& where);
  const Ruling& CachedRule(const PlanItem& item, const std::vector<PlaceCode>& operands);
  Ruling ApplyRule(const PlanItem& item, const std::vector<PlaceCode>& operands);
  Ruling DistributeAlone(const PlanItem& item, const std::vector<PlaceCode>& operands);
  bool CanBePlaced(const Node& node, const std::vector<PlaceCode>& operands, const std::vector<Placement>& required,
                   const std::vector<Placement>& results) const;
  PlacementMap With(const PlacementMap& others, PlaceCode code) const;
  bool HasNoDimension(int value) const { return program_.values[static_cast<size_t>(value)].shape().rank() == 0; }

  const Graph& graph_;
  const PlanProgram& program_;
  const Mesh& mesh_;
  const MeshAxis& axis_;
  const PlanMachine& machine_;
  std::map<const Node*, std::map<std::vector<PlaceCode>, Ruling>> rulings_;
  std::vector<bool> is_reduced_once_;  // by value
};

}  // namespace lockstep::passes
