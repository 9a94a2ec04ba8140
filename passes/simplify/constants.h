// What simplify and fold-constants ask about constants, and about who uses a value. Any thread.

#pragma once

#include <optional>

#include "core/builder.h"
#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep::passes {

// The node that makes `value` if it is of op `op`, else null.
Node* MadeBy(Value value, const OpDef& op);

// The elements of a constant; null for other values.
const Tensor* ConstantOf(Value value);

// The scalar that every element of `value` equals bit by bit, if that is known: a constant or a broadcast of one.
std::optional<Tensor> SplatOf(Value value);

// Whether every element of `value` is known to be `number`. 0.0 and -0.0 are different.
bool IsSplat(Value value, double number);

// Whether a constant, or a broadcast of one.
bool IsConstant(Value value);

// Whether `value` has one user, once, and is no result of the graph.
bool HasOneUse(const Graph& graph, Value value);

// A constant, broadcast to `shape`.
Value Splat(Builder& b, const Tensor& scalar, const Shape& shape);

}  // namespace lockstep::passes
