// Arrays of the caller's in which an executable has its states and leaves its results: lockstep.Executable.bind.

#pragma once

#include <span>

#include "python_bindings/loaded_executable.h"

namespace lockstep::python {

// Before a call with these inputs: raises lockstep.Error if a result is bound to an array that may not be written now,
// or that an input lies in.
void CheckBoundResults(const LoadedExecutable& self, std::span<const NamedInput> inputs);

}  // namespace lockstep::python
