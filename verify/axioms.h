// Laws of real numbers that do not hold in a field, and that passes rely on. Each is in axioms.cc, as a pattern of
// nodes and what it means, and has a case in axioms_test.cc. A comparison that uses one reports it as an assumption. A
// pass that needs another law is found as an error, since results then differ.

#pragma once

#include "core/graph.h"
#include "verify/meaning.h"

namespace lockstep::verify {

// True if a law says that the node's result is its operand 0.
bool IsItsOperand(const Node& node);

// If a law applies to the node, writes the results of `m` by it and returns true.
bool ApplyAxiom(const Node& node, Meaning& m);

// Returns x for a bitcast of a bitcast of x to its own dtype, else null.
Value StandsFor(const Node& node);

}  // namespace lockstep::verify
