// At which ranks values are that one rank alone has (Placement::At), for passes that put nodes together: those of
// different ranks stay apart. Any thread.

#pragma once

#include <string>

#include "core/placement.h"

namespace lockstep::passes {

// Along which axes one rank alone has what is placed so, and which: "stage=2 ". Where it is equal, values are at the
// same ranks.
std::string RanksOf(const PlacementMap& placements);

}  // namespace lockstep::passes
