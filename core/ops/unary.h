// The common part of elementwise ops of one operand. For the authors of op blocks only.

#pragma once

#include <cstdint>

#include "core/op_def.h"
#include "core/ops/rules.h"

namespace lockstep::ops {

using FloatFunction = double (*)(double);
using IntegerFunction = int64_t (*)(int64_t);

// Returns an op of floats and, unless `on_integers` is null, of signed integers. Its operand is x; its result has the
// type of x. The reference arithmetic of floats is in double, rounded to the dtype at the end. Each op adds its
// gradient.
OpDef Unary(const char* name, const char* doc, FloatFunction on_floats, IntegerFunction on_integers = nullptr,
            Linearity linearity = Linearity::kNone);

// The domains of ops that are defined, and not steep, for x >= low; and for low <= x <= high.
OpDef::DomainFn From(double low);
OpDef::DomainFn Between(double low, double high);

// The NoGradient reason of step functions (kSteps).
inline constexpr char kStepFunction[] =
    "it is a step function, whose derivative is zero wherever it exists; gradients flow through other paths only";

}  // namespace lockstep::ops
