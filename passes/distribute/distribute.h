// Places a program on a mesh: decides the placement of each value of the one-rank program over the global batch, and
// inserts a collective exactly where a placement must change. Types stay global, so the result reads like the input. n
// ranks then compute the same as one rank, up to rounding. localize.h derives the types of each rank.
//
//   graph @step(%x: f32[128,784] split(0), %dz: f32[128,10] split(0), state %w: f32[784,10]) -> (%w: f32[784,10]) {
//     %dw = matmul %x, %dz {transpose_a=true} : f32[784,10]
//     %w1 = sgd %w, %dw {learning_rate=0.1} : f32[784,10]
//     return %w1
//   }
// becomes on {data=4}
//   mesh {data=4}
//   graph @step(%x: f32[128,784] split(0), %dz: f32[128,10] split(0), state %w: f32[784,10]) -> (%w: f32[784,10]) {
//     %dw = matmul %x, %dz {transpose_a=true} : f32[784,10] partial(sum)    // each rank summed over its rows
//     %dw.1 = all_reduce %dw {axis=data, kind=sum} : f32[784,10]           // sgd needs it replicated
//     %w1 = sgd %w, %dw.1 {learning_rate=0.1} : f32[784,10]
//     return %w1
//   }
//
// Axes are placed one after the other. The ops' placement rules derive placements from those of the inputs
// (core/op_def.h, PlacementContext). If an op requires another placement than its operand has, the operand is moved
// (core/placement_rules.h, PlacementMover).
//
// A local value that would reach a state is an error that names the op. The next value of a state has the placement of
// the state. A result that is split stays split, and its placement says so. Axes of size 1 are dropped, so one rank has
// no collectives. Fusions are decomposed first.

#pragma once

#include <string>
#include <string_view>

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

// Returns the placed program. Requires that `graph` has no mesh. An empty `mesh` changes nothing. An input whose split
// dimension is not a multiple of the axis size is an error that names the input.
absl::StatusOr<Graph> DistributeGraph(const Graph& graph, const Mesh& mesh);

// Places a graph along one more axis, of at least two ranks. Requires that the graph has no mesh or is placed along all
// axes of its mesh. Errors as of DistributeGraph.
absl::StatusOr<Graph> DistributeAlong(Graph graph, const MeshAxis& axis);

// Returns true if a partial sum is reduced before its first use, even though that use could pass it on as a partial
// sum. This holds if several nodes use it, since otherwise each of their results would have to be reduced. Values of
// one dimension, such as statistics, are excluded: the values that they are added to may be smaller. So are those that
// an exchange gets.
bool IsReducedOnce(const Value& value);

// Returns the placement that result `name` of a graph without a mesh will have along `axis`. It is found with
// DistributeGraph for the smallest number of ranks that can share all inputs that are split along the axis. Returns
// replicated if no number of ranks can. Errors as of DistributeGraph. Requires that the result exists.
absl::StatusOr<Placement> PlacementOfResult(const Graph& graph, std::string_view name, const std::string& axis);

Pass Distribute(Mesh mesh);

}  // namespace lockstep::passes
