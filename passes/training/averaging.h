// Averages of weights over steps, beside the weights that are trained: for evaluation, which they often serve better.
// Called by MakeTrainStep, behind the optimizers; one thread at a time may use a Graph.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// The name of the state that is the average of another.
std::string AverageOf(const std::string& state);

// A state <state>/average for each of the states, of its type. With the setting averaging/weight, a number from 0 to 1
// that is 1 until it is set, a step makes it
//   (1 - weight) * average + weight * next,
// in f32, or f64 for that, where `next` is what the step makes of the state: a weight of 0 keeps the average, whatever
// `next` holds, and 1 makes it `next`. Which weights give an exponential moving average (Polyak and Juditsky, 1992),
// and which stochastic weight averaging (Izmailov et al., 2018), says lockstep.average in Python.
absl::Status AddAverages(Graph& graph, const std::vector<Value>& states);

}  // namespace lockstep::passes
