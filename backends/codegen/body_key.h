// A key of loop bodies that compile to the same code.

#pragma once

#include <string>

#include "core/graph.h"

namespace lockstep {

// Returns the body as text in which values are numbered. Bodies that differ only in names have equal text.
std::string BodyKey(const Graph& body);

}  // namespace lockstep
