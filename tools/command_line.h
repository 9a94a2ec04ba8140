// Functions shared by the command line programs: flags, the input file, errors.

#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace lockstep {

// Parses Abseil's flags, accepting '-' for '_' in their names, and calls run(path) with the file argument, or "-" if
// there is none. `--help` prints `usage` and only the flags of the source file `tool`.cc. Returns the exit code: 1,
// with a message on standard error, if run fails or there are several files.
int RunTool(int argc, char** argv, std::string_view tool, std::string_view usage,
            const std::function<absl::Status(const std::string& path)>& run);

// Returns the whole text of a file, or of standard input if `path` is "-".
absl::StatusOr<std::string> ReadInput(const std::string& path);

}  // namespace lockstep
