// What ranks compare before they rely on each other: that each got as far, that they run the same program, and that
// replicas of a state are equal. All ranks call these functions together; all get the same verdict, so that the
// communicator goes on after an error, unless that is one of its own.

#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/execution/executor.h"

namespace lockstep {

// OK if what each rank did for itself succeeded on all. Else the rank's own error or, where it has none, that of the
// first rank that failed, with that rank's name. `what` says it.
absl::Status AgreeOnSuccess(Communicator& communicator, std::string_view what, const absl::Status& own);

// FailedPrecondition if the ranks' texts differ, with the first line that does (of a long one the part around the
// difference), its two versions, and `advice`; `what` names the text. Costs one small message unless there is a
// difference.
absl::Status AgreeOnText(Communicator& communicator, std::string_view what, const std::string& text,
                         std::string_view advice = "");

// FailedPrecondition if another thread uses the communicator, or naming the first state whose bits differ between ranks
// that hold the same part of it, and the ranks: all ranks if it is replicated along every axis of the mesh, those with
// the same coordinates along the axes that split it otherwise. A state that one rank cannot read is that rank's error,
// and aborts the communicator.
absl::Status CheckReplicas(Executor& executor, Communicator& communicator);

}  // namespace lockstep
