// The trace of all ranks as text in the Trace Event Format (JSON), which Perfetto and chrome://tracing open: a process
// for each rank, with a track of steps and one for each communicator's collectives. A flow leads from a collective on
// the rank that arrived last to the same collective on each rank that waited for it. Events are sorted by time on rank
// 0's clock, from 0.

#pragma once

#include <string>
#include <vector>

#include "runtime/record/record.h"

namespace lockstep {

std::string TraceJson(const std::vector<RankRecord>& records);

}  // namespace lockstep
