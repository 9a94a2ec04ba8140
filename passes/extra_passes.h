// Passes of the caller, which run among those of the pipeline (pipeline.h): each at a place that it names.

#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

struct ExtraPass {
  Pass pass;            // must keep all inputs and results of a graph, and may add further ones
  std::string place;    // a pass of Places(), beside which it runs
  bool before = false;  // directly before that pass; otherwise directly after it
  std::string version;  // a text about its code, which ranks compare

  // Returns "halve after distribute" with ": " and the version, if there is one.
  std::string ToString() const;
};

// Returns the texts of the passes, a line for each.
std::string Describe(const std::vector<ExtraPass>& extra);

// Returns the passes of `full`, the pipeline with all passes, that are places: those that are in it once, up to
// `localize`. After that, graphs are local, in which new nodes cannot be placed by their rules.
std::vector<std::string> Places(const std::vector<Pass>& full);

// Returns an error if a pass has no place, or the name of another one, with the places that there are.
absl::Status CheckPlaces(const std::vector<ExtraPass>& extra, const std::vector<Pass>& full);

// Returns `pipeline`, which has some of the passes of `full` in the same order, with the extra passes. Those of one
// place run in the given order. If the pass that is the place is not in `pipeline`, the next one that is takes its
// part. An extra pass that removes an input or a result becomes an error. Requires that CheckPlaces returns OK.
std::vector<Pass> WithExtraPasses(const std::vector<Pass>& pipeline, const std::vector<ExtraPass>& extra,
                                  const std::vector<Pass>& full);

}  // namespace lockstep::passes
