// A rule of `simplify`, the tables of rules, and the questions that rules ask about values. Constant data; any thread.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/builder.h"
#include "core/graph.h"
#include "core/tensor.h"

namespace lockstep::passes {

struct SimplifyRule {
  std::string_view name;  // also of its golden case; the case in which it must not apply is <name>_stays
  std::string_view op;    // to which nodes it may apply; "" for elementwise ops of every name
  // The value that replaces the node's only result, or null if the rule does not apply: then nothing was built. `b` inserts
  // before the node.
  Value (*apply)(Node& node, Builder& b);
  // Not for the program of one rank of a mesh: there extents are local, and say less, and a constant in the place of a split
  // or partial value would be placed differently.
  bool one_rank_only = false;
};

std::vector<SimplifyRule> ArithmeticRules();
std::vector<SimplifyRule> LogicRules();
std::vector<SimplifyRule> ShapeRules();
std::vector<SimplifyRule> BroadcastRules();
std::vector<SimplifyRule> ReductionRules();

// All of them.
const std::vector<SimplifyRule>& SimplifyRules();

// --- Questions ----------------------------------------------------------------------------------------------------------

// The node that makes `value` if it is of op `op`, else null.
Node* MadeBy(Value value, std::string_view op);

// The elements of a constant; null for other values.
const Tensor* ConstantOf(Value value);

// The scalar that every element of `value` equals bit by bit, if that is known: a constant or a broadcast of one.
std::optional<Tensor> SplatOf(Value value);

// Whether every element of `value` is known to be `number`. 0.0 and -0.0 are different.
bool IsSplat(Value value, double number);

// Whether a constant, or a broadcast of one.
bool IsConstant(Value value);

// Whether x is 2^k or -2^k for an integer k.
bool IsPowerOfTwo(double x);

// Whether `value` has one user, once, and is no result of the graph.
bool HasOneUse(const Graph& graph, Value value);

// A constant, broadcast to `shape`.
Value Splat(Builder& b, const Tensor& scalar, const Shape& shape);

}  // namespace lockstep::passes
