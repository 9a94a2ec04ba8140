// Rewrites a program to a smaller or simpler one by local rules, until none applies. The rules are in tables in
// passes/simplify/, one file for each family. Each rule has a golden case in which it applies and one in which it must
// not.
//
//   %a = transpose %w {permutation=[1, 0]} : f32[10,784]          %c = matmul %x, %w : f32[32,10]
//   %b = mul %one, %x : f32[32,784]                         ==>
//   %c = matmul %b, %a {transpose_b=true} : f32[32,10]
//
// A rule keeps every value, including infinities, NaN and the sign of zero. Integers wrap around, so they have rules
// that floats do not have. Exempt are the order of additions in a reduction and the sign of a zero that it gives, which
// are not part of its meaning, and results below the smallest normal number.

#pragma once

#include <functional>

#include "passes/pass.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {

Pass Simplify();

// Simplifies the graph; returns true if it changed. Calls `on_rule` after each applied rule. Returns an error if the
// rules do not terminate.
absl::StatusOr<bool> SimplifyGraph(Graph& graph, const std::function<void(const SimplifyRule&)>& on_rule = nullptr);

}  // namespace lockstep::passes
