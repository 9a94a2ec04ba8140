// Tests options of MakeTrainStep that its pass does not have: kept results, and constants that are trained.

#include "passes/training/train_step.h"

#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"

namespace lockstep::passes {
namespace {

constexpr char kModel[] = R"(
graph @model(%x: f32[8,3] split(0), state %w: f32[3,2]) -> (logits: f32[8,2] split(0)) {
  %slope = constant {value=dense<f32[]: 0.25>} : f32[]
  %shift = constant {value=dense<f32[]: 0.5>} : f32[]
  %z = matmul %x, %w : f32[8,2]
  %a = broadcast %slope {dims=[], shape=[8,2]} : f32[8,2]
  %b = broadcast %shift {dims=[], shape=[8,2]} : f32[8,2]
  %s = mul %z, %a : f32[8,2]
  %y = add %s, %b : f32[8,2]
  return %y
}
)";

Graph Model() { return *ParseGraph(kModel); }

std::string ErrorOf(const TrainStepSpec& spec) {
  Graph graph = Model();
  return std::string(MakeTrainStep(graph, spec).message());
}

TEST(TrainStep, ResultsOfTheModelStayIfThatIsAsked) {
  for (const bool keep : {false, true}) {
    Graph graph = Model();
    TrainStepSpec spec;
    spec.keep_results = keep;
    ASSERT_TRUE(MakeTrainStep(graph, spec).ok());
    EXPECT_EQ(graph.FindResult("logits") != nullptr, keep);
    EXPECT_NE(graph.FindResult("loss"), nullptr);
    EXPECT_EQ(StatesTrainedBy(graph), std::vector<std::string>{"w"});
  }
}

TEST(TrainStep, AResultThatStaysIsNotCalledLoss) {
  Graph graph = *ParseGraph(R"(
graph @model(%x: f32[8,3] split(0), state %w: f32[3,2]) -> (logits: f32[8,2] split(0), loss: f32[8,2] split(0)) {
  %z = matmul %x, %w : f32[8,2]
  %y = neg %z : f32[8,2]
  return %z, %y
}
)");
  TrainStepSpec spec;
  spec.keep_results = true;
  EXPECT_EQ(std::string(MakeTrainStep(graph, spec).message()), "graph @model has two results named loss");
}

TEST(TrainStep, WhatIsNamedByBothListsIsAnError) {
  TrainStepSpec spec;
  spec.trained = {"w"};
  spec.frozen = {"w"};
  EXPECT_EQ(ErrorOf(spec), "state %w is named by trained and by frozen");
}

TEST(TrainStep, WhatAPatternFreezesIsNotTrainedThoughItIsNamed) {
  TrainStepSpec spec;
  spec.trained = {"w"};
  spec.frozen = {"?"};
  EXPECT_EQ(ErrorOf(spec), "frozen leaves no state of graph @model to train");
}

// A model of three layers; the gradients of its weights are exchanged as `exchanges` say.
std::string ExchangesOf(std::vector<ExchangeSpec> exchanges) {
  Graph graph = *ParseGraph(R"(
graph @model(%x: f32[8,3] split(0), state %a/w: f32[3,3], state %a/b: f32[8,3], state %c/w: f32[3,2]) -> (logits: f32[8,2] split(0)) {
  %z = matmul %x, %a/w : f32[8,3]
  %s = add %z, %a/b : f32[8,3]
  %y = matmul %s, %c/w : f32[8,2]
  return %y
}
)");
  TrainStepSpec spec;
  spec.exchanges = std::move(exchanges);
  if (const absl::Status status = MakeTrainStep(graph, spec); !status.ok()) return std::string(status.message());
  std::string found;
  for (const Node& node : graph.nodes()) {
    if (!node.Is("exchange")) continue;
    EXPECT_TRUE(node.attr<Region>("body").empty());
    found +=
        node.attr<std::string>("state") + " by " + node.attr<std::string>("by") + node.attr<std::string>("wire") + "; ";
  }
  return found;
}

TEST(TrainStep, TheFirstExchangeThatMatchesAStateCounts) {
  EXPECT_EQ(ExchangesOf({}), "");
  EXPECT_EQ(ExchangesOf({{"*", "top_k()"}}), "a/w by top_k(); a/b by top_k(); c/w by top_k(); ");
  EXPECT_EQ(ExchangesOf({{"*/w", "top_k()"}}), "a/w by top_k(); c/w by top_k(); ");
  EXPECT_EQ(ExchangesOf({{"c/w", "sums", "bf16"}, {"*/w", "top_k()"}}), "a/w by top_k(); c/w by sumsbf16; ");
  EXPECT_EQ(ExchangesOf({{"c/*", ""}, {"*/w", "top_k()"}}), "a/w by top_k(); ");  // a plain all_reduce for c/w
}

TEST(TrainStep, AnExchangeOfNoStateIsAnError) {
  EXPECT_EQ(ExchangesOf({{"d/*", "top_k()"}}),
            "exchange: no trained state that no earlier entry matches is named 'd/*' or matches it; the trained states "
            "are a/w, a/b, c/w");
  EXPECT_EQ(ExchangesOf({{"*", "top_k()"}, {"c/w", "sign()"}}),
            "exchange: no trained state that no earlier entry matches is named 'c/w' or matches it; the trained states "
            "are a/w, a/b, c/w");
}

// The optimizer and clipping get the sums.
TEST(TrainStep, GradientsAreExchangedBeforeTheyAreClipped) {
  Graph graph = Model();
  TrainStepSpec spec;
  spec.exchanges = {{"w", "top_k()"}};
  spec.clipping = {"global_norm", 1.0};
  ASSERT_TRUE(MakeTrainStep(graph, spec).ok());
  for (const Node& node : graph.nodes()) {
    if (!node.Is("exchange")) continue;
    EXPECT_GE(node.users().size(), 2u) << "the norm, and the clipped gradient";
    EXPECT_EQ(node.operand(0).node->users().size(), 1u) << "nothing but the exchange sees the gradient of a rank";
  }
}

// The check of f16 whether gradients are finite needs only one number of each rank, so that they are not summed for it.
TEST(TrainStep, AnExchangeGetsTheTermsOfGradientsOfF16) {
  Graph graph = Model();
  TrainStepSpec spec;
  spec.exchanges = {{"w", "top_k()"}};
  spec.precision = DType::kF16;
  ASSERT_TRUE(MakeTrainStep(graph, spec).ok());
  ASSERT_TRUE(RunPasses({Distribute(Mesh({{"data", 2}}))}, graph).ok());
  int num_exchanges = 0;
  for (const Node& node : graph.nodes()) {
    if (node.Is("exchange")) {
      ++num_exchanges;
      EXPECT_TRUE(node.operand(0).placement("data").is_partial(ReduceKind::kSum));
    }
    if (node.Is("all_reduce")) EXPECT_EQ(node.type().shape.rank(), 0) << node.Describe();
  }
  EXPECT_EQ(num_exchanges, 1);
}

TEST(ConstantsToStates, ConstantsThatAreNamedBecomeStates) {
  Graph graph = Model();
  const auto values = ConstantsToStates(graph, {"w", "sl*"}, {"slope", "shift"});
  ASSERT_TRUE(values.ok()) << values.status();
  ASSERT_EQ(values->size(), 1u);
  EXPECT_EQ(values->at("slope"), Tensor::Scalar(DType::kF32, 0.25));
  const Input* const state = graph.FindInput("slope");
  ASSERT_NE(state, nullptr);
  EXPECT_TRUE(state->is_state);
  EXPECT_EQ(graph.FindInput("shift"), nullptr);
  ASSERT_TRUE(MakeTrainStep(graph, {}).ok());
  EXPECT_EQ(StatesTrainedBy(graph), (std::vector<std::string>{"w", "slope"}));
}

TEST(ConstantsToStates, OnlyThoseOfTheListAndOnlyIfNoStateMatches) {
  Graph graph = Model();
  auto values = ConstantsToStates(graph, {"s*"}, {"shift"});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->size(), 1u);
  EXPECT_TRUE(values->contains("shift"));
  values = ConstantsToStates(graph, {"s*"}, {"slope"});  // shift is a state that matches now
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_TRUE(values->empty());
}

TEST(ConstantsToStates, AnErrorListsWhatThereIs) {
  Graph graph = Model();
  EXPECT_EQ(ConstantsToStates(graph, {"w", "gain"}, {"slope", "shift"}).status().message(),
            "trained: nothing in graph @model is named 'gain' or matches it; its states are w; its constants are "
            "slope, shift");
  EXPECT_EQ(ConstantsToStates(graph, {"x"}, {}).status().message(),
            "trained: nothing in graph @model is named 'x' or matches it; its states are w");
}

// Returns the type and the placement of the step's label, as "i64[8] split(0)", or the error.
std::string LabelOf(const std::string& model, const std::string& loss = "softmax_cross_entropy") {
  Graph graph = *ParseGraph(model);
  TrainStepSpec spec;
  spec.losses = {{.name = loss, .inputs = {"label"}}};
  const absl::Status status = MakeTrainStep(graph, spec);
  if (!status.ok()) return std::string(status.message());
  const Input* label = graph.FindInput("label");
  const Placement placement = label->value.placement(kDataAxis);
  return label->value.type().ToString() + (placement.is_split() ? " " + placement.ToString() : "");
}

TEST(TrainStep, LabelsAreSharedAsThePredictionIs) {
  EXPECT_EQ(LabelOf(kModel), "i64[8] split(0)");
  // A dimension that merges batch and words is split if the batch comes first, and not if the words come first.
  EXPECT_EQ(LabelOf(R"(
graph @words(%x: f32[4,6,3] split(0), state %w: f32[3,2]) -> (logits: f32[24,2]) {
  %rows = reshape %x {shape=[24,3]} : f32[24,3]
  %y = matmul %rows, %w : f32[24,2]
  return %y
})"),
            "i64[24] split(0)");
  EXPECT_EQ(LabelOf(R"(
graph @time_first(%x: f32[6,4,3] split(1), state %w: f32[3,2]) -> (logits: f32[24,2]) {
  %rows = reshape %x {shape=[24,3]} : f32[24,3]
  %y = matmul %rows, %w : f32[24,2]
  return %y
})"),
            "i64[24]");
  // The number of time steps equals the number of samples; the placement is still that of the batch.
  constexpr char kTimeFirst[] = R"(
graph @time_first(%x: f32[4,4,3] split(1), state %w: f32[3]) -> (logits: f32[4,4,3]) {
  %wb = broadcast %w {shape=[4,4,3], dims=[2]} : f32[4,4,3]
  %y = mul %x, %wb : f32[4,4,3]
  return %y
})";
  EXPECT_EQ(LabelOf(kTimeFirst, "mean_squared_error"), "f32[4,4,3] split(1)");
}

TEST(TrainStep, LabelsAreCutAsTheBatchIsWhereEveryRankPredictsTheWhole) {
  EXPECT_EQ(LabelOf(R"(
graph @one(%x: f32[1,3] split(0), state %w: f32[3,2]) -> (logits: f32[1,2]) {
  %y = matmul %x, %w : f32[1,2]
  return %y
})"),
            "i64[1] split(0)");
  EXPECT_EQ(LabelOf(R"(
graph @sums_of_the_batch(%x: f32[4,3] split(0), state %w: f32[3,4]) -> (logits: f32[4,2]) {
  %g = matmul %w, %x : f32[3,3]
  %h = slice %g {start=[0,0], limit=[2,2], stride=[1,1]} : f32[2,2]
  %y = broadcast %h {dims=[0,1], shape=[2,2]} : f32[2,2]
  %z = concat %y, %y {dim=0} : f32[4,2]
  return %z
})"),
            "i64[4] split(0)");
}

// Labels are not split along the classes, which they do not have, nor like an input with another number of rows.
TEST(TrainStep, LabelsAreWholeWhereNothingSaysHowTheyAreShared) {
  EXPECT_EQ(LabelOf(R"(
graph @classes(%x: f32[2,4,4] split(1), state %w: f32[4]) -> (logits: f32[2,4,4]) {
  %wb = broadcast %w {shape=[2,4,4], dims=[2]} : f32[2,4,4]
  %y = mul %x, %wb : f32[2,4,4]
  return %y
})"),
            "i64[2,4]");
  EXPECT_EQ(LabelOf(R"(
graph @other_rows(%x: f32[6,3] split(0), state %w: f32[4,6]) -> (logits: f32[4,3]) {
  %y = matmul %w, %x : f32[4,3]
  return %y
})"),
            "i64[4]");
}

}  // namespace
}  // namespace lockstep::passes
