// A graph of draws, run on the interpreter, for the tests of core/random.h.

#pragma once

#include <functional>
#include <vector>

#include "core/builder.h"
#include "core/tensor.h"

namespace lockstep {

using MakeDraws = std::function<std::vector<Value>(Builder& b)>;

// The graph @draws() -> (r0, r1, …) with the results of `make`.
Graph GraphOfDraws(const MakeDraws& make);

// The results of that graph with this seed and step, without the next step.
std::vector<Tensor> Draws(const MakeDraws& make, int64_t seed = 0, int64_t step = 0);
// The same for one result.
Tensor DrawOne(const std::function<Value(Builder& b)>& make, int64_t seed = 0, int64_t step = 0);

std::vector<double> Numbers(const Tensor& tensor);

}  // namespace lockstep
