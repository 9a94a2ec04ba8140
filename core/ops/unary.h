// What elementwise ops of one operand share. For the authors of op blocks only.

#pragma once

#include <cstdint>

#include "core/op_def.h"
#include "core/ops/rules.h"

namespace lockstep::ops {

using FloatFunction = double (*)(double);
using IntegerFunction = int64_t (*)(int64_t);

// An op of floats and, unless `on_integers` is null, of signed integers, with operand x and a result of its type. The
// reference arithmetic of floats is in double, rounded to the dtype at the end. Each op adds its gradient.
OpDef Unary(const char* name, const char* doc, FloatFunction on_floats, IntegerFunction on_integers = nullptr,
            Linearity linearity = Linearity::kNone);

// The domain of an op that is defined, and not steep, from `low` on; and from `low` to `high`.
OpDef::DomainFn From(double low);
OpDef::DomainFn Between(double low, double high);

// The reason of ops that are constant but for jumps (kSteps).
inline constexpr char kStepFunction[] =
    "it is a step function, whose derivative is zero wherever it exists; gradients take the other ways";

}  // namespace lockstep::ops
