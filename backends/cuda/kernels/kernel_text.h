// The kernels of this folder as PTX, which the build compiles.

#pragma once

#include <string_view>

namespace lockstep::cuda {

// Returns the PTX of a family, which has the name of its file: "copy". Empty if there is no such family.
std::string_view KernelText(std::string_view family);

}  // namespace lockstep::cuda
