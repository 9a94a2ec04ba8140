// Declarations of the losses. Each is a block in the file of its family in this folder. For AllLosses() in
// passes/training/loss.cc, to which a new loss is added too.

#pragma once

#include "passes/losses/loss_block.h"

namespace lockstep::passes::losses {

// labels.cc: scores or log-probabilities against classes or probabilities.
Loss SoftmaxCrossEntropy();
Loss NegativeLogLikelihood();
Loss Accuracy();  // a metric

// distributions.cc: losses of probabilities.
Loss BinaryCrossEntropyWithLogits();
Loss KlDiv();

// distances.cc: between tensors of one shape.
Loss MeanSquaredError();
Loss L1();
Loss Huber();
Loss SmoothL1();

// embeddings.cc: distances between samples.
Loss HingeEmbedding();
Loss CosineEmbedding();
Loss TripletMargin();

// sequences.cc
Loss Ctc();

// Arguments that several losses share.
LossArgument PredictionOfAnyShape(std::string what = "a float result of the model, of any shape with the batch first");
LossInput WantedValues(std::string what = "the wanted values");

}  // namespace lockstep::passes::losses
