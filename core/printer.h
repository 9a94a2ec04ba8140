// The text form of graphs: what users read, what tests are written in, and what equality and hashes of graphs mean.
// ParseGraph(PrintGraph(g)) prints as g did, to the byte.
//
//   graph @step(%x: f32[32,784] split(0), state %w: f32[784,10]) -> (loss: f32[], %w: f32[784,10]) {
//     %z = matmul %x, %w {transpose_b=true} : f32[32,10] @"onnx:/fc1/MatMul"
//     return %l, %w1
//   }
//
// With a mesh, types are global, and each value is followed by where it is unless it is replicated:
//
//   mesh {data=4}
//   graph @step(%x: f32[128,784] split(0), %dz: f32[128,10] split(0)) -> (dw: f32[784,10]) {
//     %dw = matmul %x, %dz {transpose_a=true} : f32[784,10] partial(sum)
//     %g = all_reduce %dw {axis=data, kind=sum} : f32[784,10]
//     return %g
//   }
//
// `local graph` in the place of `graph` has the types of what each rank holds: %x is f32[32,784] split(0).
//
// A number that may change between runs is a setting: a scalar with a range and the value that it has until it is set.
// A float attribute of some ops may be an operand, which is then written as the attribute's value:
//
//   graph @step(setting %rate: f64[] in [0.0, inf) = 0.1, state %w: f32[10], …) -> (%w: f32[10]) {
//     %w1 = sgd %w, %g {learning_rate=%rate} : f32[10]
//
// Attributes that have their default value are left out. `split(0)` is along the axis `data`; another axis is named:
// `split(1, model)`. In the result list, `%w` is the next value of state `%w`. A name with characters outside
// [A-Za-z0-9_./] is quoted: %"a b". `//` starts a comment. A float attribute may be written as a quotient:
// `scale=1/128`.

#pragma once

#include <string>
#include <string_view>

#include "core/graph.h"

namespace lockstep {

struct PrintOptions {
  bool sources = true;  // print @"source"
  // For people, not for the parser: a node takes one line, in which a graph within it is the list of its ops, and a
  // constant shows its first elements; what the graph takes and gives is broken into lines; no sources.
  bool brief = false;
};

std::string PrintGraph(const Graph& graph, const PrintOptions& options = {});

// One node, without indentation or newline: one line, but for the graph within it.
std::string PrintNode(const Node& node, const PrintOptions& options = {});

// Errors are InvalidArgument with "line 3, column 7: " before the message. Among them: a text that is not UTF-8, graphs
// more than 16 deep in each other, constants of more than 1 GiB in all whose elements are written once.
absl::StatusOr<Graph> ParseGraph(std::string_view text);

}  // namespace lockstep
