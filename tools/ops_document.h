// Generates the reference of all ops, docs/ops.md, from their definitions. `make docs` writes it; a test keeps it up to
// date.

#pragma once

#include <string>

namespace lockstep {

std::string OpsDocument();  // Markdown

}  // namespace lockstep
