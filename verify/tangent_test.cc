#include "verify/tangent.h"

#include <algorithm>

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

TEST(RandomInputs, RowsAreOnesAndZeros) {
  passes::TrainStepSpec spec;
  spec.uneven = true;
  const Graph step = StepOf(spec);
  const std::vector<ExactTensor> inputs = RandomInputs(step, 1);
  const auto rows = static_cast<size_t>(step.FindInput("rows") - step.inputs().data());
  EXPECT_EQ(inputs[rows].numbers()[0], Exact::Of(1));
  for (const Exact& row : inputs[rows].numbers()) EXPECT_TRUE(row == Exact::Of(0) || row == Exact::Of(1));
}

// --- Rules -----------------------------------------------------------------------------------------------------------

// The tangent of the one result of a graph, for given numbers and directions of its inputs.
absl::StatusOr<ExactTensor> TangentOf(const std::string& text, const std::vector<std::vector<double>>& numbers,
                                      const std::vector<std::vector<double>>& directions) {
  ASSIGN_OR_RETURN(const Graph graph, ParseGraph(text));
  Tangents given;
  std::vector<RankTensors> inputs;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Value input = graph.inputs()[i].value;
    inputs.push_back({ExactTensor::Of(Tensor::Of<double>(input.shape(), numbers[i]))});
    given.emplace(input, ExactTensor::Of(Tensor::Of<double>(input.shape(), directions[i])));
  }
  Assumptions assumptions;
  ASSIGN_OR_RETURN(const ExactValues values, RunExactly(graph, inputs, assumptions));
  const Value result = graph.results()[0].value;
  ASSIGN_OR_RETURN(const Tangents tangents, RunTangents(graph, values, given, {result}, assumptions));
  const auto found = tangents.find(result);
  return found == tangents.end() ? ExactTensor(result.type()) : found->second;
}

// The tangent of `op`, of type f64 and the operands' shapes, in numbers.
std::vector<Exact> TangentOfOp(const std::string& op, const std::vector<std::vector<double>>& numbers,
                               const std::vector<std::vector<double>>& directions, const std::string& type) {
  std::string inputs, operands;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string name = "%x" + std::to_string(i);
    inputs += (i == 0 ? "" : ", ") + name + ": f64[" + std::to_string(numbers[i].size()) + "]";
    operands += (i == 0 ? " " : ", ") + name;
  }
  const size_t space = op.find(' ');
  const std::string attributes = space == std::string::npos ? "" : op.substr(space);
  const auto tangent = TangentOf("graph @f(" + inputs + ") -> (y: " + type + ") {\n  %y = " + op.substr(0, space) +
                                     operands + attributes + " : " + type + "\n  return %y\n}\n",
                                 numbers, directions);
  LOCKSTEP_CHECK(tangent.ok()) << op << ": " << tangent.status();
  return tangent->numbers();
}

std::vector<Exact> Numbers(const std::vector<double>& numbers) {
  std::vector<Exact> exact;
  for (double number : numbers) exact.push_back(Exact::Of(number, DType::kF64));
  return exact;
}

TEST(RunTangents, EqualElementsFollowTheDocsOfTheOps) {
  const std::string pair = "f64[2]", scalar = "f64[]";
  EXPECT_EQ(TangentOfOp("max", {{3, 3}, {3, 3}}, {{4, 1}, {2, 7}}, pair), Numbers({3, 4}));
  EXPECT_EQ(TangentOfOp("min", {{3, 3}, {3, 3}}, {{4, 1}, {2, 7}}, pair), Numbers({3, 4}));
  EXPECT_EQ(TangentOfOp("relu", {{0, 0}}, {{4, 1}}, pair), Numbers({0, 0}));
  EXPECT_EQ(TangentOfOp("abs", {{0, 0}}, {{4, 1}}, pair), Numbers({0, 0}));
  EXPECT_EQ(TangentOfOp("reduce_max {dims=[0]}", {{5, 5, 5}}, {{1, 2, 6}}, scalar), Numbers({3}));
  EXPECT_EQ(TangentOfOp("reduce_min {dims=[0]}", {{5, 5, 5}}, {{1, 2, 6}}, scalar), Numbers({3}));
  EXPECT_EQ(TangentOfOp("floor", {{5, 6}}, {{1, 2}}, pair), Numbers({0, 0}));
  EXPECT_EQ(TangentOfOp("stop_gradient", {{5, 6}}, {{1, 2}}, pair), Numbers({0, 0}));
}

TEST(RunTangents, ProductsWithZeros) {
  const auto product = [](const std::vector<double>& x) {
    return TangentOfOp("reduce_prod {dims=[0]}", {x}, {{5, 7, 11}}, "f64[]");
  };
  EXPECT_EQ(product({2, 3, 4}), Numbers({5 * 12 + 7 * 8 + 11 * 6}));
  EXPECT_EQ(product({2, 0, 4}), Numbers({7 * 8}));
  EXPECT_EQ(product({0, 0, 4}), Numbers({0}));
  EXPECT_EQ(TangentOfOp("cumulative_prod {dim=0}", {{2, 0, 4}}, {{5, 7, 11}}, "f64[3]"), Numbers({5, 14, 56}));
}

TEST(RunTangents, AnOpWithoutARuleIsNamed) {
  const auto tangent = TangentOf(R"(
graph @f(%x: f64[1,1,2,2], %dy: f64[1,1,1,1]) -> (y: f64[1,1,2,2]) {
  %y = max_pool_grad %x, %dy {window=[2,2], stride=[1,1], padding_low=[0,0], padding_high=[0,0], dilation=[1,1]}
      : f64[1,1,2,2]
  return %y
}
)",
                                 {{1, 2, 3, 4}, {1}}, {{1, 2, 3, 4}, {1}});
  EXPECT_EQ(tangent.status().message(), "max_pool_grad %y: max_pool_grad has no exact derivative");
}

}  // namespace
}  // namespace lockstep::verify
