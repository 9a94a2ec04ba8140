// Options of optimizers and losses from Python: values by name.

#pragma once

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "core/attributes.h"
#include "passes/training/loss.h"
#include "passes/training/optimizer.h"

namespace lockstep::python {

using Options = std::map<std::string, std::variant<bool, int64_t, double, std::string, std::vector<double>>>;

inline Attribute AttributeOf(const std::vector<double>& numbers) {
  return Tensor::Of(Shape({static_cast<int64_t>(numbers.size())}), numbers);
}
template <typename T>
Attribute AttributeOf(const T& value) {
  return value;
}

inline AttributeMap AttributesOf(const Options& options) {
  AttributeMap attributes;
  for (const auto& [name, value] : options)
    std::visit([&](const auto& each) { attributes.emplace(name, AttributeOf(each)); }, value);
  return attributes;
}

// A loss: its name, the results and inputs that it reads, its options, and its factor in a sum of losses.
using LossChoice = std::tuple<std::string, std::vector<std::string>, std::vector<std::string>, Options, double>;

inline passes::LossSpec LossSpecOf(const LossChoice& choice) {
  const auto& [name, predictions, inputs, options, factor] = choice;
  return {name, predictions, inputs, AttributesOf(options), factor};
}

// An optimizer: the pattern of its states, its name, its options, and the options that will be set to other values.
using OptimizerChoice = std::tuple<std::string, std::string, Options, std::vector<std::string>>;

inline passes::OptimizerSpec OptimizerSpecOf(const OptimizerChoice& choice) {
  return {std::get<1>(choice), AttributesOf(std::get<2>(choice)), std::get<3>(choice)};
}

}  // namespace lockstep::python
