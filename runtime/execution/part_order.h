// Checks that the parts of a program fit together, if each rank along an axis of the mesh runs its own part
// (Executable::parts_along), as the stages of a pipeline do. The sequence of transfers on a lane must be equal at both
// ends, and no rank may wait for ever. For this, the check executes all parts together: a start waits for nothing, and
// a wait waits until all participants have started. Executor::Load calls it. It does not rely on the code that made the
// parts.

#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// Returns the starts and waits of a rank in order, one per line. Only for CheckParts.
std::string PartOrder(const Executable& executable);

// `parts` has the order of one rank for each coordinate along the axis of the parts; `lanes` are the executable's.
// FailedPrecondition if two ends of a lane, or ranks along the axis, differ, with the first different transfer, or if
// ranks would wait for each other for ever, with what each waits for.
absl::Status CheckParts(const std::vector<std::string>& parts, const std::vector<Lane>& lanes);

// Checks the ranks of a world, all of which call it. Ranks with the same part must also have equal orders.
absl::Status AgreeOnParts(Communicator& world, const Executable& executable);

}  // namespace lockstep
