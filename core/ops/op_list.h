// The list of all ops. An op is one name here and one block in core/ops/<family>.cc, which defines the function of that
// name. A missing definition is a link error.

#pragma once

#include "core/op_def.h"

// clang-format off
#define LOCKSTEP_OPS(OP) \
  /* elementwise_unary.cc */ \
  OP(NegOp) \
  OP(AbsOp) \
  OP(SignOp) \
  OP(ExpOp) \
  OP(LogOp) \
  OP(Log1pOp) \
  OP(SqrtOp) \
  OP(RsqrtOp) \
  OP(TanhOp) \
  OP(SigmoidOp) \
  OP(SoftsignOp) \
  OP(ErfOp) \
  OP(ReluOp) \
  OP(FloorOp) \
  OP(CeilOp) \
  OP(RoundOp) \
  /* elementwise_trigonometry.cc */ \
  OP(SinOp) \
  OP(CosOp) \
  OP(TanOp) \
  OP(AsinOp) \
  OP(AcosOp) \
  OP(AtanOp) \
  OP(SinhOp) \
  OP(CoshOp) \
  OP(AsinhOp) \
  OP(AcoshOp) \
  OP(AtanhOp) \
  /* elementwise_arithmetic.cc */ \
  OP(AddOp) \
  OP(SubOp) \
  OP(MulOp) \
  OP(DivOp) \
  OP(FmodOp) \
  OP(RemainderOp) \
  OP(MaxOp) \
  OP(MinOp) \
  OP(PowOp) \
  /* elementwise_bits.cc */ \
  OP(NotOp) \
  OP(AndOp) \
  OP(OrOp) \
  OP(XorOp) \
  OP(ShiftLeftOp) \
  OP(ShiftRightOp) \
  OP(BitcastOp) \
  /* elementwise_logic.cc */ \
  OP(CompareOp) \
  OP(SelectOp) \
  OP(WithinOp) \
  OP(ConvertOp) \
  /* random.cc */ \
  OP(RandomBitsOp) \
  OP(DropoutOp) \
  /* stop_gradient.cc */ \
  OP(StopGradientOp) \
  /* shape.cc */ \
  OP(ConstantOp) \
  OP(IotaOp) \
  OP(ReshapeOp) \
  OP(TransposeOp) \
  OP(BroadcastOp) \
  /* slicing.cc */ \
  OP(ConcatOp) \
  OP(SliceOp) \
  OP(PadOp) \
  /* reverse.cc */ \
  OP(ReverseOp) \
  /* windows.cc */ \
  OP(WindowsOp) \
  OP(OverlapAddOp) \
  /* reduction.cc */ \
  OP(ReduceSumOp) \
  OP(ReduceMaxOp) \
  OP(ReduceMinOp) \
  OP(ReduceProdOp) \
  /* sorting.cc */ \
  OP(ArgMaxOp) \
  OP(ArgMinOp) \
  OP(TopKOp) \
  /* cumulative.cc */ \
  OP(CumulativeSumOp) \
  OP(CumulativeProdOp) \
  /* indexing.cc */ \
  OP(GatherOp) \
  OP(ScatterSumOp) \
  /* scatter.cc */ \
  OP(ScatterOp) \
  /* matmul.cc */ \
  OP(MatMulOp) \
  /* convolution.cc */ \
  OP(ConvolutionOp) \
  OP(ConvolutionGradInputOp) \
  OP(ConvolutionGradFilterOp) \
  /* pooling.cc */ \
  OP(MaxPoolOp) \
  OP(MaxPoolGradOp) \
  OP(AvgPoolOp) \
  OP(AvgPoolGradOp) \
  /* normalization.cc */ \
  OP(BatchNormInferenceOp) \
  OP(BatchNormTrainingOp) \
  OP(BatchNormGradOp) \
  OP(UnbiasedVarianceOp) \
  /* softmax.cc */ \
  OP(SoftmaxOp) \
  OP(LogSoftmaxOp) \
  OP(SoftmaxCrossEntropyOp) \
  /* attention.cc */ \
  OP(AttentionOp) \
  OP(AttentionGradOp) \
  OP(AttentionMaskGradOp) \
  /* sgd.cc */ \
  OP(SgdOp) \
  OP(SgdMomentumOp) \
  /* adam.cc */ \
  OP(AdamOp) \
  /* rmsprop.cc */ \
  OP(RmspropOp) \
  OP(RmspropMomentumOp) \
  OP(RmspropCenteredOp) \
  OP(RmspropCenteredMomentumOp) \
  /* adagrad.cc */ \
  OP(AdagradOp) \
  /* adamax.cc */ \
  OP(AdamaxOp) \
  /* radam.cc */ \
  OP(RadamOp) \
  /* adadelta.cc */ \
  OP(AdadeltaOp) \
  /* rprop.cc */ \
  OP(RpropOp) \
  /* lion.cc */ \
  OP(LionOp) \
  /* nadam.cc */ \
  OP(NadamOp) \
  /* lamb.cc */ \
  OP(LambOp) \
  /* lars.cc */ \
  OP(LarsOp) \
  /* adafactor.cc */ \
  OP(AdafactorOp) \
  OP(AdafactorVectorOp) \
  /* muon.cc */ \
  OP(MuonOp) \
  /* collective.cc */ \
  OP(AllReduceOp) \
  OP(ReduceScatterOp) \
  /* collective_movement.cc */ \
  OP(CollectiveBroadcastOp) \
  OP(AllGatherOp) \
  OP(ShardOp) \
  OP(PartsOp) \
  OP(OwnPartOp) \
  OP(AxisIndexOp) \
  /* collective_exchange.cc */ \
  OP(AllToAllOp) \
  OP(CollectivePermuteOp) \
  OP(CollectiveGatherOp) \
  OP(CollectiveScatterOp) \
  /* exchange.cc */ \
  OP(ExchangeOp) \
  OP(ExchangeWeightsOp) \
  OP(AsLocalOp) \
  OP(AsReplicatedOp) \
  /* parameter_server.cc */ \
  OP(PushOp) \
  OP(PullOp) \
  /* fusion.cc */ \
  OP(FusionOp) \
  /* scan.cc */ \
  OP(ScanOp)
// clang-format on

namespace lockstep {

#define LOCKSTEP_DECLARE_OP(name) const OpDef& name();
LOCKSTEP_OPS(LOCKSTEP_DECLARE_OP)
#undef LOCKSTEP_DECLARE_OP

}  // namespace lockstep
