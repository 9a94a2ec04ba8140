// Every op, declared once. Definitions are one block each in core/ops/<family>.cc; op_list.cc lists them all, so that a
// missing definition is a link error.

#pragma once

#include "core/op_def.h"

namespace lockstep {

// elementwise_unary.cc
const OpDef& NegOp();
const OpDef& AbsOp();
const OpDef& SignOp();
const OpDef& ExpOp();
const OpDef& LogOp();
const OpDef& Log1pOp();
const OpDef& SqrtOp();
const OpDef& RsqrtOp();
const OpDef& TanhOp();
const OpDef& SigmoidOp();
const OpDef& SoftsignOp();
const OpDef& ErfOp();
const OpDef& ReluOp();
const OpDef& FloorOp();
const OpDef& CeilOp();
// elementwise_arithmetic.cc
const OpDef& AddOp();
const OpDef& SubOp();
const OpDef& MulOp();
const OpDef& DivOp();
const OpDef& MaxOp();
const OpDef& MinOp();
const OpDef& PowOp();
// elementwise_logic.cc
const OpDef& NotOp();
const OpDef& AndOp();
const OpDef& OrOp();
const OpDef& CompareOp();
const OpDef& SelectOp();
const OpDef& ConvertOp();
// shape.cc
const OpDef& ConstantOp();
const OpDef& IotaOp();
const OpDef& ReshapeOp();
const OpDef& TransposeOp();
const OpDef& BroadcastOp();
// slicing.cc
const OpDef& ConcatOp();
const OpDef& SliceOp();
const OpDef& PadOp();
// reduction.cc
const OpDef& ReduceSumOp();
const OpDef& ReduceMaxOp();
const OpDef& ReduceMinOp();
const OpDef& ReduceProdOp();
const OpDef& ArgMaxOp();
// matmul.cc
const OpDef& MatMulOp();
// convolution.cc
const OpDef& ConvolutionOp();
const OpDef& ConvolutionGradInputOp();
const OpDef& ConvolutionGradFilterOp();
// pooling.cc
const OpDef& MaxPoolOp();
const OpDef& MaxPoolGradOp();
const OpDef& AvgPoolOp();
const OpDef& AvgPoolGradOp();
// normalization.cc
const OpDef& BatchNormInferenceOp();
const OpDef& BatchNormTrainingOp();
const OpDef& BatchNormGradOp();
// softmax.cc
const OpDef& SoftmaxOp();
const OpDef& LogSoftmaxOp();
const OpDef& SoftmaxCrossEntropyOp();
// optimizer.cc
const OpDef& SgdOp();
const OpDef& SgdMomentumOp();
const OpDef& AdamOp();
// collective.cc
const OpDef& AllReduceOp();
const OpDef& ReduceScatterOp();
// collective_movement.cc
const OpDef& CollectiveBroadcastOp();
const OpDef& AllGatherOp();
const OpDef& ShardOp();
const OpDef& AxisIndexOp();
// fusion.cc
const OpDef& FusionOp();

}  // namespace lockstep
