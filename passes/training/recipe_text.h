// Training recipes as text: the options of the passes train-step and evaluation (passes/pass_table.h), such as
//
//   optimizer=AdamW,learning_rate=0.1,groups=*.bias:SGD{},loss=l1{prediction=a} + 0.5*huber{prediction=b, delta=2}
//
// The options of the optimizer, and of a single loss without braces, stand beside those of the recipe.

#pragma once

#include <string>
#include <vector>

#include "core/option_text.h"
#include "core/status.h"
#include "passes/training/evaluation.h"
#include "passes/training/train_step.h"

namespace lockstep::passes {

// Errors name the option, the loss or the group.
absl::StatusOr<TrainStepSpec> TrainStepFromText(const std::vector<NamedText>& texts);
absl::StatusOr<EvaluationSpec> EvaluationFromText(const std::vector<NamedText>& texts);

// The options of either, for people.
std::string TrainStepOptions();
std::string EvaluationOptions();

}  // namespace lockstep::passes
