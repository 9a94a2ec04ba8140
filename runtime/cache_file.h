// Files in which measurements and choices are kept for later programs of the same user. A file is replaced atomically,
// so readers never see a part of one, and nothing but time is lost without it. Any thread.

#pragma once

#include <string>

#include "absl/status/status.h"

namespace lockstep {

// Returns ${XDG_CACHE_HOME:-~/.cache}/lockstep, or an empty string if neither variable is set.
std::string CacheFolder();

// Replaces the contents of the file by `text` atomically: writes another file first and renames it. Creates the folder.
absl::Status ReplaceFile(const std::string& path, const std::string& text);

}  // namespace lockstep
