// Writes what passes do to files, for those who debug a compilation. Programs that compile call it when somebody asks
// by the environment variable LOCKSTEP_DUMP; passes and backends never look at the environment.

#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

// A PassDebug that writes the graph after each pass that changed it, as <folder>/<number>.<pass>.ir in the order of the
// passes, and in a failure the graph before the pass that failed, for lockstep-opt. <folder> is new:
// <directory>/<name>, or <directory>/<name>.2 and so on if there is one already. The directory is created. Unavailable
// if that cannot be.
absl::StatusOr<PassDebug> DumpTo(const std::string& directory, std::string_view name);

// The directory that LOCKSTEP_DUMP names; empty if it is not set. For main functions and bindings alone.
std::string DumpDirectoryFromEnvironment();

}  // namespace lockstep::passes
