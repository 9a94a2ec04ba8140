// Which ops the cuda backend cannot run, for docs/ops.md: what its target says of the rows of the op cases.

#pragma once

#include <string>

namespace lockstep {

std::string GpuOpsSection();  // Markdown

}  // namespace lockstep
