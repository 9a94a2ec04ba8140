// What parameter servers have of a program (passes/distribute/move_updates_to_servers.h): which states they alone keep,
// and what a worker has to tell them of those that they update. Made of the graph after all passes, whose pushes and
// pulls say it; the program of a rank has neither the states nor the updates.

#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// Servers take gradients along one axis: an error if the mesh has ranks along another.
absl::Status CheckMeshOfServers(const Mesh& mesh, const std::string& axis);

// States that pulls take beside the variable: servers keep them, and ranks have no copy.
std::set<std::string, std::less<>> StatesOfServers(const Graph& graph);

// In the order of the pushes; their buffers are not known yet. An error names what servers cannot do: a variable of
// which ranks have parts, or ranks along several axes.
absl::StatusOr<std::vector<ServedState>> ServedStatesOf(const Graph& graph);

// The update for a piece of the variable, of another shape: what has the variable's shape has the piece's.
absl::StatusOr<std::string> UpdateOfPiece(const Graph& update, const TensorType& piece);

// Whether the update of a piece is that part of the update of the whole.
bool TakesElementsApart(const Graph& update);

}  // namespace lockstep
