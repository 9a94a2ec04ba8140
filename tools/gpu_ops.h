// Lists the ops that the cuda backend cannot run, for docs/ops.md: asks its target about the rows of the op cases.

#pragma once

#include <string>

namespace lockstep {

std::string GpuOpsSection();  // Markdown

}  // namespace lockstep
