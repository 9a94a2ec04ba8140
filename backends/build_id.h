// Identifies the build of this code. Ranks compare it, because kernels of two builds may compute different bits. Any
// thread may call it.

#pragma once

#include <string>

namespace lockstep {

// Returns the linker's build id of the program or library that contains this function, in hexadecimal; "unknown" if it
// has none.
std::string BuildId();

}  // namespace lockstep
