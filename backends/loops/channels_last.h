// Values of N,C,spatial that are channels-last in memory, as row-major N,spatial,C (docs/decisions/0006), in loops. The
// loop compilers support only row-major values, so a loop's body is rewritten to the shapes in memory; also if operands
// are in another order than channels-last. Called by the backends' loop.cc; any thread may call it.

#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Returns the strides in elements of a dense channels-last value of `dims`, [N, C, spatial...]. Requires at least 3
// dimensions.
std::vector<int64_t> ChannelsLastStrides(const std::vector<int64_t>& dims);

// Returns true if both orders of the elements are the same in memory, as for one channel or one point of space.
bool IsAlsoRowMajor(const Shape& shape);

// The facts by which the layout of a loop is decided, for each of its operands and results.
struct LayoutFacts {
  std::function<bool(Value)> is_channels_last;  // was an operand produced so, and is that not also row-major?
  // What the readers of a result need: above 0 if channels-last, below 0 if row-major, and 0 if they take both.
  std::function<int(Value)> need = [](Value) { return 0; };
};

// Returns the shape whose values the loop of `node` should compute channels-last; empty if there is none. It is the
// shape of the first operand that is channels-last, or else of the first result that is needed so. The results' readers
// decide. If they take both layouts, the loop is channels-last unless more operands of that shape are row-major.
std::optional<Shape> ChannelsLastShapeOf(const Node& node, const LayoutFacts& facts);

// Returns the body of a loop that computes the same as `body` if each value of `shape` is channels-last; other values
// do not change.
//
//   graph @f(%x: f32[8,5,4,4], %b: f32[5]) -> (y: f32[8,5,4,4], s: f32[5]) {
//     %bb = broadcast %b {dims=[1], shape=[8,5,4,4]} : f32[8,5,4,4]
//     %y = add %x, %bb : f32[8,5,4,4]
//     %s = reduce_sum %y {dims=[0,2,3]} : f32[5]
//     return %y, %s
//   }
// becomes
//   graph @f(%x: f32[8,4,4,5], %b: f32[5]) -> (y: f32[8,4,4,5], s: f32[5]) {
//     %bb = broadcast %b {dims=[1], shape=[8,5,4,4]} : f32[8,5,4,4]
//     %bt = transpose %bb {permutation=[0,2,3,1]} : f32[8,4,4,5]
//     %y = add %x, %bt : f32[8,4,4,5]
//     %s = reduce_sum %y {dims=[0,1,2]} : f32[5]
//     return %y, %s
//   }
// `inputs` says which inputs are channels-last in memory; if it is empty, those of `shape`. The loop reads another
// input through a transpose, which makes no copy: without a shape, the body computes row-major from such inputs.
//
// Requires a shape of at least 3 dimensions. Returns Unimplemented if an op that is neither elementwise nor a reduction
// reads or makes a value of `shape`, unless it is kRematerialised and only makes one, or if a reduction would change
// the order of its result's dimensions.
absl::StatusOr<Graph> ChannelsLastBody(const Graph& body, const std::optional<Shape>& shape,
                                       const std::vector<bool>& inputs = {});

// Returns the body of a loop that computes the same as `body` and finds input i in memory as a value whose transpose by
// permutations[i] it is, or, if that is empty, as it is. The loop reads it at transposed indices, which makes no copy.
// Requires a permutation for each input.
absl::StatusOr<Graph> BodyOfTransposed(const Graph& body, const std::vector<std::vector<int64_t>>& permutations);

}  // namespace lockstep
