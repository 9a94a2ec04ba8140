#include "passes/places.h"

namespace lockstep::passes {

std::string RanksOf(const PlacementMap& placements) {
  std::string text;
  for (const auto& [axis, placement] : placements) {
    if (placement.is_at()) text += axis + "=" + std::to_string(placement.rank()) + " ";
  }
  return text;
}

}  // namespace lockstep::passes
