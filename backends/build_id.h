// Which build this code is: ranks compare it, since kernels of two builds may compute different bits. Any thread.

#pragma once

#include <string>

namespace lockstep {

// The linker's build id of the program or library that this function is in, in hexadecimal; "unknown" if it has none.
std::string BuildId();

}  // namespace lockstep
