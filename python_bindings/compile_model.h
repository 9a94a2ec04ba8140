// What compile() of Python does with a model once its arguments are understood. Without the GIL.

#pragma once

#include <cstdint>
#include <string>

#include "backends/compile.h"
#include "core/status.h"
#include "python_bindings/bindings.h"
#include "python_bindings/loaded_executable.h"
#include "runtime/executor.h"

namespace lockstep::python {

absl::Status CheckThreads(int64_t threads);

// What gradients may be computed for, rather than be reduced (passes/distribute/gather_factors.h), where the user does
// not say it: something where ranks that share a batch are on several hosts. The same on all ranks.
double OperationsPerByte(const Mesh& mesh, const Communicator& communicator);

// Compiles for loaded.communicator, compares the options of the ranks, and loads. All ranks call it. What one of them
// meets all get as an error; the communicator goes on if that was found before anything was loaded, else it is aborted.
absl::Status CompileAndLoad(LoadedExecutable& loaded, const Model& model, const std::string& backend_name,
                            const CompileOptions& options, const ExecutorOptions& executor, const std::string& dump);

}  // namespace lockstep::python
