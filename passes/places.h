// The ranks of values that only one rank has (Placement::At). Passes that merge nodes use it to keep nodes of different
// ranks apart. Any thread.

#pragma once

#include <string>

#include "core/placement.h"

namespace lockstep::passes {

// Returns the axes along which only one rank has a value with these placements, with that rank: "stage=2 ". Values with
// equal texts are at the same ranks.
std::string RanksOf(const PlacementMap& placements);

}  // namespace lockstep::passes
