// Elementwise comparison, selection, range check, and conversion between dtypes.

#include <utility>

#include "core/builder.h"
#include "core/comparison.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

template <typename T>
bool Holds(Comparison comparison, T x, T y) {
  switch (comparison) {
    case Comparison::kEq: return x == y;
    case Comparison::kNe: return x != y;
    case Comparison::kLt: return x < y;
    case Comparison::kLe: return x <= y;
    case Comparison::kGt: return x > y;
    case Comparison::kGe: return x >= y;
  }
  LOCKSTEP_CHECK(false) << "comparison " << static_cast<int>(comparison);
  return false;
}

absl::Status InferCompare(InferContext& c) {
  RETURN_IF_ERROR(ops::CheckSameTypes(c, "C1"));
  const std::string& direction = c.attr<std::string>("direction");
  if (ComparisonFromName(direction)) return c.SetResult(DType::kBool, c.shape(0));
  return c.Error("C2") << "direction '" << direction << "', expected eq, ne, lt, le, gt or ge";
}

absl::Status EvalCompare(EvalContext& c) {
  const Comparison comparison = *ComparisonFromName(c.attr<std::string>("direction"));  // (C2)
  const auto out = c.result().mutable_data<bool>();
  DispatchDType(c.operand(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = c.operand(0).data<T>(), y = c.operand(1).data<T>();
    for (size_t i = 0; i < out.size(); ++i) out[i] = Holds<T>(comparison, x[i], y[i]);
  });
  return absl::OkStatus();
}

absl::Status InferSelect(InferContext& c) {
  if (c.operand(1) != c.operand(2))
    return c.Error("C1") << "types of yes and no differ: " << c.operand(1) << " and " << c.operand(2);
  if (c.operand(0) != TensorType{DType::kBool, c.shape(1)}) {
    return c.Error("C2") << "condition " << c.operand(0) << ", expected " << TensorType{DType::kBool, c.shape(1)};
  }
  return c.SetResult(c.operand(1));
}

absl::Status EvalSelect(EvalContext& c) {
  const auto condition = c.operand(0).data<bool>();
  DispatchDType(c.result().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto yes = c.operand(1).data<T>(), no = c.operand(2).data<T>();
    const auto out = c.result().mutable_data<T>();
    for (size_t i = 0; i < out.size(); ++i) out[i] = condition[i] ? yes[i] : no[i];
  });
  return absl::OkStatus();
}

void PlaceSelect(PlacementContext& c) {
  // The condition is equal on all ranks, so a selection between two values of equal partial placement is partial.
  if (c.operand(0).is_replicated() && c.operand(1).is_partial() && c.operand(1) == c.operand(2)) {
    c.Result(c.operand(1));
    return;
  }
  ops::PlaceElementwise(c);
}

// "label is outside [0, 10)"
std::string RefuseOutside(const AttributeMap& attributes) {
  const auto bound = [&](const char* name) { return std::to_string(std::get<int64_t>(attributes.at(name))); };
  return std::get<std::string>(attributes.at("what")) + " is outside [" + bound("low") + ", " + bound("high") + ")";
}

absl::Status InferWithin(InferContext& c) {
  if (IsFloat(c.dtype(0)) || c.dtype(0) == DType::kBool) return c.Error("C1") << "x is " << c.operand(0);
  const int64_t low = c.attr<int64_t>("low"), high = c.attr<int64_t>("high");
  if (low > high) return c.Error("C2") << "low is " << low << " and high " << high;
  return c.SetResult(c.operand(0));
}

absl::Status EvalWithin(EvalContext& c) {
  const int64_t low = c.attr<int64_t>("low"), high = c.attr<int64_t>("high");
  c.result() = c.operand(0);
  return DispatchDType(c.operand(0).dtype(), [&](auto tag) -> absl::Status {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {  // (C1)
      for (const T x : c.operand(0).template data<T>()) {
        if (std::cmp_less(x, low) || std::cmp_greater_equal(x, high))
          return c.Error("C3") << RefuseOutside(c.attributes()) << ": " << +x;
      }
    }
    return absl::OkStatus();
  });
}

// The terms of a partial sum may be converted one by one to a wider float, which is exact; they are then added in the
// wider dtype. They may be rounded to a narrower float only with `rounds_parts`.
void PlaceConvert(PlacementContext& c) {
  const DType from = c.dtype(0), to = c.result_type().dtype;
  const bool is_exact = IsFloat(from) && IsFloat(to) && SizeOf(from) < SizeOf(to);
  const bool may_round = IsFloat(from) && IsFloat(to) && c.attr<bool>("rounds_parts");
  ops::PlaceElementwise(c, is_exact || may_round ? ops::Linearity::kAll : ops::Linearity::kNone);
}

}  // namespace

//===-- compare ---------------------------------------------------------------------------------------------------===//
const OpDef& CompareOp() {
  static const OpDef def = OpDef("compare")
                               .Doc(
                                   "True where x has the given relation to y. NaN is unequal to everything, and all "
                                   "its other comparisons are false; false is less than true.")
                               .Operand("x")
                               .Operand("y")
                               .Attr<std::string>("direction", "eq, ne, lt, le, gt or ge")
                               .Trait(kElementwise)
                               .Constraint("C1", "x and y have the same type")
                               .Constraint("C2", "direction is one of eq, ne, lt, le, gt, ge")
                               .Infer(InferCompare)
                               .Eval(EvalCompare)
                               .Precision(PrecisionRule::kFollows)
                               .NoGradient("its result is bool")
                               .Place([](PlacementContext& c) { ops::PlaceElementwise(c); });
  return def;
}

//===-- select ----------------------------------------------------------------------------------------------------===//
const OpDef& SelectOp() {
  static const OpDef def = OpDef("select")
                               .Doc("yes where the condition is true, no elsewhere.")
                               .Operand("condition")
                               .Operand("yes")
                               .Operand("no")
                               .Trait(kElementwise)
                               .Constraint("C1", "yes and no have the same type")
                               .Constraint("C2", "condition is bool, of the shape of yes")
                               .Infer(InferSelect)
                               .Eval(EvalSelect)
                               .Precision(PrecisionRule::kFollows)
                               .Vjp([](VjpContext& c) {
                                 const Value condition = c.operand(0), g = c.grad(), zero = c.b().SplatLike(0.0, g);
                                 c.Contribute(1, c.b().Select(condition, g, zero));
                                 c.Contribute(2, c.b().Select(condition, zero, g));
                               })
                               .Place(PlaceSelect);
  return def;
}

//===-- within ----------------------------------------------------------------------------------------------------===//
const OpDef& WithinOp() {
  static const OpDef def =
      OpDef("within")
          .Doc("x, after a check that every element is in [low, high). For labels and other indices.")
          .Operand("x")
          .Attr<int64_t>("low", "the least value of an element")
          .Attr<int64_t>("high", "one more than the greatest value of an element")
          .Attr<std::string>("what", "the name of an element in the error")
          .Trait(kElementwise)
          .Constraint("C1", "x has an integer dtype")
          .Constraint("C2", "low is at most high")
          .Constraint("C3", "when it runs: every element is in [low, high)")
          .Trait(kChecksData)
          .ChecksData(RefuseOutside)
          .Infer(InferWithin)
          .Eval(EvalWithin)
          .Precision(PrecisionRule::kFollows)
          .NoGradient("its operand is integers")
          .Place([](PlacementContext& c) { ops::PlaceElementwise(c); });
  return def;
}

//===-- convert ---------------------------------------------------------------------------------------------------===//
const OpDef& ConvertOp() {
  static const OpDef def =
      OpDef("convert")
          .Doc(
              "x in another dtype. Floats to integers truncate toward zero and saturate (NaN "
              "gives 0); anything to bool is x != 0.")
          .Operand("x")
          .Attr<DType>("dtype", "of the result")
          .OptionalAttr<bool>("rounds_parts", false, "each rank's term of a partial sum may be rounded separately")
          .Trait(kElementwise)
          .Infer([](InferContext& c) { return c.SetResult(c.attr<DType>("dtype"), c.shape(0)); })
          .Eval([](EvalContext& c) {
            c.result() = c.operand(0).Converted(c.result().dtype());
            return absl::OkStatus();
          })
          .Precision(PrecisionRule::kAsDeclared)
          .Vjp([](VjpContext& c) {
            // Between floats the gradient is only converted. Integers have no gradient.
            if (IsFloat(c.operand(0).dtype())) c.Contribute(0, c.b().Convert(c.grad(), c.operand(0).dtype()));
          })
          .Place(PlaceConvert);
  return def;
}

}  // namespace lockstep
