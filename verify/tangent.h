// Derivatives of programs in exact arithmetic, forwards, with which the gradients that a program computes are compared.
//
// A tangent of a value is its derivative along given directions of inputs: how fast the value changes if the inputs
// move in these directions. Tangents go forwards through a program, operand to result, and gradients backwards, so that
// the two share no rule. If g are the gradients of a loss, and v random directions, the tangent of the loss is the sum
// of <g, v>. If a gradient is wrong, this holds with a probability of at most d / 2^49 (see verify/exact.h).
//
//  * Movements move tangents. A linear op is applied to them; one that is linear in each operand alone, such as matmul
//    and mul, to one at a time. Other elementwise functions have a slope for each operand, which is a row in
//    tangent_slopes.cc.
//  * Maxima and minima have the tangent of the element that they are. Among equal ones the docs of the ops decide: max,
//    min, reduce_max, reduce_min and scatter take the mean of their tangents, and max_pool and top_k the first. abs and
//    relu have slope 0 at 0, and floor, ceil, round and sign have slope 0.
//  * An op with a decomposition has the tangents of that; a scan or fusion has those of its body. No derivative goes
//    through stop_gradient, integers, or mean and variance of batch_norm_training.
//
// Any thread.

#pragma once

#include <unordered_map>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "verify/exact_interpreter.h"

namespace lockstep::verify {

// The tangents of values. That of a value which is missing is zero.
using Tangents = std::unordered_map<Value, ExactTensor, ValueHash>;

// The tangent of a value, null if it is zero.
const ExactTensor* Find(const Tangents& tangents, Value value);

// The tangents of the values `of` in a graph of one rank, whose values are `values`. `directions` has the tangents of
// inputs. An op on the way that has no rule is an error that names it.
absl::StatusOr<Tangents> RunTangents(const Graph& graph, const ExactValues& values, const Tangents& directions,
                                     const std::vector<Value>& of, Assumptions& assumptions);

}  // namespace lockstep::verify
