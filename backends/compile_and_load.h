// Compiles a program and loads it on this rank: what Python's compile() does after its arguments are parsed, in one
// call for C++ programs.
//
//   ASSIGN_OR_RETURN(const auto world, CreateFromEnvironment());
//   ASSIGN_OR_RETURN(const LoadedProgram step, CompileAndLoad(graph, values, "cpu", {}, *world));
//   const NamedInput inputs[] = {{"image", {image_type, image}}, {"label", {label_type, label}}};
//   RETURN_IF_ERROR(step.executor->Run(inputs, {}));

#pragma once

#include <map>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "backends/compile_options.h"
#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/communicator.h"
#include "runtime/execution/executor.h"

namespace lockstep {

struct LoadOptions : CompileOptions {
  ServerClient* client = nullptr;  // the connection of this worker to the servers
  std::string dump;                // a directory for the graph after each pass that changed it, or empty
};

// A program that a rank has loaded. The communicator with which it was loaded must outlive it.
struct LoadedProgram {
  RankDevice opened;
  std::unique_ptr<Communicator> alone;  // of this rank alone, if it has its own program; null if all ranks run one
  std::unique_ptr<Executor> executor;   // not null; destroyed first, and waits for runs in progress
  std::string strategy;                 // what the program was compiled with (backends/compile_options.h)
  // The arguments of CompileAndLoad, with resolved options, to compile the program again.
  Graph graph;
  LoadOptions options;
  const Backend* backend = nullptr;
  std::unique_ptr<const Backend> created;  // the backend, if CompileAndLoad was given its name
};

// Fills in options that depend on the ranks. Returns an error for options that no rank could compile: numbers out of
// range, and options that exclude each other (CheckOptions). Does not communicate. Changes nothing in options that it
// has filled in before.
absl::Status Resolve(LoadOptions& options, const Graph& graph, const std::string& backend,
                     const Communicator& communicator);

// Resolves the options, compiles the one-rank program `graph` for all ranks of the communicator, compares the options
// of the ranks, loads, and assigns the states. `values` are the initial values of states, by name; other states are
// zero, and values of other names are ignored. Without a mesh in the options, all ranks share each batch. Collective.
// All ranks return an error if one of them fails, or if their states differ. If the failure was detected before
// loading, the communicator remains usable; otherwise it is aborted.
absl::StatusOr<LoadedProgram> CompileAndLoad(const Graph& graph, const std::map<std::string, Tensor>& values,
                                             const std::string& backend, LoadOptions options,
                                             Communicator& communicator);

// The same with a backend that must outlive the program.
absl::StatusOr<LoadedProgram> CompileAndLoad(const Graph& graph, const std::map<std::string, Tensor>& values,
                                             const Backend& backend, LoadOptions options, Communicator& communicator);

}  // namespace lockstep
