// Nodes of random graphs that are made from the ops' own data: any op, with the attributes and shapes of a row of the
// op cases, and any op's gradient. An op is drawn as soon as it has rows.

#pragma once

#include "test/random_graph/draft.h"

namespace lockstep {

// Adds a node from a row of the op cases, most often of an op that is neither elementwise nor a movement. Operands are
// values of the row's types, values cut and padded to these types, or new inputs; or the row's shapes are changed to
// those of a value.
void AddNodeOfRow(Draft& draft);

// Adds the nodes that compute the gradient of a node, for a random gradient of its first result.
void AddGradient(Draft& draft);

// The reason why no node of the op is drawn; empty if the op's rows are used.
std::string WhyNotDrawn(const OpDef& op);

}  // namespace lockstep
