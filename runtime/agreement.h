// What ranks compare before they rely on each other: that they run the same program, and that replicas of a state are
// equal. All ranks call these functions together; all get the same verdict.

#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/executor.h"

namespace lockstep {

// FailedPrecondition if the ranks' texts differ, with the first line that does (of a long one the part around the
// difference), its two versions, and `advice`; `what` names the text. Costs one small message unless there is a
// difference.
absl::Status AgreeOnText(Communicator& communicator, std::string_view what, const std::string& text,
                         std::string_view advice = "");

// FailedPrecondition if another thread uses the communicator, or naming the first state whose bits differ between ranks
// that hold the same part of it, and the ranks: all ranks if it is replicated along every axis of the mesh, those with
// the same coordinates along the axes that split it otherwise.
absl::Status CheckReplicas(Executor& executor, Communicator& communicator);

}  // namespace lockstep
