// Writes graphs to files as passes change them, for debugging a compilation. Programs that compile call it if the
// environment variable LOCKSTEP_DUMP is set. Passes and backends never read the environment.

#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

// Returns a PassDebug that writes the graph after each pass that changed it, to <folder>/<number>.<pass>.ir, numbered
// in the order of the passes. If a pass fails, it writes the graph before that pass too, for lockstep-opt. <folder> is
// a new folder: <directory>/<name>, or <directory>/<name>.2 and so on if that exists. Creates `directory` if needed.
// Returns Unavailable if a folder cannot be created.
absl::StatusOr<PassDebug> DumpTo(const std::string& directory, std::string_view name);

// Returns the value of LOCKSTEP_DUMP; empty if it is not set. Only main functions and bindings may call it.
std::string DumpDirectoryFromEnvironment();

}  // namespace lockstep::passes
