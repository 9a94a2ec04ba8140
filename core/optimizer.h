// The data that the block of an optimizer op has in addition to that of every op: its states, the variables that it
// updates, and the names by which users choose it. AddOptimizer (passes/training/optimizer.h) adds any optimizer to a
// graph from this data alone. The text options, the classes of lockstep.optim and their documentation are made from it
// too. Plain values; any thread.

#pragma once

#include <limits>
#include <string>
#include <vector>

#include "core/attributes.h"

namespace lockstep {

// The type of an optimizer's state, relative to that of its variable.
enum class StateShape {
  kVariable,  // the variable's type
  kScalar,    // f64[]
  kRows,      // the variable's type with 1 as the last extent: a number for each row of a matrix
  kColumns,   // the variable's type with 1 as the last but one: a number for each column
};

// An operand that the optimizer keeps between steps. For the variable %w it is the state input %w/<suffix>, which
// starts as zeros. Checkpoints use this name, so it must stay when an op or an operand is renamed.
struct OptimizerState {
  std::string operand, suffix;
  bool is_never_negative = false;  // such as a mean of squares, of which the update takes the square root
  StateShape shape = StateShape::kVariable;

  // Requires a variable of at least two dimensions for kRows and kColumns.
  TensorType TypeFor(const TensorType& variable) const;
};

// The number of dimensions of the variables that an op updates.
struct VariableRanks {
  int64_t least = 0, most = std::numeric_limits<int64_t>::max();

  bool Contain(int64_t rank) const { return rank >= least && rank <= most; }
  std::string ToString() const;  // "2 dimensions", "at least 2 dimensions", "at most 1 dimension"
  bool operator==(const VariableRanks&) const = default;
};

// An op that replaces the named op if all options in `without` are off (a number 0 or a flag false) and it updates
// variables of that rank. It computes the same with fewer or other states, such as SGD without momentum.
struct OptimizerVariant {
  std::string op;
  std::vector<std::string> without = {};
};

// A flag that is not an attribute of an op. It only chooses between variants. Off by default.
struct OptimizerFlag {
  std::string name, doc;
};

// An optimizer as users name it, such as "AdamW". Its options are the attributes of the op, in order and without those
// in `fixed`, then `flags`.
struct OptimizerName {
  std::string name;            // the Python class; not case-sensitive in text options
  std::string doc;             // a line, optionally followed by paragraphs; options and states have their own
  AttributeMap defaults = {};  // defaults of options that differ from the op's
  AttributeMap fixed = {};     // attributes that the name determines
  std::vector<OptimizerVariant> variants = {};  // the first that applies replaces the op
  std::vector<OptimizerFlag> flags = {};
};

struct OptimizerInfo {
  std::vector<OptimizerState> states;
  VariableRanks ranks;
  std::vector<OptimizerName> names;  // empty for an op that is only a variant of another
};

}  // namespace lockstep
