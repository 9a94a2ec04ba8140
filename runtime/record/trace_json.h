// A trace of all ranks as text in the Trace Event Format (JSON), which Perfetto's page and chrome://tracing open: a
// process for each rank, in it a track of steps and one of collectives. Events are in the order of time, by the clock
// of rank 0, and begin at 0.

#pragma once

#include <string>
#include <vector>

#include "runtime/record/record.h"

namespace lockstep {

std::string TraceJson(const std::vector<RankRecord>& records);

}  // namespace lockstep
