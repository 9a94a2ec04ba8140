// Optimizers by the names that users choose. The blocks of their ops (core/ops/optimizer.h) define the names and the
// options; the code here is the same for all optimizers. Constant data; any thread.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/op_def.h"
#include "core/status.h"
#include "passes/option_def.h"

namespace lockstep::passes {

struct Optimizer {
  const OpDef* op;
  const OptimizerName* name;
  std::vector<OptionDef> options;  // the options of the op, then the flags of the name
};

// Returns all names of all optimizer ops, in the order of core/ops/op_list.h.
const std::vector<Optimizer>& AllOptimizers();
// Returns the optimizer of this name, ignoring case; an error that lists the existing ones if there is none.
absl::StatusOr<const Optimizer*> FindOptimizer(std::string_view name);

// Returns true if an optimizer op has the operand `step`, the number of the step.
bool CountsSteps(const OpDef& op);

// An optimizer as chosen by a user.
struct OptimizerSpec {
  std::string name = "SGD";
  AttributeMap options = {{"learning_rate", 0.01}};
  // Options that will be set to other values later: their parts of the formula are kept even if they are 0 now.
  std::vector<std::string> varying = {};
};

// The op and the attributes for a choice.
struct OptimizerStep {
  const OpDef* op;
  AttributeMap attributes;
};

// Returns the op for a variable with `rank` dimensions; all optimizers can update matrices. Returns an error if an
// option is invalid, if it has no effect without another option, if it varies but cannot change between steps, or if
// the optimizer does not update such variables. The error names the optimizer and the option.
absl::StatusOr<OptimizerStep> ResolveOptimizer(const OptimizerSpec& spec, int64_t rank = 2);

// Returns the ops that may be chosen for a name: its variants, then its own op.
std::vector<const OpDef*> OpsOf(const Optimizer& optimizer);

// Adds updates of the states by their gradients; gradients[i] has the type of states[i]. Adds the optimizer's own
// states, which start as zeros: <state>/<suffix> for each state that the op's block names, and, if the op counts steps,
// one optimizer/step that all optimizers of a graph share. An option that may be an operand becomes the setting
// <prefix>/<option>, unless it is optional, 0 and does not vary. If the optimizer cannot update a state, returns an
// error that names the state.
absl::Status AddOptimizer(Graph& graph, const std::vector<Value>& states, const std::vector<Value>& gradients,
                          const OptimizerSpec& spec, const std::string& prefix = "optimizer");

}  // namespace lockstep::passes
