// Comparisons between ranks: each has succeeded so far, all run the same program, and replicas of a state are equal.
// All ranks call these functions together and get the same result, so the communicator remains usable after an error,
// unless the error is its own.

#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/execution/executor.h"

namespace lockstep {

// Returns OK if `own` is OK on all ranks. Otherwise returns the rank's own error or, if it has none, the error of the
// first failed rank, with that rank's name. `what` describes the work.
absl::Status AgreeOnSuccess(Communicator& communicator, std::string_view what, const absl::Status& own);

// Returns FailedPrecondition if the ranks' texts differ, with the first different line (of a long line, the part around
// the difference), its two versions, and `advice`. `what` names the text. Costs one small message if there is no
// difference.
absl::Status AgreeOnText(Communicator& communicator, std::string_view what, const std::string& text,
                         std::string_view advice = "");

// Returns FailedPrecondition if another thread uses the communicator, or if a state's bits differ between ranks that
// hold the same part of it. The error names the first such state and the ranks. These are all ranks if the state is
// replicated along every axis of the mesh, otherwise the ranks with the same coordinates along the axes that split it.
// If a rank cannot read a state, it returns its error and aborts the communicator.
absl::Status CheckReplicas(Executor& executor, Communicator& communicator);

}  // namespace lockstep
