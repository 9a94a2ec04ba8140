// Optimizers by the names under which users ask for them. Which there are, with which options, is in the blocks of
// their ops (core/ops/optimizer.h); nothing here knows any of them. Constant data; any thread.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/op_def.h"
#include "core/status.h"
#include "passes/training/options.h"

namespace lockstep::passes {

struct Optimizer {
  const OpDef* op;
  const OptimizerName* name;
  std::vector<OptionDef> options;  // in the order in which users give them: those of the op, then the name's flags
};

// Every name of every optimizer op, in the order of core/ops/op_list.h.
const std::vector<Optimizer>& AllOptimizers();
// By name, in upper or lower case. The error lists those that there are.
absl::StatusOr<const Optimizer*> FindOptimizer(std::string_view name);

// Whether an optimizer op has the operand `step`, the number of the step.
bool CountsSteps(const OpDef& op);

// What a user chooses.
struct OptimizerSpec {
  std::string name = "SGD";
  AttributeMap options = {{"learning_rate", 0.01}};
  // Options that will be set to other values later, so that a 0 of theirs is no reason to leave anything out.
  std::vector<std::string> varying = {};
};

// The op that a choice comes to, and its attributes.
struct OptimizerStep {
  const OpDef* op;
  AttributeMap attributes;
};

// The op for a variable of so many dimensions; all optimizers update matrices. Errors name the optimizer and the
// option, its range, or the option without which it has no effect; an option that varies and cannot; or the variables
// that it updates.
absl::StatusOr<OptimizerStep> ResolveOptimizer(const OptimizerSpec& spec, int64_t rank = 2);

// The ops that a name may come to: its variants, and then its own.
std::vector<const OpDef*> OpsOf(const Optimizer& optimizer);

// Updates each state by its gradient; gradients[i] has the type of states[i]. The optimizer's own states are added, and
// start as zeros: <state>/<suffix> for each state that the op's block names, and one optimizer/step, which all
// optimizers of a graph share, if it counts steps. An option that may be an operand becomes the setting
// <prefix>/<option>, unless it need not be given, is 0 and does not vary. An error names a state that the optimizer
// does not update.
absl::Status AddOptimizer(Graph& graph, const std::vector<Value>& states, const std::vector<Value>& gradients,
                          const OptimizerSpec& spec, const std::string& prefix = "optimizer");

}  // namespace lockstep::passes
