// The losses, each a block in a file of its family here. For passes/training/loss.cc, which lists them; a new one is
// declared here and takes its place in AllLosses().

#pragma once

#include "passes/training/loss.h"

namespace lockstep::passes::losses {

// labels.cc: of scores or log-probabilities, against classes or probabilities.
Loss SoftmaxCrossEntropy();
Loss NegativeLogLikelihood();
Loss Accuracy();  // a metric

// distributions.cc: of probabilities.
Loss BinaryCrossEntropyWithLogits();
Loss KlDiv();

// distances.cc: between tensors of one shape.
Loss MeanSquaredError();
Loss L1();
Loss Huber();
Loss SmoothL1();

// embeddings.cc: of distances between samples.
Loss HingeEmbedding();
Loss CosineEmbedding();
Loss TripletMargin();

// sequences.cc
Loss Ctc();

// What several of them say of their arguments.
LossArgument PredictionOfAnyShape(std::string what = "a float result of the model, of any shape with the batch first");
LossInput WantedValues(std::string what = "the wanted values");

}  // namespace lockstep::passes::losses
