// The options of compile, a row each: from a row follow the keyword of Python's compile with its documentation, its
// part of the text of a strategy, and docs/options.md. A new option is a field of CompileOptions, its row, and the pass
// that it is for. Constant data; any thread.

#pragma once

#include <string>
#include <vector>

#include "backends/compile_options.h"
#include "core/option_text.h"

namespace lockstep {

struct CompileOption : OptionOf<CompileOptions> {  // its text is that of its value, and "" if it has none
  std::string type, default_value;                 // as Python writes them
  bool is_of_strategy = false;                     // what ranks run, and compare; else it concerns a rank's machine
  std::vector<std::string> choices = {};           // of a text: those that it may be; any if empty
};

// In the order in which Python has them. What is set first decides whether what follows may be.
const std::vector<CompileOption>& CompileOptionTable();
const CompileOption& CompileOptionNamed(std::string_view name);  // requires that there is one

// Of these options of a strategy. Errors name the option.
absl::StatusOr<Strategy> StrategyFrom(const std::vector<NamedText>& texts);

}  // namespace lockstep
