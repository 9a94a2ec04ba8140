// What compile() of Python does with a model once its arguments are understood. Without the GIL.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backends/compile.h"
#include "core/status.h"
#include "python_bindings/bindings.h"
#include "python_bindings/loaded_executable.h"
#include "runtime/executor.h"

namespace lockstep::python {

// What compile() of Python is given, and what Resolve makes of it.
struct GivenOptions : CompileOptions {
  ServerClient* client = nullptr;  // this worker's end of the servers
};

// Fills in what depends on the ranks, and refuses what no rank could compile: numbers out of range, options that
// exclude each other (CheckOptions). Needs no other rank.
absl::Status Resolve(GivenOptions& options, const Graph& graph, const std::string& backend,
                     const Communicator& communicator);

// Compiles for loaded.communicator, compares the options of the ranks, and loads; `options` are resolved. All ranks
// call it. What one of them meets all get as an error; the communicator goes on if that was found before anything was
// loaded, else it is aborted. `dump`: a directory for the graph after each pass, or empty.
absl::Status CompileAndLoad(LoadedExecutable& loaded, const Model& model, const std::string& backend,
                            const GivenOptions& options, const std::string& dump);

}  // namespace lockstep::python
