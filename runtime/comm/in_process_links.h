// Links between groups of threads of one process: mailboxes. They exist so that what happens between hosts is tested
// without hosts, and under the thread sanitizer. The mailboxes may be used by all threads, each Links by its rank's
// progress thread.

#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/links.h"

namespace lockstep {

// The links of each rank of a world whose groups begin at `group_begins` (ascending, the first 0).
std::vector<std::unique_ptr<Links>> CreateInProcessLinks(int world_size, const std::vector<int>& group_begins);

}  // namespace lockstep
