#include "passes/distribute/localize.h"

#include <utility>

namespace lockstep::passes {

// With shares the result is the program of one rank alone: the others have other extents.
Pass Localize(RowShares shares) {
  const Keeps keeps = shares.rows.empty() ? Keeps::kMeaning : Keeps::kNothing;
  return {"localize",
          [shares = std::move(shares)](Graph& graph) -> absl::StatusOr<bool> {
            if (!graph.is_placed()) return false;
            ASSIGN_OR_RETURN(graph, ToLocalTypes(graph, shares));
            return true;
          },
          keeps, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
