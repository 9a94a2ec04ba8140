// A pass is a value: a name and a function that changes a graph. The header of each pass shows a graph in the text form
// before and after it. Passes are deterministic: they depend on the graph and their options, never on the environment
// or the order of a hash map.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// The part of a program's meaning that a pass preserves. Tests compare programs before and after a pass by it. If a
// pass places or localizes a program, the comparison is of each rank's shares of the results.
enum class Keeps {
  kEveryValue,  // each result on each rank, with NaN, infinities and signs of zeros; sums are exempt (simplify.h)
  kMeaning,     // results up to rounding, for finite numbers
  kResults,     // the existing results; the pass adds more
  kNothing,     // makes another program
};

struct Pass {
  std::string name;  // as lockstep-opt and messages know it
  std::function<absl::StatusOr<bool>(Graph&)>
      run;  // true if it changed the graph; on an error the graph is unspecified
  Keeps keeps = Keeps::kMeaning;
  bool needs_mesh = false;       // makes a placed program or works on one; does nothing on one rank
  bool changes_meaning = false;  // in exact arithmetic too: programs after it are compared with the one that it makes
};

// Hooks and outputs of RunPasses for debugging.
struct PassDebug {
  // Called after each pass that changed the graph, with the graph before it (as text) and after it.
  std::function<void(const Pass& pass, const std::string& before, const Graph& after)> on_change;
  // Called after each pass with its duration in seconds.
  std::function<void(const Pass& pass, double seconds)> on_time;
  // If not empty: when a pass fails, the graph before it is written to <directory>/<graph>.<pass>.ir, which
  // lockstep-opt reads.
  std::string reproducer_directory;
};

// Returns `name` with each '/' replaced, as the name of a file. Names of graphs and passes may contain a '/'.
std::string FileName(std::string name);

// Writes a reproducer to debug.reproducer_directory: `before`, the text of the graph on which `stage` failed. Returns
// `error` with the path appended, or unchanged if that directory is empty.
absl::Status WithReproducer(const absl::Status& error, const std::string& stage, const std::string& graph_name,
                            const std::string& before, const PassDebug& debug);

// Runs the passes in order. Verifies the graph before the first pass and after each pass that changed it. An error
// names the pass and the reproducer, if one was written.
absl::Status RunPasses(const std::vector<Pass>& passes, Graph& graph, const PassDebug& debug = {});

}  // namespace lockstep::passes
