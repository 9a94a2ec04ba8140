#include "verify/check_gradients.h"

#include "core/builder.h"
#include "core/op_def.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"
#include "test/op_cases/op_case_graph.h"
#include "verify/random_inputs.h"

namespace lockstep::verify {
namespace {

// --- All gradients of ops --------------------------------------------------------------------------------------------

class ExactGradientTest : public testing::TestWithParam<OpCase> {};

// Operands with given values, and integers, as the row has them; other floats are random.
std::vector<ExactTensor> ExactInputs(const OpCase& row, const GradientGraph& made) {
  const std::vector<Tensor> given = CaseInputs(row);
  std::vector<ExactTensor> inputs;
  for (size_t i = 0; i < made.graph.inputs().size(); ++i) {
    const bool is_given = i < given.size() && (row.operands[i].value || !IsFloat(given[i].dtype()));
    inputs.push_back(is_given ? ExactTensor::Of(given[i])
                              : RandomTensor(made.graph.inputs()[i].value.type(), 0, MixedBits(i + 1)));
  }
  return inputs;
}

std::vector<GradientOf> GradientsIn(const GradientGraph& made) {
  std::vector<GradientOf> gradients;
  for (size_t i = 0; i < made.operands.size(); ++i)
    gradients.push_back({made.graph.inputs()[made.operands[i]].value, made.graph.results()[1 + i].value});
  return gradients;
}

TEST_P(ExactGradientTest, IsTheDerivative) {
  const OpCase row = InDouble(GetParam());
  const absl::StatusOr<GradientGraph> made = MakeGradientGraph(row);
  ASSERT_TRUE(made.ok()) << row.ToString() << ": " << made.status();
  Assumptions assumptions;
  const absl::Status status = CheckGradients(made->graph, made->graph.results()[0].value, GradientsIn(*made),
                                             ExactInputs(row, *made), 1, assumptions);
  EXPECT_TRUE(status.ok()) << row.ToString() << ": " << status;
  for (const std::string& assumption : assumptions)
    EXPECT_EQ(assumption.find("not checked"), std::string::npos) << row.ToString() << ": " << assumption;
}

std::vector<OpCase> RowsOfOneRankWithGradient() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (GradientIsCompared(row) && row.ranks == 0) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Rows, ExactGradientTest, testing::ValuesIn(RowsOfOneRankWithGradient()),
                         [](const auto& info) { return std::to_string(info.index) + "_" + info.param.op; });

// --- Steps -----------------------------------------------------------------------------------------------------------

constexpr char kModel[] = R"(
graph @model(%x: f32[8,3] split(0), state %w1: f32[3,4], state %b1: f32[4], state %w2: f32[4,4], state %v: f32[4,2])
    -> (logits: f32[8,2] split(0)) {
  %z1 = matmul %x, %w1 : f32[8,4]
  %b = broadcast %b1 {dims=[1], shape=[8,4]} : f32[8,4]
  %s = add %z1, %b : f32[8,4]
  %h = tanh %s : f32[8,4]
  %z2 = matmul %h, %w2 : f32[8,4]
  %r = relu %z2 : f32[8,4]
  %p = softmax %r {dim=1} : f32[8,4]
  %q = sub %p, %h : f32[8,4]
  %y = matmul %q, %v : f32[8,2]
  return %y
}
)";

Graph StepOf(const passes::TrainStepSpec& spec) {
  Graph graph = *ParseGraph(kModel);
  const absl::Status status = passes::MakeTrainStep(graph, spec);
  LOCKSTEP_CHECK(status.ok()) << status;
  return graph;
}

absl::Status CheckedGradients(const Graph& step, Assumptions* assumptions = nullptr) {
  Assumptions found;
  const absl::Status status = CheckGradientsOfStep(step, 1, found);
  if (assumptions != nullptr) *assumptions = found;
  return status;
}

TEST(CheckGradientsOfStep, AcceptsTrainingSteps) {
  std::vector<passes::TrainStepSpec> specs(9);
  specs[1].accumulate = 4;
  specs[2].precision = DType::kF16;
  specs[3].precision = DType::kBF16;
  specs[4].precision = DType::kF16;
  specs[4].accumulate = 2;
  specs[5].clipping.by = "global_norm";
  specs[6].updates = false;
  specs[7].average = true;
  specs[8].uneven = true;
  for (size_t i = 0; i < specs.size(); ++i) {
    Assumptions assumptions;
    const absl::Status status = CheckedGradients(StepOf(specs[i]), &assumptions);
    EXPECT_TRUE(status.ok()) << i << ": " << status;
    for (const std::string& assumption : assumptions)
      EXPECT_TRUE(assumption.ends_with(" means its decomposition")) << i << ": " << assumption;
  }
}

// A loss of the model above, with default options. Those of several predictions get more results of the model.
passes::LossSpec SpecOf(const passes::Loss& loss, Graph& model) {
  passes::LossSpec spec{.name = loss.name, .predictions = {}, .inputs = {}};
  Builder b(model);
  Value prediction = model.FindResult("logits")->value;
  for (size_t i = 0; i < loss.predictions.size(); ++i) {
    const std::string name = i == 0 ? "logits" : "other" + std::to_string(i);
    if (i > 0) LOCKSTEP_CHECK(model.AddResult(name, prediction).ok()) << name;
    spec.predictions.push_back(name);
    prediction = b.Tanh(b.Neg(prediction));
  }
  for (const passes::LossInput& input : loss.inputs) spec.inputs.push_back(input.argument.name);
  return spec;
}

TEST(CheckGradientsOfStep, AcceptsAllLosses) {
  for (const passes::Loss& loss : passes::AllLosses()) {
    if (!loss.elements || loss.name == "ctc") continue;  // a result of the model; a loss of sequences
    for (const char* reduction : {"mean", "sum"}) {
      Graph graph = *ParseGraph(kModel);
      passes::TrainStepSpec spec;
      spec.losses = {SpecOf(loss, graph)};
      spec.losses[0].options["reduction"] = std::string(reduction);
      ASSERT_TRUE(passes::MakeTrainStep(graph, spec).ok()) << loss.name;
      Assumptions assumptions;
      const absl::Status status = CheckedGradients(graph, &assumptions);
      EXPECT_TRUE(status.ok()) << loss.name << ", " << reduction << ": " << status;
      for (const std::string& assumption : assumptions)
        EXPECT_EQ(assumption.find("not checked"), std::string::npos) << loss.name << ": " << assumption;
    }
  }
}

TEST(CheckGradientsOfStep, ReportsWhatIsNotFinite) {
  const auto step = ParseGraph(R"(
graph @step(%x: f32[], state %w: f32[]) -> (loss: f32[], %w: f32[]) {
  %zero = sub %w, %w : f32[]
  %loss = div %x, %zero : f32[]
  %grad/w = div %x, %zero : f32[]
  %w.next = sgd %w, %grad/w {learning_rate=0.1} : f32[]
  return %loss, %w.next
}
)");
  Assumptions assumptions;
  EXPECT_TRUE(CheckedGradients(*step, &assumptions).ok());
  EXPECT_TRUE(assumptions.contains("the gradient of loss by w is not finite for random inputs, and is not checked"));
}

// The error for a step with `from` in its text replaced.
std::string ErrorWith(const std::string& from, const std::string& to, const passes::TrainStepSpec& spec = {}) {
  std::string text = StepOf(spec).ToString();
  const size_t at = text.find(from);
  LOCKSTEP_CHECK(at != std::string::npos) << from << " is not in\n" << text;
  text.replace(at, from.size(), to);
  const auto step = ParseGraph(text);
  LOCKSTEP_CHECK(step.ok()) << step.status();
  return std::string(CheckedGradients(*step).message());
}

struct SeededMistake {
  const char *from, *to;
  const char* states;  // whose gradients are wrong
};

// The gradients of kModel, each with one mistake.
constexpr SeededMistake kMistakes[] = {
    {"add %7, %17", "add %5, %17", "w1, b1"},                          // a sign
    {"add %7, %17", "add %7, %7", "w1, b1"},                           // one of two paths
    {"sub %22, %20", "sub %20, %22", "w1, b1"},                        // operands swapped
    {"sub %22, %20", "add %22, %20", "w1, b1"},                        // 1 + y^2
    {"mul %h, %h", "mul %h, %s", "w1, b1"},                            // x y for y^2
    {"sub %8, %11", "add %8, %11", "w1, b1, w2"},                      // of softmax
    {"select %15, %12, %14", "select %15, %8, %14", "w1, b1, w2"},     // softmax without its sum
    {"mul %p, %10", "mul %h, %10", "w1, b1, w2"},                      // another value
    {"direction=gt", "direction=lt", "w1, b1, w2"},                    // the other side of relu
    {"reduce_sum %24 {dims=[0]}", "reduce_sum %19 {dims=[0]}", "b1"},  // without the slope of tanh
    {"matmul %x, %24", "matmul %x, %19", "w1"},                        // without the slope of tanh
    {"matmul %h, %16", "matmul %r, %16", "w2"},                        // another operand of the product
    {"%w2 {transpose_b=true}", "%w2", "w1, b1"},                       // not transposed
    {"matmul %q, %4", "matmul %p, %4", "v"},                           // another operand of the product
    {"dense<f32[]: 1.0>", "dense<f32[]: 1.001>", "w1, b1, w2, v"},     // all too large
};

TEST(CheckGradientsOfStep, FindsMistakes) {
  for (const SeededMistake& mistake : kMistakes) {
    EXPECT_EQ(ErrorWith(mistake.from, mistake.to),
              "the gradients of loss by " + std::string(mistake.states) + " are not its derivatives")
        << mistake.from << " -> " << mistake.to;
  }
}

TEST(CheckGradientsOfStep, FindsMistakesInLoopsAndInLossScaling) {
  passes::TrainStepSpec loop, scaled;
  loop.accumulate = 2;
  scaled.precision = DType::kF16;
  EXPECT_EQ(ErrorWith("= neg ", "= abs ", loop), "the gradients of loss by w1, b1 are not its derivatives");
  EXPECT_EQ(ErrorWith("= div ", "= sub ", scaled), "the gradients of loss by w1, b1, w2, v are not its derivatives");
}

TEST(CheckGradientsOfStep, NeedsAStepOfOneRankWithGradients) {
  EXPECT_EQ(CheckedGradients(*ParseGraph(kModel)).message(), "@model has no result loss");
  EXPECT_EQ(CheckedGradients(*ParseGraph(R"(
graph @f(%x: f32[]) -> (loss: f32[]) {
  %y = neg %x : f32[]
  return %y
}
)"))
                .message(),
            "@f has no gradients");
  Graph placed = StepOf({});
  placed.set_mesh(Mesh({{"data", 2}}));
  EXPECT_EQ(CheckedGradients(placed).message(), "@model is distributed already");
}

// --- Numbers that are not finite -------------------------------------------------------------------------------------

// A step with one state, w, and a given loss and gradient. %zero is 0 and changes with w; %nan is x / 0.
absl::Status CheckedNumbers(const std::string& loss, const std::string& gradient, Assumptions& assumptions) {
  const auto step = ParseGraph(R"(
graph @step(%x: f32[], state %w: f32[]) -> (loss: f32[], %w: f32[]) {
  %held = stop_gradient %w : f32[]
  %zero = sub %w, %held : f32[]
  %still = sub %x, %x : f32[]
  %nan = div %x, %still : f32[]
  %one = constant {value=dense<f32[]: 1.0>} : f32[]
  %loss = )" + loss +
                               " : f32[]\n  %grad/w = " + gradient +
                               R"( : f32[]
  %w.next = sgd %w, %grad/w {learning_rate=0.1} : f32[]
  return %loss, %w.next
}
)");
  LOCKSTEP_CHECK(step.ok()) << step.status();
  return CheckGradientsOfStep(*step, 1, assumptions);
}

TEST(CheckGradientsOfStep, ChecksWhatCanBeKnownOfNumbersThatAreNotFinite) {
  const std::string wrong = "the gradients of loss by w are not its derivatives";
  const std::string unchecked = "the gradient of loss by w is not finite for random inputs, and is not checked";
  struct Numbers {
    const char *loss, *gradient;
    std::string error;
    bool is_checked;
  };
  const Numbers cases[] = {
      {"div %x, %zero", "div %x, %zero", "", false},    // all are NaN
      {"sqrt %zero", "add %one, %one", "", false},      // the derivative is NaN
      {"add %w, %x", "add %nan, %one", wrong, true},    // the gradient is NaN alone
      {"add %w, %nan", "mul %one, %one", "", true},     // the loss is NaN alone
      {"add %w, %nan", "add %one, %one", wrong, true},  // the loss is NaN alone
      {"add %w, %nan", "add %nan, %one", "", false},    // the loss and the gradient are NaN
  };
  for (const Numbers& each : cases) {
    Assumptions assumptions;
    const absl::Status status = CheckedNumbers(each.loss, each.gradient, assumptions);
    EXPECT_EQ(status.message(), each.error) << each.loss << ", " << each.gradient;
    EXPECT_EQ(assumptions.contains(unchecked), !each.is_checked) << each.loss << ", " << each.gradient;
  }
}

TEST(CheckGradientsOfStep, ReportsAGradientWithoutAName) {
  const auto step = ParseGraph(R"(
graph @step(%x: f32[], state %v: f32[], state %w: f32[]) -> (loss: f32[], %v: f32[], %w: f32[]) {
  %loss = mul %v, %w : f32[]
  %grad/v = add %w, %x : f32[]
  %d = add %v, %x : f32[]
  %v.next = sgd %v, %grad/v {learning_rate=0.1} : f32[]
  %w.next = sgd %w, %d {learning_rate=0.1} : f32[]
  return %loss, %v.next, %w.next
}
)");
  ASSERT_TRUE(step.ok()) << step.status();
  Assumptions assumptions;
  EXPECT_EQ(CheckedGradients(*step, &assumptions).message(), "the gradients of loss by v are not its derivatives");
  EXPECT_TRUE(assumptions.contains("the gradient of w has no name, and is not checked"));
}

}  // namespace
}  // namespace lockstep::verify
