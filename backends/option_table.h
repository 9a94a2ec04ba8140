// The table of compile's options, one row for each. A row defines the keyword of Python's compile and its
// documentation, the option's text in a strategy, and its section of docs/options.md. A new option needs a field of
// CompileOptions, a row, and the pass that uses it. Constant data; any thread.

#pragma once

#include <string>
#include <vector>

#include "backends/compile_options.h"
#include "core/option_text.h"

namespace lockstep {

struct CompileOption : OptionOf<CompileOptions> {
  std::string type, default_value;        // in Python's syntax; None if the type has it, or the field's
  bool is_of_strategy = false;            // true: equal on all ranks, which compare it; false: of a rank's machine
  std::vector<std::string> choices = {};  // the allowed values of a string option; empty: any value
};

// Returns the options in the order of Python's signature. They are set in this order, so an option may depend on those
// before it.
const std::vector<CompileOption>& CompileOptionTable();
const CompileOption& CompileOptionNamed(std::string_view name);  // requires that it exists

// Returns the strategy with these options. Errors name the option.
absl::StatusOr<Strategy> StrategyFrom(const std::vector<NamedText>& texts);

}  // namespace lockstep
