// What two loops have in common whose code is the same.

#pragma once

#include <string>

#include "core/graph.h"

namespace lockstep {

// The body as text in which values are numbers: equal for bodies that differ in names alone.
std::string BodyKey(const Graph& body);

}  // namespace lockstep
