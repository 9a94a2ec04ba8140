// Averages of weights over steps, kept beside the trained weights. Models with averaged weights often evaluate better.
// Called by MakeTrainStep, after the optimizers. One thread at a time may use a Graph.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Adds a state <state>/average of the same type for each of the states. With `next` the state's next value, a step
// changes it to
//   (1 - weight) * average + weight * next,
// computed in f32, or in f64 for an f64 state. The weight is the setting averaging/weight, a number from 0 to 1, by
// default 1. A weight of 0 keeps the average, whatever `next` is, and 1 makes it `next`. lockstep.average in Python
// gives the weights for an exponential moving average (Polyak and Juditsky, 1992) and for stochastic weight averaging
// (Izmailov et al., 2018).
absl::Status AddAverages(Graph& graph, const std::vector<Value>& states);

}  // namespace lockstep::passes
