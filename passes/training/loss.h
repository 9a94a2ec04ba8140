// Losses: what a training step minimises, each a mean over the global batch, and so independent of the number of ranks.
// A loss is one block in passes/training/losses.cc and a line in the list at its end; text options, the functions of
// lockstep.loss and their documentation follow from it. Constant data; any thread.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/builder.h"
#include "core/graph.h"
#include "core/status.h"
#include "passes/training/options.h"

namespace lockstep::passes {

// What a loss is built of. The target is null if the loss has none.
struct LossContext {
  Builder& b;
  Value prediction, target;
  const AttributeMap& options;  // complete

  double option(std::string_view name) const { return std::get<double>(options.find(name)->second); }
  // Over all elements, hence over the global batch; `x` has the prediction's shape.
  Value Mean(Value x) const;
};

// An argument of a loss as users of Python give it: the name of a result, or of the input for the target.
struct LossArgument {
  std::string name, doc;
  std::string default_value = {};  // empty: it must be given
};

struct Loss {
  std::string name;
  std::string doc;  // one line, or a line and paragraphs
  LossArgument prediction;
  LossArgument target = {};  // without a name: none
  std::vector<OptionDef> options = {};
  // The type of the target of a prediction of this type, which has at least one dimension; an error if there is none.
  // Null: no target.
  std::function<absl::StatusOr<TensorType>(const TensorType& prediction)> target_type = nullptr;
  std::function<Value(const LossContext&)> build;  // a scalar of the prediction's dtype
};

// In the order of the list.
const std::vector<Loss>& AllLosses();
// The error lists those that there are.
absl::StatusOr<const Loss*> FindLoss(std::string_view name);

// What a user chooses.
struct LossSpec {
  std::string name = "softmax_cross_entropy";
  std::string prediction = "logits";  // a result of the model
  std::string target = "target";      // the name of the data input that is added (or used, if the model has it)
  AttributeMap options = {};
};

// The options, complete. Errors name the loss and the option.
absl::StatusOr<AttributeMap> ResolveLoss(const LossSpec& spec);

// Adds the loss, and the input for the target; returns the scalar, and adds no result. Errors name the loss, the result
// or the input.
absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec);

}  // namespace lockstep::passes
