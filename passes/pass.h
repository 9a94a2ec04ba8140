// A pass is a value: a name and a function from graph to graph. Its header shows a before and an after in the text
// form. Passes are deterministic: they read the graph and their options, never the environment or the order of a hash
// map.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// What stays as it was when a pass has run, so that every test of meaning knows what to compare. Where a pass places or
// localizes a program, the shares that ranks hold of the results stay.
enum class Keeps {
  kEveryValue,  // of every result on every rank: NaN, infinities, signs of zeros, but for sums (simplify.h)
  kMeaning,     // results up to rounding, for finite numbers
  kResults,     // the results that there were; there are more
  kNothing,     // another program
};

struct Pass {
  std::string name;  // as lockstep-opt and messages know it
  std::function<absl::StatusOr<bool>(Graph&)>
      run;  // true if it changed the graph; on an error the graph is unspecified
  Keeps keeps = Keeps::kMeaning;
  bool needs_mesh = false;  // makes a placed program or works on one: it has nothing to do on one rank
};

// What RunPasses does besides running the passes.
struct PassDebug {
  // Called after each pass that changed the graph, with the graph before (as text) and after.
  std::function<void(const Pass& pass, const std::string& before, const Graph& after)> on_change;
  // Called after each pass with the seconds that it took.
  std::function<void(const Pass& pass, double seconds)> on_time;
  // If not empty: where the graph before a failing pass is written, as <directory>/<graph>.<pass>.ir, which
  // lockstep-opt reads.
  std::string reproducer_directory;
};

// `name` as the name of a file: names of graphs and passes may hold a '/'.
std::string FileName(std::string name);

// The error, with the place of a reproducer: `before`, the graph as text that `stage` failed on, in
// debug.reproducer_directory. As it is if that is empty.
absl::Status WithReproducer(const absl::Status& error, const std::string& stage, const std::string& graph_name,
                            const std::string& before, const PassDebug& debug);

// Runs the passes in order, verifying the graph before the first and after each that changed it. An error names the
// pass and the reproducer, if one was written.
absl::Status RunPasses(const std::vector<Pass>& passes, Graph& graph, const PassDebug& debug = {});

}  // namespace lockstep::passes
