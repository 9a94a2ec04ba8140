#include "passes/distribute/localize.h"

#include "core/local_types.h"

namespace lockstep::passes {

Pass Localize() {
  return {"localize",
          [](Graph& graph) -> absl::StatusOr<bool> {
            if (!graph.is_placed()) return false;
            ASSIGN_OR_RETURN(graph, ToLocalTypes(graph));
            return true;
          },
          Keeps::kMeaning, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
