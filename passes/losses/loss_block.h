// A loss as one block: its arguments, its options and its formula. The blocks are in this folder, one file a family.
// Constant data; any thread.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/builder.h"
#include "core/status.h"
#include "passes/formula.h"
#include "passes/option_def.h"

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

}  // namespace lockstep::passes
