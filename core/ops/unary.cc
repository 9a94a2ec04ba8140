#include "core/ops/unary.h"

namespace lockstep::ops {
namespace {

absl::Status EvalUnary(EvalContext& c, FloatFunction on_floats, IntegerFunction on_integers) {
  DispatchDType(c.result().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = c.operand(0).data<T>();
    const auto out = c.result().mutable_data<T>();
    for (size_t i = 0; i < x.size(); ++i) {
      if constexpr (std::is_integral_v<T>) out[i] = static_cast<T>(on_integers(static_cast<int64_t>(x[i])));
      else out[i] = ConvertElement<T>(on_floats(static_cast<double>(x[i])));
    }
  });
  return absl::OkStatus();
}

}  // namespace

OpDef Unary(const char* name, const char* doc, FloatFunction on_floats, IntegerFunction on_integers,
            Linearity linearity) {
  const bool integers = on_integers != nullptr;
  return OpDef(name)
      .Doc(doc)
      .Operand("x")
      .Trait(kElementwise)
      .Precision(PrecisionRule::kFollows)
      .Constraint("C1", integers ? "x is of a float or a signed integer dtype" : "x is of a float dtype")
      .Infer([integers](InferContext& c) -> absl::Status {
        const bool ok = IsFloat(c.dtype(0)) || (integers && IsInteger(c.dtype(0)) && IsSigned(c.dtype(0)));
        if (!ok)
          return c.Error("C1") << "operand " << c.operand(0) << ", expected a float"
                               << (integers ? " or a signed integer" : "");
        return c.SetResult(c.operand(0));
      })
      .Eval([=](EvalContext& c) { return EvalUnary(c, on_floats, on_integers); })
      .Place([linearity](PlacementContext& c) { PlaceElementwise(c, linearity); });
}

OpDef::DomainFn From(double low) {
  return [low](std::span<const ValueRange> operands) { return operands[0].low >= low; };
}

OpDef::DomainFn Between(double low, double high) {
  return [=](std::span<const ValueRange> operands) { return operands[0].low >= low && operands[0].high <= high; };
}

}  // namespace lockstep::ops
