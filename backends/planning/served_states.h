// The part of a program that parameter servers have (passes/distribute/move_updates_to_servers.h): the states that only
// they keep, and what a worker has to tell them about the states that they update. Computed from the pushes and pulls
// in the graph after all passes; a rank's program has neither these states nor their updates.

#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// Returns an error if the mesh has ranks along another axis than the one along which servers take gradients.
absl::Status CheckMeshOfServers(const Mesh& mesh, const std::string& axis);

// Returns the states that pulls take in addition to the variable: servers keep them, and ranks have no copy.
std::set<std::string, std::less<>> StatesOfServers(const Graph& graph);

// Returns the states in the order of their pushes, without their buffers. Returns an error for programs that servers do
// not support: a variable of which ranks have parts, or ranks along several axes.
absl::StatusOr<std::vector<ServedState>> ServedStatesOf(const Graph& graph);

// Returns the update for a piece of the variable, which has another shape: tensors of the variable's shape get the
// piece's.
absl::StatusOr<std::string> UpdateOfPiece(const Graph& update, const TensorType& piece);

// Returns true if the update of a piece is the corresponding part of the update of the whole.
bool IsElementwiseUpdate(const Graph& update);

}  // namespace lockstep
