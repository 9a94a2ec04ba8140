// Whether the parts of a program fit together, where each rank along an axis of the mesh runs a part of its own
// (Executable::parts_along), as the stages of a pipeline do. What follows each other on a lane must be the same at both
// of its ends; and nobody may wait for ever, which is looked for by going through all parts at once: a start waits for
// nothing, a wait until all who take part have started. Executor::Load asks it; trusts nothing of what made the parts.

#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// What a rank starts and waits for, in its order, a line each: for CheckParts alone.
std::string PartOrder(const Executable& executable);

// `parts` has the order of one rank for each coordinate along the axis of the parts; lanes are the executable's.
// FailedPrecondition if two ends of a lane, or ranks along the axis, differ, with the first transfer that does, or if
// ranks would wait for each other for ever, with who waits for what.
absl::Status CheckParts(const std::vector<std::string>& parts, const std::vector<Lane>& lanes);

// The same for the ranks of a world, which all call it. Ranks that have the same part must have equal orders, too.
absl::Status AgreeOnParts(Communicator& world, const Executable& executable);

}  // namespace lockstep
