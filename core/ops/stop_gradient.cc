// The op at which gradients end: detach() of PyTorch.

#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {

//===-- stop_gradient ---------------------------------------------------------------------------------------------===//
const OpDef& StopGradientOp() {
  static const OpDef def =
      OpDef("stop_gradient")
          .Doc(
              "x itself, through which no gradient flows back to x. For the target of a loss that the model computes, "
              "a straight-through estimator, or rows of a table that are not trained. The pass inference-mode removes "
              "it after differentiation.")
          .Operand("x")
          .Trait(kOpaque)
          .Trait(kEndsGradients)
          .Constraint("C1", "x is of floats")
          .Infer([](InferContext& c) -> absl::Status {
            if (!IsFloat(c.dtype(0))) return c.Error("C1") << "x is " << c.operand(0) << ", expected floats";
            return c.SetResult(c.operand(0));
          })
          .Eval([](EvalContext& c) {
            c.result() = c.operand(0);
            return absl::OkStatus();
          })
          .Precision(PrecisionRule::kFollows)
          .NoGradient("gradients end at this op; its operand gets none through it")
          .Place([](PlacementContext& c) { ops::PlaceElementwise(c, ops::Linearity::kAll); })
          .Decompose([](DecomposeContext& c) -> std::vector<Value> { return {c.operand(0)}; });
  return def;
}

}  // namespace lockstep
