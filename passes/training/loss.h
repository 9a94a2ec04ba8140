// Losses that a training step minimises. Each is reduced over the global batch, so it does not depend on the number of
// ranks. A loss is one block in passes/training/losses/ and a line in the list there (loss_list.h). Reductions, weights
// of samples and sums of losses are shared (loss_reduction.h, AddLosses). Text options, the functions of lockstep.loss
// and their documentation are derived from the blocks. Constant data; any thread.

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

// The operands of a loss: results of the model, all of one type, and inputs of the step, in the block's order. Values
// of 16 bits are converted to f32. Options are complete.
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
  // Returns a list as a constant of the prediction's dtype. Fails with an error that includes `one_for_each` if it does
  // not have `length` numbers.
  Formula list(std::string_view option, int64_t length, std::string_view one_for_each) const;

 private:
  Builder& b_;
  std::vector<Value> predictions_, inputs_;
  const AttributeMap& options_;
};

// The result of a formula: the losses of the elements over which the mean is taken, and the weight with which each
// counts in the divisor, by default 1. The losses must already include this weight if they should. An element that
// counts 0 must have a loss of 0.
struct LossElements {
  LossElements(Formula losses) : losses(losses.value()) {}  // NOLINT: a formula alone is a loss
  LossElements(Formula losses, Value counts) : losses(losses.value()), counts(counts) {}
  Value losses, counts;
};

// An argument of a loss as given in Python: the name of a result of the model, or of an input of the step.
struct LossArgument {
  std::string name, doc;
  std::string default_value = {};  // empty: it must be given
};

// An input of a loss. `type` returns its type for a prediction, which is of floats and no scalar; an error if the
// prediction's type is not allowed.
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
  std::vector<OptionDef> options = {};  // in AllLosses(), its own options and then those that all losses share
  bool has_batchmean = false;           // true if it has the reduction "batchmean"
  // Returns an error for predictions of a wrong type, or for options that exclude each other, in addition to the checks
  // of the inputs' types. May be null.
  std::function<absl::Status(const TensorType& prediction, const AttributeMap& options)> check = nullptr;
  // The formula. Null for the loss `result`: a result of the model that is neither reduced nor weighted.
  std::function<LossElements(const LossContext&)> elements = nullptr;
  // Computes the reduced loss with one op, from predictions that are not converted to f32. Returns a scalar of their
  // dtype; null if the op does not support the options. May be null. Not called if there are weights.
  std::function<Value(const LossContext&, LossReduction reduction)> whole = nullptr;
};

// Returns all losses, in the order of the list in loss.cc.
const std::vector<Loss>& AllLosses();
// Returns the metrics that an evaluation can compute besides losses. They are described like losses, without gradients.
const std::vector<Loss>& AllMetrics();
// Returns the loss of this name; an error that lists the existing ones if there is none.
absl::StatusOr<const Loss*> FindLoss(std::string_view name);

// A loss as chosen by a user.
struct LossSpec {
  std::string name = "softmax_cross_entropy";
  std::vector<std::string> predictions = {"logits"};  // results of the model
  std::vector<std::string> inputs = {"target"};       // data inputs that are added (or used, if the model has them)
  AttributeMap options = {};
  double factor = 1;  // the loss is multiplied by it; finite
};

// Returns the complete options. An error names the loss and the option.
absl::StatusOr<AttributeMap> ResolveLoss(const LossSpec& spec);

// Adds the loss, times its factor, and its inputs. Returns the scalar; adds no result. `rows` (uneven.h) tells which
// rows of the batch count; it may be null. An error names the loss, the option, the result or the input.
absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec, Value rows = {});

// A loss in a form that can be added up over batches: `sum` / `count`, or `sum` if `count` is null. Scalars.
struct LossSum {
  Value sum, count;
};

// Adds a loss or a metric like AddLoss, and returns it in that form; in f32 if the prediction has 16 bits.
absl::StatusOr<LossSum> AddLossSum(Graph& graph, const LossSpec& spec, Value rows = {});

// Adds losses like AddLoss and returns their sum. Requires at least one loss. Losses may share results and inputs. A
// loss with another dtype than the first is an error.
absl::StatusOr<Value> AddLosses(Graph& graph, const std::vector<LossSpec>& specs, Value rows = {});

}  // namespace lockstep::passes
