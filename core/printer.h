// The text form of graphs. Users read it, tests are written in it, and it defines equality and hashes of graphs.
// ParseGraph(PrintGraph(g)) prints the same text as g.
//
//   graph @step(%x: f32[32,784] split(0), state %w: f32[784,10]) -> (loss: f32[], %w: f32[784,10]) {
//     %z = matmul %x, %w {transpose_b=true} : f32[32,10] @"onnx:/fc1/MatMul"
//     return %l, %w1
//   }
//
// With a mesh, types are global, and each value is followed by its placements unless it is replicated:
//
//   mesh {data=4}
//   graph @step(%x: f32[128,784] split(0), %dz: f32[128,10] split(0)) -> (dw: f32[784,10]) {
//     %dw = matmul %x, %dz {transpose_a=true} : f32[784,10] partial(sum)
//     %g = all_reduce %dw {axis=data, kind=sum} : f32[784,10]
//     return %g
//   }
//
// A `local graph` has the types of the parts that each rank holds: %x is f32[32,784] split(0).
//
// A number that may change between runs is a setting: a scalar with a range and an initial value. A float attribute of
// some ops may be an operand, which is then written as the attribute's value:
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
  // For people, not for the parser. Each node takes one line: a graph within it is the list of its ops, and a constant
  // is its first elements. Inputs and results of the graph are broken into lines. Sources are left out.
  bool brief = false;
};

std::string PrintGraph(const Graph& graph, const PrintOptions& options = {});

// Prints one node without indentation and final newline. It is one line unless it contains a graph.
std::string PrintNode(const Node& node, const PrintOptions& options = {});

// Errors are InvalidArgument with "line 3, column 7: " before the message. Among them are text that is not UTF-8,
// graphs nested more than 16 deep, and more than 1 GiB of constants whose elements are written once.
absl::StatusOr<Graph> ParseGraph(std::string_view text);

}  // namespace lockstep
