// Queries about constants and about users of values, for simplify and fold-constants. Any thread.

#pragma once

#include <optional>

#include "core/builder.h"
#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep::passes {

// Returns the node that computes `value` if it is of op `op`, else null.
Node* MadeBy(Value value, const OpDef& op);

// Returns the elements of a constant; null for other values.
const Tensor* ConstantOf(Value value);

// Returns the scalar that every element of `value` equals bit by bit, if `value` is a constant or a broadcast of one.
std::optional<Tensor> SplatOf(Value value);

// Returns true if every element of `value` is known to be `number`. 0.0 and -0.0 are different.
bool IsSplat(Value value, double number);

// Returns true if `value` is a constant or a broadcast of one.
bool IsConstant(Value value);

// Returns true if `value` has exactly one use and is not a result of the graph.
bool HasOneUse(const Graph& graph, Value value);

// Returns the constant `scalar`, broadcast to `shape`.
Value Splat(Builder& b, const Tensor& scalar, const Shape& shape);

}  // namespace lockstep::passes
