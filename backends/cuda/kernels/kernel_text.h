// The kernels of this folder as PTX, which is made of them when the project is built.

#pragma once

#include <string_view>

namespace lockstep::cuda {

// The PTX of a family, named as its file is: "copy". Empty if there is none of that name.
std::string_view KernelText(std::string_view family);

}  // namespace lockstep::cuda
