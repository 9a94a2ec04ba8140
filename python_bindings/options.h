// Options of optimizers and losses on their way from Python: numbers and booleans by name.

#pragma once

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <map>
#include <string>
#include <variant>

#include "core/attributes.h"

namespace lockstep::python {

using Options = std::map<std::string, std::variant<bool, double>>;

inline AttributeMap AttributesOf(const Options& options) {
  AttributeMap attributes;
  for (const auto& [name, value] : options)
    std::visit([&](auto number) { attributes.emplace(name, Attribute(number)); }, value);
  return attributes;
}

}  // namespace lockstep::python
