// Goes through nodes as the distribute pass does (distribute.h), along one axis, without making a graph: asks the ops'
// rules where operands must be and where results then are, and adds up what kernels and collectives take. What a rule
// says is asked once for each node and places of its operands; a node that the pass would take apart, and a loop, are
// distributed alone, once. For the search of placements (plan_search.h).
//
// It differs from the pass where that looks ahead or back: a slice of a whole takes the time to store it, whatever it
// is computed from; values without dimensions are whole.

#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "core/placement.h"
#include "passes/distribute/plan_costs.h"
#include "passes/distribute/plan_program.h"

namespace lockstep::passes {

// The cost of what cannot be.
inline constexpr double kImpossible = std::numeric_limits<double>::infinity();

// A placement as a number below 32; dimensions up to 23.
using PlaceCode = uint8_t;
PlaceCode CodeOf(const Placement& placement);
Placement PlacementOf(PlaceCode code);
inline constexpr PlaceCode kReplicatedCode = 0;

// Where a value is, and where else it has been moved to: a bit for each code.
struct Whereabouts {
  PlaceCode is = kReplicatedCode;
  uint32_t also = 0;
  auto operator<=>(const Whereabouts&) const = default;
};

class PlanWalk {
 public:
  // Everything is borrowed. `mesh` ends with the axis that is placed along, of at least two ranks.
  PlanWalk(const Graph& graph, const PlanProgram& program, const Mesh& mesh, const PlanMachine& machine);

  // Seconds of the items, one after the other, of which each finds its operands in `where` and leaves its results
  // there. Infinite if one cannot be placed.
  double Run(const std::vector<PlanItem>& items, std::vector<Whereabouts>& where);

  // Bytes of a rank for a value.
  int64_t BytesOf(int value, PlaceCode code) const;

 private:
  // What is known of a node whose operands are at some places.
  struct Ruling {
    std::vector<PlaceCode> required, results;
    double seconds = 0;
  };

  double Run(const PlanItem& item, std::vector<Whereabouts>& where);
  double End(const PlanItem& item, std::vector<Whereabouts>& where);
  double Move(int value, PlaceCode to, std::vector<Whereabouts>& where);
  const Ruling& RulingOf(const PlanItem& item, const std::vector<PlaceCode>& operands);
  Ruling AskRule(const PlanItem& item, const std::vector<PlaceCode>& operands);
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
