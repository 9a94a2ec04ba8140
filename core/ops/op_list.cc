#include "core/ops/op_list.h"

#include <unordered_map>

namespace lockstep {

const std::vector<const OpDef*>& AllOps() {
  static const std::vector<const OpDef*> ops = {
      // elementwise_unary.cc
      &NegOp(),
      &AbsOp(),
      &SignOp(),
      &ExpOp(),
      &LogOp(),
      &Log1pOp(),
      &SqrtOp(),
      &RsqrtOp(),
      &TanhOp(),
      &SigmoidOp(),
      &SoftsignOp(),
      &ErfOp(),
      &ReluOp(),
      &FloorOp(),
      &CeilOp(),
      // elementwise_arithmetic.cc
      &AddOp(),
      &SubOp(),
      &MulOp(),
      &DivOp(),
      &MaxOp(),
      &MinOp(),
      &PowOp(),
      // elementwise_logic.cc
      &NotOp(),
      &AndOp(),
      &OrOp(),
      &CompareOp(),
      &SelectOp(),
      &ConvertOp(),
      // shape.cc
      &ConstantOp(),
      &IotaOp(),
      &ReshapeOp(),
      &TransposeOp(),
      &BroadcastOp(),
      // slicing.cc
      &ConcatOp(),
      &SliceOp(),
      &PadOp(),
      // reduction.cc
      &ReduceSumOp(),
      &ReduceMaxOp(),
      &ReduceMinOp(),
      &ReduceProdOp(),
      &ArgMaxOp(),
      // matmul.cc
      &MatMulOp(),
      // convolution.cc
      &ConvolutionOp(),
      &ConvolutionGradInputOp(),
      &ConvolutionGradFilterOp(),
      // pooling.cc
      &MaxPoolOp(),
      &MaxPoolGradOp(),
      &AvgPoolOp(),
      &AvgPoolGradOp(),
      // normalization.cc
      &BatchNormInferenceOp(),
      &BatchNormTrainingOp(),
      &BatchNormGradOp(),
      // softmax.cc
      &SoftmaxOp(),
      &LogSoftmaxOp(),
      &SoftmaxCrossEntropyOp(),
      // optimizer.cc
      &SgdOp(),
      &SgdMomentumOp(),
      &AdamOp(),
      // collective.cc
      &AllReduceOp(),
      &ReduceScatterOp(),
      // collective_movement.cc
      &CollectiveBroadcastOp(),
      &AllGatherOp(),
      &ShardOp(),
      &AxisIndexOp(),
      // fusion.cc
      &FusionOp(),
  };
  return ops;
}

const OpDef* FindOp(std::string_view name) {
  static const auto* by_name = [] {
    auto* map = new std::unordered_map<std::string_view, const OpDef*>();
    for (const OpDef* op : AllOps()) map->emplace(op->name(), op);
    return map;
  }();
  const auto it = by_name->find(name);
  return it == by_name->end() ? nullptr : it->second;
}

const OpDef& GetOp(std::string_view name) {
  const OpDef* op = FindOp(name);
  LOCKSTEP_CHECK(op != nullptr) << "no op " << name;
  return *op;
}

}  // namespace lockstep
