// Losses: what a training step minimises, each reduced over the global batch, and so independent of the number of
// ranks. A loss is one block in passes/training/losses/ and a line in the list there (loss_list.h); reductions, weights
// of samples and sums of losses are shared (loss_reduction.h, AddLosses); text options, the functions of lockstep.loss
// and their documentation follow. Constant data; any thread.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/builder.h"
#include "core/graph.h"
#include "core/status.h"
#include "passes/training/formula.h"
#include "passes/training/options.h"

namespace lockstep::passes {

// What a loss is built of: results of the model, which all have one type, and inputs of the step, in the block's order;
// in 32 bits where the model's are of 16. Options are complete.
class LossContext {
 public:
  LossContext(Builder& b, std::vector<Value> predictions, std::vector<Value> inputs, const AttributeMap& options)
      : b_(b), predictions_(std::move(predictions)), inputs_(std::move(inputs)), options_(options) {}

  Builder& b() const { return b_; }
  Formula prediction(size_t i = 0) const { return {b_, predictions_[i]}; }
  Formula target(size_t i = 0) const { return {b_, inputs_[i]}; }

  bool has(std::string_view option) const { return options_.find(option) != options_.end(); }
  double number(std::string_view option) const { return std::get<double>(options_.find(option)->second); }
  int64_t integer(std::string_view option) const { return std::get<int64_t>(options_.find(option)->second); }
  bool flag(std::string_view option) const { return std::get<bool>(options_.find(option)->second); }
  const std::string& text(std::string_view option) const {
    return std::get<std::string>(options_.find(option)->second);
  }
  int64_t length(std::string_view list) const { return std::get<Tensor>(options_.find(list)->second).num_elements(); }
  // A list as a constant of the prediction's dtype; an error, which says what there is one number for, unless it is as
  // long as that.
  Formula list(std::string_view option, int64_t length, std::string_view one_for_each) const;

 private:
  Builder& b_;
  std::vector<Value> predictions_, inputs_;
  const AttributeMap& options_;
};

// What a formula gives: the losses of the elements of which a mean is taken, and how much each counts there; by default
// 1. The losses hold that factor already, if they are to. What counts 0 has a loss of 0.
struct LossElements {
  LossElements(Formula losses) : losses(losses.value()) {}  // NOLINT: a formula alone is a loss
  LossElements(Formula losses, Value counts) : losses(losses.value()), counts(counts) {}
  Value losses, counts;
};

// An argument of a loss as users of Python give it: the name of a result, or of an input of the step.
struct LossArgument {
  std::string name, doc;
  std::string default_value = {};  // empty: it must be given
};

// An input, of a type that the prediction's, which is of floats and no scalar, decides; an error if there is none.
struct LossInput {
  LossArgument argument;
  std::function<absl::StatusOr<TensorType>(const TensorType& prediction, const AttributeMap& options)> type;
};

enum class LossReduction { kMean, kSum, kBatchMean };

struct Loss {
  std::string name;
  std::string doc;  // one line, or a line and paragraphs
  std::vector<LossArgument> predictions;
  std::vector<LossInput> inputs = {};
  std::vector<OptionDef> options = {};  // in AllLosses(), behind its own, those that all losses share
  bool has_batchmean = false;           // whether it has that reduction
  // What is wrong with predictions of this type, or with options together, beyond what the inputs' types say. May be
  // null.
  std::function<absl::Status(const TensorType& prediction, const AttributeMap& options)> check = nullptr;
  // The formula. Null for a result that is a loss itself, which is neither reduced nor weighted.
  std::function<LossElements(const LossContext&)> elements = nullptr;
  // The whole, where one op computes it, of predictions as they are: a scalar of their dtype, or null where the options
  // ask for more. May be null. Not asked where elements have weights of their own.
  std::function<Value(const LossContext&, LossReduction reduction)> whole = nullptr;
};

// In the order of the list.
const std::vector<Loss>& AllLosses();
// What an evaluation may count beside losses; described as these are, and without gradients.
const std::vector<Loss>& AllMetrics();
// The error lists those that there are.
absl::StatusOr<const Loss*> FindLoss(std::string_view name);

// What a user chooses.
struct LossSpec {
  std::string name = "softmax_cross_entropy";
  std::vector<std::string> predictions = {"logits"};  // results of the model
  std::vector<std::string> inputs = {"target"};       // data inputs that are added (or used, if the model has them)
  AttributeMap options = {};
  double factor = 1;  // times which it is added to the other losses; finite
};

// The options, complete. Errors name the loss and the option.
absl::StatusOr<AttributeMap> ResolveLoss(const LossSpec& spec);

// Adds the loss, times its factor, and its inputs; returns the scalar, and adds no result. `rows` (uneven.h), which may
// be null, says which rows of the batch count. Errors name the loss, the option, the result or the input.
absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec, Value rows = {});

// A loss as what several batches can add up: `sum` / `count`, or `sum` where `count` is null. Scalars.
struct LossSum {
  Value sum, count;
};

// The same of a loss or a metric, as that: in 32 bits where the prediction is of 16.
absl::StatusOr<LossSum> AddLossSum(Graph& graph, const LossSpec& spec, Value rows = {});

// The sum of at least one loss. Losses may share results and inputs; one whose dtype is not that of the first is an
// error.
absl::StatusOr<Value> AddLosses(Graph& graph, const std::vector<LossSpec>& specs, Value rows = {});

}  // namespace lockstep::passes
