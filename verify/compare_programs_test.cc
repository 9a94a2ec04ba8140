#include "verify/compare_programs.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "core/op_def.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/quantize_wire.h"
#include "passes/distribute/wire.h"
#include "passes/optimize/dce.h"
#include "passes/optimize/fold_constants.h"
#include "passes/pipeline.h"
#include "passes/simplify/simplify.h"

namespace lockstep::verify {
namespace {

constexpr char kStep[] = R"(
graph @step(%x: f32[8,6] split(0), %dz: f32[8,4] split(0), state %w: f32[6,4]) -> (%w: f32[6,4]) {
  %dw = matmul %x, %dz {transpose_a=true} : f32[6,4]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[6,4]
  return %w1
}
)";

TEST(RunPassesChecked, AcceptsAPipeline) {
  const auto graph = ParseGraph(kStep);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int64_t ranks : {1, 2, 4, 8}) {
    passes::PipelineOptions options;
    options.ranks = options.mesh = Mesh({{"data", ranks}});
    options.supports = [](const Node& node) { return !node.op().has_trait(kOptimizer); };
    Graph copy = graph->Clone();
    EXPECT_TRUE(RunPassesChecked(passes::MakePipeline(options), copy).ok());
  }
}

// A placed program of four ranks whose gradient is summed, with one line replaced.
absl::Status CheckWith(const std::string& from, const std::string& to) {
  std::string text = R"(
mesh {data=4}
graph @step(%x: f32[8,6] split(0), %dz: f32[8,4] split(0), state %w: f32[6,4]) -> (%w: f32[6,4]) {
  %dw = matmul %x, %dz {transpose_a=true} : f32[6,4] partial(sum)
  %dw.1 = all_reduce %dw {axis=data, kind=sum} : f32[6,4]
  %w1 = sgd %w, %dw.1 {learning_rate=0.1} : f32[6,4]
  return %w1
}
)";
  const size_t at = text.find(from);
  LOCKSTEP_CHECK(at != std::string::npos) << from;
  text.replace(at, from.size(), to);
  auto reference = Reference::Of(*ParseGraph(kStep));
  LOCKSTEP_CHECK(reference.ok()) << reference.status();
  const auto program = ParseGraph(text);
  LOCKSTEP_CHECK(program.ok()) << program.status();
  return reference->Check(*program);
}

TEST(Reference, AcceptsTheProgramOfFourRanks) { EXPECT_TRUE(CheckWith("return", "return").ok()); }

TEST(Reference, NamesTheFirstValueThatDiffers) {
  const std::string all = " on all 4 ranks", state = "state w" + all + " differs from that of one rank; ";
  const auto first = [&](const std::string& node) {
    return state + "the first value that does is the result of " + node + all + "\n  each rank computes\n    ";
  };
  EXPECT_EQ(CheckWith("data, kind=sum", "data, kind=mean").message(),
            first("all_reduce %dw.1") + "%dw.1 = all_reduce %dw {axis=data, kind=mean} : f32[6,4]\n" +
                "  one rank computes\n    %dw = matmul %x, %dz {transpose_a=true} : f32[6,4]");
  const std::string one_rank = "\n  one rank computes\n    %w1 = sgd %w, %dw {learning_rate=0.1} : f32[6,4]";
  EXPECT_EQ(CheckWith("sgd %w, %dw.1", "sgd %w, %dw").message(),
            first("sgd %w1") + "%w1 = sgd %w, %dw {learning_rate=0.1} : f32[6,4]" + one_rank);
  EXPECT_EQ(CheckWith("learning_rate=0.1", "learning_rate=0.2").message(),
            first("sgd %w1") + "%w1 = sgd %w, %dw.1 {learning_rate=0.2} : f32[6,4]" + one_rank);
}

// Nodes between a value that differs and those that are equal: with new names, as passes give them.
TEST(Reference, ShowsTheNodesFromEqualValues) {
  const std::string line = "  %dw.1 = all_reduce %dw {axis=data, kind=sum} : f32[6,4]\n";
  const auto differs = CheckWith(line + "  %w1 = sgd %w, %dw.1", line +
                                                                     "  %a = add %dw.1, %dw.1 : f32[6,4]\n"
                                                                     "  %b = add %a, %w : f32[6,4]\n"
                                                                     "  %w1 = sgd %w, %b");
  EXPECT_THAT(std::string(differs.message()),
              testing::HasSubstr("each rank computes\n    %a = add %dw.1, %dw.1 : f32[6,4]\n    %b = add %a, %w : "
                                 "f32[6,4]\n    %w1 = sgd %w, %b {learning_rate=0.1} : f32[6,4]\n  one rank"));
}

// At most the last twelve.
TEST(Reference, ShowsTwelveNodes) {
  const std::string line = "  %dw.1 = all_reduce %dw {axis=data, kind=sum} : f32[6,4]\n";
  std::string chain = line + "  %a0 = add %dw.1, %dw.1 : f32[6,4]\n", shown;
  for (int i = 1; i < 20; ++i) {
    const std::string node = "  %a" + std::to_string(i) + " = add %a" + std::to_string(i - 1) + ", %dw.1 : f32[6,4]\n";
    chain += node;
    if (i >= 9) shown += "\n  " + node.substr(0, node.size() - 1);
  }
  EXPECT_THAT(std::string(CheckWith(line + "  %w1 = sgd %w, %dw.1", chain + "  %w1 = sgd %w, %a19").message()),
              testing::HasSubstr("each rank computes" + shown +
                                 "\n    %w1 = sgd %w, %a19 {learning_rate=0.1} : "
                                 "f32[6,4]\n  one rank"));
}

// The terms of a count are no difference.
TEST(Reference, CompletesIntegersToo) {
  auto reference = Reference::Of(*ParseGraph(R"(
graph @count(%k: i64[8] split(0), %x: f32[]) -> (n: i64[], y: f32[]) {
  %n = reduce_sum %k {dims=[0]} : i64[]
  %y = add %x, %x : f32[]
  return %n, %y
}
)"));
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto wrong = ParseGraph(R"(
mesh {data=4}
graph @count(%k: i64[8] split(0), %x: f32[]) -> (n: i64[], y: f32[]) {
  %n = reduce_sum %k {dims=[0]} : i64[] partial(sum)
  %n.1 = all_reduce %n {axis=data, kind=sum} : i64[]
  %y = sub %x, %x : f32[]
  return %n.1, %y
}
)");
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_THAT(std::string(reference->Check(*wrong).message()),
              testing::StartsWith("result y on all 4 ranks differs from that of one rank; the first value that does is "
                                  "the result of sub %y"));
}

// A pass may give a name to another value: only values of the same shape are compared.
TEST(Reference, LooksPastANameThatIsGivenAgain) {
  const auto differs = CheckWith(
      "  %dw = matmul %x, %dz {transpose_a=true} : f32[6,4] partial(sum)\n"
      "  %dw.1 = all_reduce %dw {axis=data, kind=sum} : f32[6,4]\n"
      "  %w1 = sgd %w, %dw.1",
      "  %dw = slice %dz {limit=[8,2], start=[0,0], stride=[1,1]} : f32[8,2] split(0)\n"
      "  %dw.0 = matmul %x, %dz {transpose_a=true} : f32[6,4] partial(sum)\n"
      "  %dw.1 = all_reduce %dw.0 {axis=data, kind=mean} : f32[6,4]\n"
      "  %w1 = sgd %w, %dw.1");
  EXPECT_THAT(std::string(differs.message()), testing::HasSubstr("first value that does is the result of sgd %w1"));
}

// Arithmetic of constants is that of floats, with which a compiler folds it.
TEST(Reference, ConstantsMayBeFolded) {
  const auto graph = ParseGraph(R"(
graph @f(%x: f32[3]) -> (y: f32[3]) {
  %c = constant {value=dense<f32[3]: 0.3, 1.7, 2.25>} : f32[3]
  %t = tanh %c : f32[3]
  %s = sub %t, %c : f32[3]
  %y = mul %x, %s : f32[3]
  return %y
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  Graph folded = graph->Clone();
  EXPECT_TRUE(RunPassesChecked({passes::FoldConstants(), passes::Simplify(), passes::Dce()}, folded).ok());
  EXPECT_THAT(folded.ToString(), testing::Not(testing::HasSubstr("tanh")));
}

// A rank's term is not the result, though its placement says so.
TEST(Reference, AResultIsWhole) {
  const auto graph = ParseGraph(R"(
graph @total(%x: f32[8] split(0)) -> (sum: f32[]) {
  %sum = reduce_sum %x {dims=[0]} : f32[]
  return %sum
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  auto reference = Reference::Of(*graph);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto wrong = ParseGraph(R"(
mesh {data=4}
graph @total(%x: f32[8] split(0)) -> (sum: f32[]) {
  %sum = reduce_sum %x {dims=[0]} : f32[] partial(sum)
  return %sum
}
)");
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_EQ(reference->Check(*wrong).message(), "result sum on all 4 ranks differs from that of one rank");
}

// Also if its placement says that it is a term, which the one-rank program does not declare.
TEST(Reference, AResultIsNoTerm) {
  const std::string text = R"(graph @total(%x: f32[8] split(0)) -> (sum: f32[]) {
  %sum = reduce_sum %x {dims=[0]} : f32[]
  return %sum
}
)";
  auto reference = Reference::Of(*ParseGraph(text));
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto wrong = ParseGraph(R"(
mesh {data=4}
graph @total(%x: f32[8] split(0)) -> (sum: f32[] partial(sum)) {
  %sum = reduce_sum %x {dims=[0]} : f32[] partial(sum)
  return %sum
}
)");
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_EQ(reference->Check(*wrong).message(), "result sum on all 4 ranks differs from that of one rank");
}

TEST(Reference, NamesTheRanksThatDiffer) {
  auto reference = Reference::Of(*ParseGraph("graph @f(%x: f32[8]) -> (y: f32[8]) {\n  return %x\n}\n"));
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto check = [&](const std::string& condition) {
    const auto wrong = ParseGraph(R"(
mesh {data=4}
graph @f(%x: f32[8]) -> (y: f32[8]) {
  %rank = axis_index {axis=data} : i64[] local
  %two = constant {value=dense<i64[]: 2>} : i64[]
  %is = compare %rank, %two {direction=)" +
                                  condition + R"(} : bool[] local
  %each = broadcast %is {dims=[], shape=[8]} : bool[8] local
  %twice = add %x, %x : f32[8]
  %y = select %each, %twice, %x : f32[8] local
  return %y
}
)");
    LOCKSTEP_CHECK(wrong.ok()) << wrong.status();
    return std::string(reference->Check(*wrong).message());
  };
  EXPECT_THAT(check("eq"), testing::StartsWith("result y on rank 2 differs from that of one rank"));
  EXPECT_THAT(check("ge"), testing::StartsWith("result y on ranks 2, 3 differs from that of one rank"));
}

TEST(Reference, AResultHasTheDeclaredPlacement) {
  const auto graph = ParseGraph("graph @f(%x: f32[8] split(0)) -> (y: f32[8] split(0)) {\n  return %x\n}\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  auto reference = Reference::Of(*graph);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto gathered = ParseGraph(R"(
mesh {data=4}
graph @f(%x: f32[8] split(0)) -> (y: f32[8]) {
  %y = all_gather %x {axis=data, dim=0} : f32[8]
  return %y
}
)");
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_EQ(reference->Check(*gathered).message(), "result y on all 4 ranks differs from that of one rank");
  const auto without = ParseGraph("mesh {data=4}\ngraph @f(%x: f32[8] split(0)) -> () {\n  return\n}\n");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(reference->Check(*without).message(), "result y is missing");
}

// Along an axis for which nothing is declared, a result is placed as the passes choose.
TEST(Reference, AResultIsDeclaredAlongOneAxis) {
  const auto graph = ParseGraph("graph @f(%x: f32[4,2]) -> (y: f32[4,2] split(0)) {\n  return %x\n}\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  auto reference = Reference::Of(*graph);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto split = ParseGraph(R"(
mesh {data=2, model=2}
graph @f(%x: f32[4,2] split(1, model)) -> (y: f32[4,2] split(0) split(1, model)) {
  %y = shard %x {axis=data, dim=0} : f32[4,2] split(0) split(1, model)
  return %y
}
)");
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_TRUE(reference->Check(*split).ok()) << reference->Check(*split);
}

constexpr char kPlaced[] = R"(
mesh {data=2}
graph @f(%x: f32[6] partial(sum), %z: f32[6] split(0)) -> (y: f32[6], v: f32[6] split(0)) {
  %s = all_reduce %x {axis=data, kind=sum} : f32[6]
  %p = shard %s {axis=data, dim=0} : f32[6] split(0)
  %v = mul %p, %z : f32[6] split(0)
  %y = exp %s : f32[6]
  return %y, %v
}
)";

// A program that is placed already is compared with itself; each rank has its own terms of a partial input.
TEST(RunPassesChecked, AcceptsAPlacedProgram) {
  const auto graph = ParseGraph(kPlaced);
  ASSERT_TRUE(graph.ok()) << graph.status();
  passes::PipelineOptions options;
  options.ranks = graph->mesh();
  options.supports = [](const Node&) { return true; };
  Graph copy = graph->Clone();
  const absl::Status equal = RunPassesChecked(passes::MakePipeline(options), copy);
  EXPECT_TRUE(equal.ok()) << equal;
}

TEST(Reference, NamesTheFirstValueOfAPlacedProgramThatDiffers) {
  auto reference = Reference::Of(*ParseGraph(kPlaced));
  ASSERT_TRUE(reference.ok()) << reference.status();
  std::string text = kPlaced;
  text.replace(text.find("mul"), 3, "add");
  EXPECT_EQ(reference->Check(*ParseGraph(text)).message(),
            "result v on all 2 ranks differs from that of @f as it was given; the first value that does is the result "
            "of add %v on all 2 ranks\n"
            "  each rank computes\n    %v = add %p, %z : f32[3] split(0)\n"
            "  @f as it was given computes\n    %v = mul %p, %z : f32[3] split(0)");
}

// A pass that makes one mistake in what the passes before it made.
passes::Pass Mistake(const std::string& op, const std::string& attribute, Attribute value) {
  return {"mistake", [=](Graph& graph) -> absl::StatusOr<bool> {
            for (Node& node : graph.nodes()) {
              if (node.Is(op)) return graph.SetAttribute(&node, attribute, value).ok();
            }
            return InvalidArgument() << "there is no " << op;
          }};
}

TEST(RunPassesChecked, NamesThePass) {
  const auto graph = ParseGraph(kStep);
  passes::PipelineOptions options;
  options.ranks = options.mesh = Mesh({{"data", 4}});
  options.supports = [](const Node& node) { return !node.op().has_trait(kOptimizer); };
  std::vector<passes::Pass> pipeline = passes::MakePipeline(options);
  const auto distribute = std::find_if(pipeline.begin(), pipeline.end(),
                                       [](const passes::Pass& pass) { return pass.name == "distribute"; });
  pipeline.insert(distribute + 1, Mistake("sgd", "learning_rate", 0.3));
  Graph copy = graph->Clone();
  EXPECT_EQ(RunPassesChecked(pipeline, copy).message(),
            "pass mistake: state w on all 4 ranks differs from that of one rank; the first value that does is the "
            "result of sgd %w1 on all 4 ranks\n"
            "  each rank computes\n    %w1 = sgd %w, %dw.1 {learning_rate=0.3} : f32[6,4]\n"
            "  one rank computes\n    %w1 = sgd %w, %dw {learning_rate=0.1} : f32[6,4]");
}

// A mistake of one pass often lets a later one fail. An error without any difference before is that of the pass.
TEST(RunPassesChecked, NamesThePassBeforeTheOneThatFails) {
  const passes::Pass fails = {"fails",
                              [](Graph&) -> absl::StatusOr<bool> { return InvalidArgument() << "it cannot go on"; }};
  Graph wrong = *ParseGraph(kStep), right = wrong.Clone();
  EXPECT_THAT(std::string(RunPassesChecked({Mistake("sgd", "learning_rate", 0.3), fails}, wrong).message()),
              testing::StartsWith("pass mistake: state w differs from that of one rank; the first value that does is"));
  EXPECT_EQ(RunPassesChecked({fails}, right).message(), "pass fails: it cannot go on");
}

// A pass may make another program on purpose. Those after it must keep what it made.
TEST(RunPassesChecked, ComparesLaterPassesWithWhatAPassMadeThatChangesTheMeaning) {
  passes::Pass other = Mistake("sgd", "learning_rate", 0.3);
  other.changes_meaning = true;
  const passes::Pass distribute = passes::Distribute(Mesh({{"data", 2}}));
  Graph right = *ParseGraph(kStep), wrong = right.Clone();
  EXPECT_EQ(RunPassesChecked({other, distribute}, right), absl::OkStatus());
  EXPECT_THAT(right.ToString(), testing::HasSubstr("learning_rate=0.3"));
  passes::Pass mistake = Mistake("sgd", "learning_rate", 0.2);
  mistake.name = "second";
  EXPECT_THAT(std::string(RunPassesChecked({other, distribute, mistake}, wrong).message()),
              testing::StartsWith("pass second: state w on all 2 ranks differs from that of one rank"));
}

// A step whose gradients travel on the int8 wire, before and after quantize-wire.
constexpr char kOneGradient[] = R"(
graph @step(%x: f32[8,6] split(0), %dz: f32[8,4] split(0), state %w: f32[6,4]) -> (%w: f32[6,4]) {
  %grad/w = matmul %x, %dz {transpose_a=true} : f32[6,4]
  %w1 = sgd %w, %grad/w {learning_rate=0.1} : f32[6,4]
  return %w1
}
)";

Graph OnTheInt8Wire(std::string_view step = kOneGradient) {
  Graph graph = *ParseGraph(step);
  const absl::Status passed = passes::RunPasses(
      {passes::Distribute(Mesh({{"data", 4}})), passes::ChooseWire("int8"), passes::QuantizeWire()}, graph);
  LOCKSTEP_CHECK(passed.ok()) << passed;
  return graph;
}

TEST(Reference, ABlockOfZerosIsZeroOnTheInt8Wire) {
  const std::string zero = absl::StrReplaceAll(
      kOneGradient,
      {{"  %grad/w = matmul %x, %dz", "  %zero = sub %dz, %dz : f32[8,4]\n  %grad/w = matmul %x, %zero"}});
  auto reference = Reference::Of(*ParseGraph(zero));
  ASSERT_TRUE(reference.ok()) << reference.status();
  const Graph graph = OnTheInt8Wire(zero);
  EXPECT_TRUE(reference->Check(graph).ok()) << reference->Check(graph);
  EXPECT_TRUE(reference->CheckResiduals(graph).ok()) << reference->CheckResiduals(graph);
}

TEST(Reference, TheInt8WireKeepsWhatItDoesNotSend) {
  auto reference = Reference::Of(*ParseGraph(kStep));
  ASSERT_TRUE(reference.ok()) << reference.status();
  const Graph graph = OnTheInt8Wire();
  EXPECT_TRUE(reference->CheckResiduals(graph).ok()) << reference->CheckResiduals(graph);
  // Each difference or sum of the program matters: what is sent, and what is kept of it.
  int found = 0;
  const auto is_sum = [](const Node& node) { return (node.Is("add") || node.Is("sub")) && IsFloat(node.type().dtype); };
  const auto num_sums = std::count_if(graph.nodes().begin(), graph.nodes().end(), is_sum);
  for (int64_t i = 0; i < num_sums; ++i) {
    Graph wrong = graph.Clone();
    int64_t seen = 0;
    for (Node& node : wrong.nodes()) {
      if (is_sum(node) && seen++ == i) wrong.ReplaceUses(node.result(), node.operand(0));
    }
    const absl::Status status = reference->CheckResiduals(wrong);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("the int8 wire loses a part of the gradient of w on rank "))
        << i << "\n"
        << wrong.ToString();
    found += !status.ok();
  }
  EXPECT_GE(found, 3);
}

}  // namespace
}  // namespace lockstep::verify
