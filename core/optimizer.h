// What the block of an optimizer op says as data, beside what every op says: where its states live, which variables it
// updates, and the names by which users ask for it. AddOptimizer (passes/training/optimizer.h) writes any optimizer
// into a graph from this alone, and the text options, the classes of lockstep.optim and their documentation follow from
// it. Plain values; any thread.

#pragma once

#include <limits>
#include <string>
#include <vector>

#include "core/attributes.h"

namespace lockstep {

// The type of an optimizer's state, given that of its variable.
enum class StateShape {
  kVariable,  // the variable's
  kScalar,    // f64[]
  kRows,      // the variable's with 1 as the last extent: a number for each row of a matrix
  kColumns,   // … as the last but one: a number for each column
};

// An operand that the optimizer keeps: of the variable %w the state input %w/<suffix>, which starts as zeros. Saved
// states are found by this name, so it stays when an op or an operand is renamed.
struct OptimizerState {
  std::string operand, suffix;
  bool is_never_negative = false;  // such as a mean of squares: the update takes its root
  StateShape shape = StateShape::kVariable;

  // Rows and columns require a variable of two dimensions or more.
  TensorType TypeFor(const TensorType& variable) const;
};

// How many dimensions the variables have that an op updates.
struct VariableRanks {
  int64_t least = 0, most = std::numeric_limits<int64_t>::max();

  bool Contain(int64_t rank) const { return rank >= least && rank <= most; }
  std::string ToString() const;  // "2 dimensions", "at least 2 dimensions", "at most 1 dimension"
  bool operator==(const VariableRanks&) const = default;
};

// An op that stands in for the one that has the name, where the options that it does without are off, a number 0 or a
// flag false, and the variable is one that it updates. What it computes is the same, with fewer states or other ones:
// SGD without momentum.
struct OptimizerVariant {
  std::string op;
  std::vector<std::string> without = {};
};

// A flag of a name that is an attribute of no op: it only chooses between variants. It is off unless it is given.
struct OptimizerFlag {
  std::string name, doc;
};

// What users ask for, such as "AdamW". Its options are the attributes of the op, in order, but for those that the name
// fixes, and then its flags.
struct OptimizerName {
  std::string name;            // a class of Python; in text any case
  std::string doc;             // a line, or a line and paragraphs; options and states document themselves
  AttributeMap defaults = {};  // of options, where they differ from the op's
  AttributeMap fixed = {};     // attributes that the name decides
  std::vector<OptimizerVariant> variants = {};  // the first that can stands in for the op
  std::vector<OptimizerFlag> flags = {};
};

struct OptimizerInfo {
  std::vector<OptimizerState> states;
  VariableRanks ranks;
  std::vector<OptimizerName> names;  // none for an op that is only a variant of another
};

}  // namespace lockstep
