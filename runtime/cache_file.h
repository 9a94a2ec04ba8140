// Files in which what was measured or chosen once is kept for later programs of the same user. A file is whole at any
// time, whoever writes it, and nothing but time is lost with it. Any thread.

#pragma once

#include <string>

#include "absl/status/status.h"

namespace lockstep {

// ${XDG_CACHE_HOME:-~/.cache}/lockstep; empty where there is neither.
std::string CacheFolder();

// Makes the file `text`, in one piece: it is written under another name first. Makes its folder, too.
absl::Status ReplaceFile(const std::string& path, const std::string& text);

}  // namespace lockstep
