// Nodes of random graphs of which ops tell enough: any op, with the attributes and shapes of a row of the op cases, and
// any op's gradient. So an op is drawn as soon as it has rows.

#pragma once

#include "test/random_graph/draft.h"

namespace lockstep {

// A node as a row of the op cases has it, most often of an op that is neither elementwise nor a movement. Operands are
// values of the row's types, values that are cut and padded to these, or new inputs; or the row's shapes are changed to
// those of a value.
void AddNodeOfRow(Draft& draft);

// What the gradient of a node is computed by, for a random gradient of its first result.
void AddGradient(Draft& draft);

// Why no node of the op is drawn; empty if the op's rows are drawn from.
std::string WhyNotDrawn(const OpDef& op);

}  // namespace lockstep
