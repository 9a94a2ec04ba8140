// The part of Python's compile() after its arguments are parsed. Runs without the GIL.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backends/compile.h"
#include "core/status.h"
#include "python_bindings/bindings.h"
#include "python_bindings/loaded_executable.h"
#include "runtime/execution/executor.h"

namespace lockstep::python {

// The options of Python's compile(), completed by Resolve.
struct GivenOptions : CompileOptions {
  ServerClient* client = nullptr;  // the connection of this worker to the servers
};

// Fills in options that depend on the ranks. Returns an error for options that no rank could compile: numbers out of
// range, and options that exclude each other (CheckOptions). Does not communicate.
absl::Status Resolve(GivenOptions& options, const Graph& graph, const std::string& backend,
                     const Communicator& communicator);

// Compiles for loaded.communicator, compares the options of the ranks, and loads. Requires resolved options.
// Collective. All ranks return an error if one of them fails. If the failure was detected before loading, the
// communicator remains usable; otherwise it is aborted. `dump`: a directory for the graph after each pass, or empty.
absl::Status CompileAndLoad(LoadedExecutable& loaded, const Model& model, const std::string& backend,
                            const GivenOptions& options, const std::string& dump);

}  // namespace lockstep::python
