// Tests that the blocks of optimizers and losses are consistent, and that users' choices are checked against them.

#include <algorithm>
#include <cmath>
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

std::string ErrorOfChoice(const OptimizerSpec& spec) { return std::string(ResolveOptimizer(spec).status().message()); }

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
      EXPECT_NE(option.given, OptionDef::Given::kMay) << option.name;
      EXPECT_FALSE(option.is_list()) << option.name;
      const double* const number = std::get_if<double>(&option.example);
      const int64_t* const whole = std::get_if<int64_t>(&option.example);
      const std::string* const text = std::get_if<std::string>(&option.example);
      EXPECT_EQ(number != nullptr || whole != nullptr, option.range.has_value()) << option.name;
      EXPECT_EQ(text != nullptr, !option.choices.empty()) << option.name;
      if (option.given == OptionDef::Given::kMust) continue;
      if (number) {
        EXPECT_TRUE(option.range->Contains(*number)) << option.name;
      }
      if (whole) {
        EXPECT_TRUE(option.range->Contains(static_cast<double>(*whole))) << option.name;
      }
      if (text) {
        EXPECT_EQ(std::count(option.choices.begin(), option.choices.end(), *text), 1) << option.name;
      }
    }
    for (const auto& [option, value] : name.defaults) EXPECT_NE(OptionOf(optimizer, option), nullptr) << option;
    for (const auto& [attribute, value] : name.fixed) EXPECT_NE(optimizer.op->FindAttribute(attribute), nullptr);
    EXPECT_NE(OptionOf(optimizer, "learning_rate"), nullptr);
    EXPECT_TRUE(optimizer.op->optimizer().ranks.Contain(2));
    for (const OptimizerFlag& flag : name.flags) EXPECT_EQ(optimizer.op->FindAttribute(flag.name), nullptr);
    for (const OptimizerVariant& variant : name.variants) {
      const OpDef* const op = FindOp(variant.op);
      ASSERT_NE(op, nullptr) << variant.op;
      for (const std::string& option : variant.without) EXPECT_NE(OptionOf(optimizer, option), nullptr) << option;
      // A variant that is chosen by the variable's rank has the same options, and the same of them can be settings.
      EXPECT_EQ(variant.without.empty(), !(op->optimizer().ranks == optimizer.op->optimizer().ranks));
      if (!variant.without.empty()) continue;
      for (const OptionDef& option : optimizer.options) {
        const OpDef::AttributeDef* const attribute = op->FindAttribute(option.name);
        ASSERT_NE(attribute, nullptr) << option.name;
        EXPECT_EQ(attribute->may_be_operand, option.may_be_operand) << option.name;
      }
    }
  }
}

// The suffix of a saved state identifies one optimizer: an op and its variants share it, and no other op has it.
TEST(Optimizers, StatesHaveTheirOwnNames) {
  std::map<std::string, std::string> family;  // for each op, the op of the optimizer whose variant it is
  for (const Optimizer& optimizer : AllOptimizers()) {
    for (const OpDef* op : OpsOf(optimizer)) family[op->name()] = optimizer.op->name();
  }
  std::map<std::string, std::string> owner;
  for (const OpDef* op : AllOps()) {
    if (!op->has_trait(kOptimizer)) continue;
    ASSERT_TRUE(family.contains(op->name())) << op->name() << " has no name";
    EXPECT_EQ(op->operand_names().size(), op->optimizer().states.size() + (CountsSteps(*op) ? 3 : 2)) << op->name();
    for (const OptimizerState& state : op->optimizer().states) {
      const auto [it, is_new] = owner.emplace(state.suffix, family[op->name()]);
      EXPECT_EQ(it->second, family[op->name()]) << state.suffix << " of " << op->name();
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

std::string OpFor(const OptimizerSpec& spec, int64_t rank = 2) {
  const absl::StatusOr<OptimizerStep> step = ResolveOptimizer(spec, rank);
  return step.ok() ? step->op->name() + " " + AttributesToString(step->attributes)
                   : std::string(step.status().message());
}

TEST(Optimizers, OptionsThatAreOffNeedNoStates) {
  const std::string common = " {alpha=0.99, epsilon=1e-08, learning_rate=0.01, ";
  EXPECT_EQ(OpFor({"RMSprop", {}}), "rmsprop" + common + "weight_decay=0.0}");
  EXPECT_EQ(OpFor({"RMSprop", {{"momentum", 0.5}}}), "rmsprop_momentum" + common + "momentum=0.5, weight_decay=0.0}");
  EXPECT_EQ(OpFor({"RMSprop", {{"centered", true}}}), "rmsprop_centered" + common + "weight_decay=0.0}");
  EXPECT_EQ(OpFor({"RMSprop", {{"centered", true}, {"momentum", 0.5}}}),
            "rmsprop_centered_momentum" + common + "momentum=0.5, weight_decay=0.0}");
  // An option that varies is kept, even if it is 0 at first.
  EXPECT_EQ(OpFor({"RMSprop", {}, {"momentum"}}), "rmsprop_momentum" + common + "momentum=0.0, weight_decay=0.0}");
  EXPECT_EQ(OpFor({"RMSprop", {{"centered", true}}, {"momentum"}}),
            "rmsprop_centered_momentum" + common + "momentum=0.0, weight_decay=0.0}");
  EXPECT_EQ(OpFor({"RMSprop", {}, {"centered"}}), "RMSprop: centered cannot change between steps");
}

TEST(Optimizers, TheVariableSaysWhichOpOrNone) {
  const std::string options =
      " {beta2_decay=-0.8, d=1.0, epsilon1=0.0, epsilon2=0.001, learning_rate=0.01, "
      "weight_decay=0.0}";
  for (int64_t rank : {0, 1}) EXPECT_EQ(OpFor({"Adafactor", {}}, rank), "adafactor_vector" + options);
  for (int64_t rank : {2, 4}) EXPECT_EQ(OpFor({"Adafactor", {}}, rank), "adafactor" + options);
  EXPECT_EQ(OpFor({"Muon", {}}).substr(0, 5), "muon ");
  for (int64_t rank : {0, 1, 3}) EXPECT_EQ(OpFor({"Muon", {}}, rank), "Muon updates states of 2 dimensions");
}

// Compares the states that AddOptimizer adds for a scalar, a vector, a matrix and a stack of matrices.
TEST(Optimizers, StatesHaveTheShapesThatTheirBlocksSay) {
  const auto added = [](const OptimizerSpec& spec, const Shape& shape) {
    Graph graph("g");
    const Value w = *graph.AddInput("w", {DType::kBF16, shape}, /*is_state=*/true);
    const Value g = *graph.AddInput("g", w.type());
    const absl::Status status = AddOptimizer(graph, {w}, {g}, spec);
    if (!status.ok()) return std::string(status.message());
    std::string text;
    for (const Input& input : graph.inputs()) {
      if (input.is_state && input.name() != "w") text += input.name() + " " + input.value.type().ToString() + " ";
    }
    return text;
  };
  EXPECT_EQ(added({"Adafactor", {}}, {4, 3}),
            "optimizer/step i64[] w/adafactor_rows bf16[4,1] w/adafactor_columns bf16[1,3] ");
  EXPECT_EQ(added({"Adafactor", {}}, {2, 4, 3}),
            "optimizer/step i64[] w/adafactor_rows bf16[2,4,1] w/adafactor_columns bf16[2,1,3] ");
  EXPECT_EQ(added({"Adafactor", {}}, {3}), "optimizer/step i64[] w/adafactor_square bf16[3] ");
  EXPECT_EQ(added({"NAdam", {}}, {3}),
            "optimizer/step i64[] w/nadam_m bf16[3] w/nadam_v bf16[3] w/nadam_missing f64[] ");
  EXPECT_EQ(added({"Muon", {}}, {3}),
            "Muon updates states of 2 dimensions, and %w is bf16[3]: give it another optimizer, by groups");
}

TEST(Optimizers, ErrorsNameTheOptimizerAndTheOption) {
  const std::string unknown = "unknown optimizer 'adagrid'; there are SGD, Adam, AdamW";
  EXPECT_EQ(ErrorOfChoice({"adagrid", {}}).substr(0, unknown.size()), unknown);
  EXPECT_EQ(ErrorOfChoice({"SGD", {}}), "SGD: learning_rate is missing");
  EXPECT_EQ(ErrorOfChoice({"SGD", {{"learning_rate", 0.5}, {"rate", 1.0}}}),
            "SGD has no option rate; it has learning_rate, momentum, nesterov, weight_decay");
  EXPECT_EQ(ErrorOfChoice({"Adam", {{"beta1", true}}}), "Adam: beta1 is true, expected a float");
  EXPECT_EQ(ErrorOfChoice({"Adam", {{"epsilon", 0.0}}}), "Adam: epsilon is 0, expected a finite number above 0");
  EXPECT_EQ(ErrorOfChoice({"Adam", {{"decoupled", true}}}),
            "Adam has no option decoupled; it has learning_rate, beta1, beta2, epsilon, weight_decay");
  EXPECT_EQ(ErrorOfChoice({"SGD", {{"learning_rate", 0.5}, {"nesterov", true}}}), "SGD: nesterov needs a momentum");
  EXPECT_EQ(ErrorOfChoice({"Adafactor", {{"beta2_decay", 0.5}}}),
            "Adafactor: beta2_decay is 0.5, expected a finite number of at most 0");
  EXPECT_EQ(ErrorOfChoice({"Muon", {{"ns_steps", int64_t{100}}}}),
            "Muon: ns_steps is 100, expected a finite number from 1 to 99");
  EXPECT_EQ(ErrorOfChoice({"Muon", {{"ns_steps", 2.5}}}), "Muon: ns_steps is 2.5, expected an int");
  EXPECT_EQ(ErrorOfChoice({"Muon", {{"adjust_lr_fn", std::string("none")}}}),
            "Muon: adjust_lr_fn is 'none', expected one of original, match_rms_adamw");
  EXPECT_EQ(ErrorOfChoice({"RMSprop", {{"centered", 1.0}}}), "RMSprop: centered is 1.0, expected a bool");
}

TEST(Losses, BlocksAreWhole) {
  ASSERT_GE(AllLosses().size(), 3u);
  std::set<std::string> names;
  for (const Loss& loss : AllLosses()) {
    SCOPED_TRACE(loss.name);
    EXPECT_TRUE(names.insert(loss.name).second);
    EXPECT_FALSE(loss.doc.empty());
    EXPECT_FALSE(loss.predictions.empty());
    std::set<std::string> arguments;
    for (const LossArgument& argument : loss.predictions)
      EXPECT_TRUE(!argument.doc.empty() && arguments.insert(argument.name).second) << argument.name;
    for (const LossInput& input : loss.inputs) {
      EXPECT_TRUE(arguments.insert(input.argument.name).second) << input.argument.name;
      EXPECT_NE(input.type, nullptr);
    }
    for (const OptionDef& option : loss.options) {
      EXPECT_FALSE(option.doc.empty()) << option.name;
      EXPECT_TRUE(arguments.insert(option.name).second) << option.name;
      EXPECT_TRUE(!option.range || option.is_list() || option.range->Contains(std::get<double>(option.example)));
    }
    EXPECT_EQ(loss.elements != nullptr, arguments.contains("reduction"));
  }
}

// A model with results y: f32[6], z: a scalar, m: f32[6,5], h: f16[6,5], s: f32[6,4,5].
class LossErrors : public testing::Test {
 protected:
  LossErrors() : graph_("g") {
    AddInput("x", {DType::kF32, Shape({6})}, "y");
    AddInput("scalar", {DType::kF32, Shape()}, "z");
    AddInput("r", {DType::kF32, Shape({6, 5})}, "m");
    AddInput("q", {DType::kF16, Shape({6, 5})}, "h");
    AddInput("t", {DType::kF32, Shape({6, 4, 5})}, "s");
    AddInput("wide", {DType::kF64, Shape({6})}, "");
    // The next value of a state does not count as a result.
    const absl::StatusOr<Value> state = graph_.AddInput("statistic", {DType::kF32, Shape({6})}, /*is_state=*/true);
    LOCKSTEP_CHECK(state.ok() && graph_.AddStateResult("statistic", *state).ok());
  }

  std::string ErrorOfChoice(const LossSpec& spec) { return std::string(AddLoss(graph_, spec).status().message()); }
  std::string ErrorOfSum(const std::vector<LossSpec>& specs) {
    return std::string(AddLosses(graph_, specs).status().message());
  }

  Graph graph_;

 private:
  void AddInput(const std::string& name, const TensorType& type, const std::string& result) {
    const absl::StatusOr<Value> input = graph_.AddInput(name, type);
    LOCKSTEP_CHECK(input.ok()) << input.status();
    LOCKSTEP_CHECK(result.empty() || graph_.AddResult(result, *input).ok());
  }
};

Attribute Floats(const std::vector<double>& numbers) {
  return Tensor::Of(Shape({static_cast<int64_t>(numbers.size())}), numbers);
}

TEST_F(LossErrors, NameTheLossAndTheResultOrTheInput) {
  const std::string unknown = "unknown loss 'hinge'; there are softmax_cross_entropy, ";
  EXPECT_EQ(ErrorOfChoice({.name = "hinge"}).substr(0, unknown.size()), unknown);
  EXPECT_EQ(ErrorOfChoice({.predictions = {"logits"}}),
            "loss: the model has no result 'logits'; it has: y, z, m, h, s");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"y"}}),
            "loss softmax_cross_entropy: result y is f32[6]: expected [batch, classes]");
  EXPECT_EQ(ErrorOfChoice({.name = "mean_squared_error", .predictions = {"z"}}),
            "loss mean_squared_error: result z is the scalar f32[]");
  EXPECT_EQ(ErrorOfChoice({.name = "mean_squared_error", .predictions = {"y"}, .inputs = {"wide"}}),
            "loss mean_squared_error: target %wide is f64[6], expected f32[6]");
  EXPECT_EQ(ErrorOfChoice({.name = "cosine_embedding", .predictions = {"y", "y"}}),
            "loss cosine_embedding: result y is f32[6]: expected [batch, size]");
  EXPECT_EQ(ErrorOfChoice({.name = "cosine_embedding", .predictions = {"m", "h"}}),
            "loss cosine_embedding: results m and h are f32[6,5] and f16[6,5], expected one type");
  EXPECT_EQ(ErrorOfChoice({.name = "triplet_margin", .predictions = {"m"}}),
            "loss triplet_margin: got the names of 1 results (m), expected 3: anchor, positive, negative");
  EXPECT_EQ(ErrorOfChoice({.name = "l1", .predictions = {"m"}, .inputs = {}}),
            "loss l1: got the names of 0 inputs (), expected 1: target");
  EXPECT_EQ(ErrorOfChoice({.name = "l1",
                           .predictions = {"m"},
                           .options = {{"sample_weight", std::string("x")}, {"element_weight", std::string("x")}}}),
            "loss l1: element_weight %x is f32[6], expected f32[6,5]");
}

TEST_F(LossErrors, NameTheOption) {
  EXPECT_EQ(ErrorOfChoice({.name = "mean_squared_error", .predictions = {"y"}, .options = {{"delta", 1.0}}}),
            "loss mean_squared_error has no option delta; it has reduction, sample_weight, element_weight");
  EXPECT_EQ(ErrorOfChoice({.name = "l1", .predictions = {"y"}, .options = {{"reduction", std::string("batchmean")}}}),
            "loss l1: reduction is 'batchmean', expected one of mean, sum");
  EXPECT_EQ(ErrorOfChoice({.name = "l1", .predictions = {"y"}, .options = {{"reduction", int64_t{1}}}}),
            "loss l1: reduction is 1, expected a string");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"ignore_index", 0.5}}}),
            "loss softmax_cross_entropy: ignore_index is 0.5, expected an int");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"class_weights", Floats({1, 2, -0.5, 1, 1})}}}),
            "loss softmax_cross_entropy: class_weights[2] is -0.5, expected a finite number of at least 0");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"class_weights", Floats({-1, 1, 1, 1, 1})}}}),
            "loss softmax_cross_entropy: class_weights[0] is -1, expected a finite number of at least 0");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"class_weights", Tensor({DType::kF32, Shape({5})})}}}),
            "loss softmax_cross_entropy: class_weights is f32[5], expected a list of floats");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"class_weights", Tensor::Scalar(DType::kF64, 1)}}}),
            "loss softmax_cross_entropy: class_weights is f64[], expected a list of floats");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"class_weights", 0.5}}}),
            "loss softmax_cross_entropy: class_weights is 0.5, expected a list of floats");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"class_weights", Floats({1, 2})}}}),
            "loss softmax_cross_entropy: class_weights has 2 numbers, expected 5, one for each class");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"label_smoothing", 1.5}}}),
            "loss softmax_cross_entropy: label_smoothing is 1.5, expected a finite number from 0 to 1");
  EXPECT_EQ(ErrorOfChoice({.predictions = {"m"}, .options = {{"soft_targets", true}, {"ignore_index", int64_t{1}}}}),
            "loss softmax_cross_entropy: result m is f32[6,5]: ignore_index needs labels, and soft_targets are "
            "probabilities");
  EXPECT_EQ(ErrorOfChoice({.name = "hinge_embedding", .predictions = {"y"}, .options = {{"margin", HUGE_VAL}}}),
            "loss hinge_embedding: margin is inf, expected a finite number");
  const std::string binary = "binary_cross_entropy_with_logits";
  EXPECT_EQ(
      ErrorOfChoice(
          {.name = binary, .predictions = {"m"}, .inputs = {"of_m"}, .options = {{"pos_weight", Floats({1, 2})}}}),
      "loss " + binary + ": pos_weight has 2 numbers, expected 5, one for each class, or 1 for all of them");
  EXPECT_EQ(ErrorOfChoice(
                {.name = binary, .predictions = {"y"}, .inputs = {"of_y"}, .options = {{"pos_weight", Floats({})}}}),
            "loss " + binary + ": pos_weight has 0 numbers, expected 1, one for all elements");
  EXPECT_EQ(ErrorOfChoice({.name = "kl_div",
                           .predictions = {"m"},
                           .options = {{"reduction", std::string("batchmean")}, {"element_weight", std::string("w")}}}),
            "loss kl_div: batchmean divides by the number of samples, which element_weight does not change; use "
            "sample_weight");
}

TEST_F(LossErrors, NameTheSequence) {
  const auto error_of = [&](const AttributeMap& options) {
    const std::vector<std::string> inputs = {"target", "input_lengths", "target_lengths"};
    return ErrorOfChoice({.name = "ctc", .predictions = {"s"}, .inputs = inputs, .options = options});
  };
  EXPECT_EQ(ErrorOfChoice({.name = "ctc", .predictions = {"m"}, .inputs = {"a", "b", "c"}}),
            "loss ctc: result m is f32[6,5]: expected [batch, time, classes]");
  EXPECT_EQ(error_of({{"blank", int64_t{5}}}), "loss ctc: result s is f32[6,4,5]: blank 5 is not one of its classes");
  EXPECT_EQ(error_of({{"blank", int64_t{-1}}}), "loss ctc: result s is f32[6,4,5]: blank -1 is not one of its classes");
  EXPECT_EQ(error_of({{"max_target_length", int64_t{-1}}}),
            "loss ctc: result s is f32[6,4,5]: max_target_length is -1, expected at least 0");
  EXPECT_EQ(error_of({{"max_target_length", int64_t{0}}}), "");
}

TEST_F(LossErrors, NameTheLossOfASum) {
  EXPECT_EQ(ErrorOfSum({}), "there is no loss");
  EXPECT_EQ(ErrorOfSum({{.name = "l1", .predictions = {"y"}, .factor = std::nan("")}}),
            "loss l1: its factor is nan, expected a finite number");
  EXPECT_EQ(ErrorOfSum({{.name = "l1", .predictions = {"y"}}, {.name = "l1", .predictions = {"m"}}}),
            "loss l1: target %target is f32[6], expected f32[6,5]");
  EXPECT_EQ(ErrorOfSum({{.name = "l1", .predictions = {"m"}, .inputs = {"a"}},
                        {.name = "l1", .predictions = {"h"}, .inputs = {"b"}}}),
            "loss l1 of result h is f16[], and the losses before it are f32[]");
}

// In the text form of a pass all options are in one list.
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
