// Places a program on a mesh: decides for every value of the one-rank program over the global batch where it is, and
// puts a collective exactly where that must change. Types stay global, so that what comes out can be read as the
// program that went in; n ranks then compute what one rank would, up to rounding. localize.h makes the types of each
// rank of it.
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
// How: one mesh axis after the other. Placements are derived from the inputs' by the ops' rules (core/op_def.h,
// PlacementContext); where an op requires another placement than its operand has, the operand is moved (core/placing.h,
// PlacementMover).
//
// A local value that would reach a state is an error that names the op. States end as they began; a result that is
// split stays split, and says so. Axes of size 1 disappear: on one rank there is no collective. Fusions are taken apart
// first.

#pragma once

#include <string>
#include <string_view>

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

// `graph` must have no mesh yet, unless `mesh` is empty, which changes nothing. An input whose split dimension the axis
// size does not divide is an error naming it.
absl::StatusOr<Graph> DistributeGraph(const Graph& graph, const Mesh& mesh);

// Places a graph that is placed along all axes of its mesh, or has none, along one more, of at least two ranks. Errors
// as of DistributeGraph.
absl::StatusOr<Graph> DistributeAlong(Graph graph, const MeshAxis& axis);

// Whether a sum over ranks is reduced before its first use though that could pass it on: where several nodes use it,
// behind each of which it would have to be reduced otherwise. Statistics and the like, of one dimension, are not: what
// they are added to may be less.
bool IsReducedOnce(const Value& value);

// Where result `name` of a graph that has no mesh yet will be along `axis`, by the placements of its inputs: what
// DistributeGraph gives for the smallest number of ranks that can share those that are split along it. Replicated where
// no number of ranks can. Errors as of DistributeGraph; requires that there is such a result.
absl::StatusOr<Placement> PlacementOfResult(const Graph& graph, std::string_view name, const std::string& axis);

Pass Distribute(Mesh mesh);

}  // namespace lockstep::passes
