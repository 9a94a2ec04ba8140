// Arrays of the caller as the memory of an executable's states and results: lockstep.Executable.bind.

#pragma once

#include <span>

#include "python_bindings/loaded_executable.h"

namespace lockstep::python {

// Checks bound results before a call with these inputs. Raises lockstep.Error if a result is bound to an array that is
// read-only now, or that overlaps an input.
void CheckBoundResults(const LoadedExecutable& self, std::span<const NamedInput> inputs);

}  // namespace lockstep::python
