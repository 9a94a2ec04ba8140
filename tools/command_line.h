// What the command line programs share: flags, the one file that is named, errors.

#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace lockstep {

// Reads Abseil's flags, in whose names '-' is read as '_', and calls run(path) with the one file that is named, or "-"
// if none is. `--help` prints `usage` and the flags of the source file `tool`.cc alone. Returns the exit code: 1, with
// a message on standard error, if run fails or more than one file is named.
int RunTool(int argc, char** argv, std::string_view tool, std::string_view usage,
            const std::function<absl::Status(const std::string& path)>& run);

// The whole text of a file; of standard input if `path` is "-".
absl::StatusOr<std::string> ReadInput(const std::string& path);

}  // namespace lockstep
