// Local rewrites to a smaller or simpler program, until none applies. The rules stand in tables in passes/simplify/,
// one file for each family; each has a golden case in which it applies and one in which it must not.
//
//   %a = transpose %w {permutation=[1, 0]} : f32[10,784]          %c = matmul %x, %w : f32[32,10]
//   %b = mul %one, %x : f32[32,784]                         ==>
//   %c = matmul %b, %a {transpose_b=true} : f32[32,10]
//
// A rule keeps every value, also infinities, NaN and the sign of zero; integers wrap around, so they have rules that
// floats have not. Exempt are the order in which a reduction adds up and the sign of the zero that it may give, which
// are not part of its meaning, and results below the smallest normal number.

#pragma once

#include <functional>

#include "passes/pass.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {

Pass Simplify();

// The same; `on_rule` hears of each rule as it has been applied. An error if the rules do not come to an end.
absl::StatusOr<bool> SimplifyGraph(Graph& graph, const std::function<void(const SimplifyRule&)>& on_rule = nullptr);

}  // namespace lockstep::passes
