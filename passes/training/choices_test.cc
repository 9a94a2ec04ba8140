// What the blocks of optimizers and losses say of themselves is consistent, and what users choose is checked by it.

#include <algorithm>
#include <map>
#include <set>

#include "core/builder.h"
#include "gtest/gtest.h"
#include "passes/training/loss.h"
#include "passes/training/optimizer.h"

namespace lockstep::passes {
namespace {

const OptionDef* OptionOf(const Optimizer& optimizer, const std::string& name) {
  for (const OptionDef& option : optimizer.options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::string ErrorOf(const OptimizerSpec& spec) { return std::string(ResolveOptimizer(spec).status().message()); }

TEST(Optimizers, NamesSayWhatTheirOpsHave) {
  ASSERT_GE(AllOptimizers().size(), 3u);
  std::set<std::string> names;
  for (const Optimizer& optimizer : AllOptimizers()) {
    const OptimizerName& name = *optimizer.name;
    SCOPED_TRACE(name.name);
    EXPECT_TRUE(names.insert(name.name).second);
    EXPECT_FALSE(name.doc.empty());
    for (const OptionDef& option : optimizer.options) {
      EXPECT_FALSE(option.doc.empty()) << option.name;
      const bool is_float = std::holds_alternative<double>(option.example);
      EXPECT_TRUE(is_float || std::holds_alternative<bool>(option.example)) << option.name;
      EXPECT_EQ(is_float, option.range.has_value()) << option.name;
      if (!is_float || option.required) continue;
      EXPECT_TRUE(option.range->Contains(std::get<double>(option.example))) << option.name;
    }
    for (const auto& [option, value] : name.defaults) EXPECT_NE(OptionOf(optimizer, option), nullptr) << option;
    for (const auto& [attribute, value] : name.fixed) EXPECT_NE(optimizer.op->FindAttribute(attribute), nullptr);
    EXPECT_NE(OptionOf(optimizer, "learning_rate"), nullptr);
    EXPECT_EQ(name.unless.empty(), name.simpler.empty());
    if (name.unless.empty()) continue;
    EXPECT_NE(OptionOf(optimizer, name.unless), nullptr);
    ASSERT_NE(FindOp(name.simpler), nullptr);
  }
}

// A saved state must be found by what wrote it and by nothing else; of an op and its simpler one it is the same.
TEST(Optimizers, StatesHaveTheirOwnNames) {
  std::map<std::string, std::string> simpler;
  for (const Optimizer& optimizer : AllOptimizers()) simpler[optimizer.op->name()] = optimizer.name->simpler;
  std::map<std::string, std::string> owner;
  for (const OpDef* op : AllOps()) {
    if (!op->has_trait(kOptimizer)) continue;
    EXPECT_EQ(op->operand_names().size(), op->optimizer().states.size() + (CountsSteps(*op) ? 3 : 2)) << op->name();
    for (const OptimizerState& state : op->optimizer().states) {
      const auto [it, is_new] = owner.emplace(state.suffix, op->name());
      EXPECT_TRUE(is_new || simpler[op->name()] == it->second || simpler[it->second] == op->name())
          << state.suffix << " is of " << it->second << " and of " << op->name();
    }
  }
  EXPECT_EQ(owner["momentum"], "sgd_momentum");
  EXPECT_EQ(owner["adam_v"], "adam");
}

TEST(Optimizers, ANameAndOptionsComeToAnOpAndItsAttributes) {
  const absl::StatusOr<OptimizerStep> adamw =
      ResolveOptimizer({"adamw", {{"beta1", 0.5}, {"weight_decay", int64_t{0}}}});
  ASSERT_TRUE(adamw.ok()) << adamw.status();
  EXPECT_EQ(adamw->op->name(), "adam");
  EXPECT_EQ(AttributesToString(adamw->attributes),
            "{beta1=0.5, beta2=0.999, decoupled=true, epsilon=1e-08, learning_rate=0.001, weight_decay=0.0}");
  const absl::StatusOr<OptimizerStep> sgd = ResolveOptimizer({"SGD", {{"learning_rate", 0.5}}});
  ASSERT_TRUE(sgd.ok()) << sgd.status();
  EXPECT_EQ(sgd->op->name(), "sgd");
  EXPECT_EQ(AttributesToString(sgd->attributes), "{learning_rate=0.5, weight_decay=0.0}");
  const absl::StatusOr<OptimizerStep> momentum = ResolveOptimizer({"SGD", {{"learning_rate", 0.5}, {"momentum", 0.1}}});
  ASSERT_TRUE(momentum.ok()) << momentum.status();
  EXPECT_EQ(momentum->op->name(), "sgd_momentum");
}

TEST(Optimizers, ErrorsNameTheOptimizerAndTheOption) {
  const std::string unknown = "unknown optimizer 'adagrid'; there are SGD, Adam, AdamW";
  EXPECT_EQ(ErrorOf({"adagrid", {}}).substr(0, unknown.size()), unknown);
  EXPECT_EQ(ErrorOf({"SGD", {}}), "SGD: learning_rate is missing");
  EXPECT_EQ(ErrorOf({"SGD", {{"learning_rate", 0.5}, {"rate", 1.0}}}),
            "SGD has no option rate; it has learning_rate, momentum, nesterov, weight_decay");
  EXPECT_EQ(ErrorOf({"Adam", {{"beta1", true}}}), "Adam: beta1 is true, expected a float");
  EXPECT_EQ(ErrorOf({"Adam", {{"epsilon", 0.0}}}), "Adam: epsilon is 0, expected a finite number above 0");
  EXPECT_EQ(ErrorOf({"Adam", {{"decoupled", true}}}),
            "Adam has no option decoupled; it has learning_rate, beta1, beta2, epsilon, weight_decay");
  EXPECT_EQ(ErrorOf({"SGD", {{"learning_rate", 0.5}, {"nesterov", true}}}), "SGD: nesterov needs a momentum");
}

TEST(Losses, BlocksAreWhole) {
  ASSERT_GE(AllLosses().size(), 3u);
  std::set<std::string> names;
  for (const Loss& loss : AllLosses()) {
    SCOPED_TRACE(loss.name);
    EXPECT_TRUE(names.insert(loss.name).second);
    EXPECT_FALSE(loss.doc.empty());
    EXPECT_FALSE(loss.prediction.name.empty());
    EXPECT_EQ(loss.target.name.empty(), loss.target_type == nullptr);
    for (const OptionDef& option : loss.options) EXPECT_FALSE(option.doc.empty()) << option.name;
  }
}

TEST(Losses, ErrorsNameTheLossAndWhatIsWrong) {
  Graph graph("g");
  const absl::StatusOr<Value> x = graph.AddInput("x", {DType::kF32, Shape({6})});
  const absl::StatusOr<Value> scalar = graph.AddInput("s", {DType::kF32, Shape()});
  const absl::StatusOr<Value> wide = graph.AddInput("wide", {DType::kF64, Shape({6})});
  ASSERT_TRUE(x.ok() && scalar.ok() && wide.ok());
  const absl::StatusOr<Value> statistic = graph.AddInput("statistic", {DType::kF32, Shape({6})}, /*is_state=*/true);
  ASSERT_TRUE(graph.AddResult("y", *x).ok() && graph.AddResult("z", *scalar).ok());
  ASSERT_TRUE(statistic.ok() && graph.AddStateResult("statistic", *x).ok());  // its next value is no result
  const auto error_of = [&](const LossSpec& spec) { return std::string(AddLoss(graph, spec).status().message()); };
  const std::string unknown = "unknown loss 'hinge'; there are softmax_cross_entropy, ";
  EXPECT_EQ(error_of({.name = "hinge"}).substr(0, unknown.size()), unknown);
  EXPECT_EQ(error_of({.prediction = "logits"}), "loss: the model has no result 'logits'; it has: y, z");
  EXPECT_EQ(error_of({.prediction = "y"}), "loss softmax_cross_entropy: result y is f32[6]: expected [batch, classes]");
  EXPECT_EQ(error_of({.name = "mean_squared_error", .prediction = "z"}),
            "loss mean_squared_error: result z is the scalar f32[]");
  EXPECT_EQ(error_of({.name = "mean_squared_error", .prediction = "y", .target = "wide"}),
            "loss target %wide is f64[6], expected f32[6]");
  EXPECT_EQ(error_of({.name = "mean_squared_error", .prediction = "y", .options = {{"delta", 1.0}}}),
            "loss mean_squared_error has no option delta; it has none");
}

// In the text of a pass all options stand side by side.
TEST(Choices, OptionsOfATextMeanOneThing) {
  const std::set<std::string> of_pass = {"optimizer", "loss", "prediction", "target", "trained", "frozen"};
  for (const Optimizer& optimizer : AllOptimizers()) {
    for (const OptionDef& option : optimizer.options) {
      EXPECT_FALSE(of_pass.contains(option.name)) << optimizer.name->name << ": " << option.name;
      for (const Loss& loss : AllLosses()) {
        for (const OptionDef& other : loss.options)
          EXPECT_NE(option.name, other.name) << optimizer.name->name << ", " << loss.name;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::passes
