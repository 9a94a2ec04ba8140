// What the block of an optimizer op says as data, beside what every op says: where its states live, and the names by
// which users ask for it. AddOptimizer (passes/training/optimizer.h) writes any optimizer into a graph from this alone,
// and the text options, the classes of lockstep.optim and their documentation follow from it. Plain values; any thread.

#pragma once

#include <string>
#include <vector>

#include "core/attributes.h"

namespace lockstep {

// An operand that the optimizer keeps: of the variable %w the state input %w/<suffix>, which starts as zeros. Saved
// states are found by this name, so it stays when an op or an operand is renamed.
struct OptimizerState {
  std::string operand, suffix;
  bool is_never_negative = false;  // such as a mean of squares: the update takes its root
};

// What users ask for, such as "AdamW". Its options are the attributes of the op, in order, but for those that the name
// fixes.
struct OptimizerName {
  std::string name;            // a class of Python; in text any case
  std::string doc;             // one line, or a line and paragraphs; the options and the states document themselves
  AttributeMap defaults = {};  // of options, where they differ from the op's
  AttributeMap fixed = {};     // attributes that the name decides
  // Where the option `unless` is 0 the op `simpler` computes the same, with fewer states: SGD without momentum.
  std::string unless = {}, simpler = {};
};

struct OptimizerInfo {
  std::vector<OptimizerState> states;
  std::vector<OptimizerName> names;  // none for an op that is only the simpler one of another
};

}  // namespace lockstep
