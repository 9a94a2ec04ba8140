// The programs that Compile takes, and its messages for ranks that share no work and for a backend that fails.

#include "backends/compile.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "passes/pass_table.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// A backend that claims to have kernels for everything, but whose Lower fails.
class EmptyBackend : public Backend {
 public:
  // If `supports` is false, it claims to have no kernels.
  explicit EmptyBackend(bool supports = true) : supports_(supports) {}

  std::string_view name() const override { return "empty"; }
  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override {
    if (options.isa == "mmx") return InvalidArgument() << "there is no mmx";
    Target target;
    target.supports = [supports = supports_](const Node&) { return supports; };
    return target;
  }
  absl::StatusOr<RankDevice> OpenDevice(Communicator& world) const override { return OpenHostDevice(world); }
  absl::StatusOr<Program> Lower(const Graph& graph, const Target&) const override {
    if (graph.nodes().empty()) return Program();
    return Unimplemented() << "there is no kernel for " << graph.nodes().front().Describe();
  }

 private:
  const bool supports_;
};

constexpr char kText[] = R"(
graph @square(%x: f32[3]) -> (y: f32[3]) {
  %y = mul %x, %x : f32[3] @"onnx:/Mul"
  return %y
}
)";

TEST(Compile, AFailureAfterThePassesLeavesAReproducer) {
  const absl::StatusOr<Graph> graph = ParseGraph(kText);
  ASSERT_TRUE(graph.ok()) << graph.status();
  CompileOptions options;
  options.debug.reproducer_directory = testing::TempDir();
  const absl::Status status = Compile(graph->Clone(), EmptyBackend(), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              ContainsRegex("no kernel for .*onnx:/Mul.* .reproducer: .*square.emit.ir"));
  std::ostringstream text;
  text << std::ifstream(std::filesystem::path(testing::TempDir()) / "square.emit.ir").rdbuf();
  const absl::StatusOr<Graph> reproducer = ParseGraph(text.str());
  ASSERT_TRUE(reproducer.ok()) << reproducer.status() << text.str();
  EXPECT_EQ(reproducer->ToString(), graph->ToString());
}

TEST(Compile, AMachineThatIsNotThereIsAnErrorBeforeAnyPass) {
  const absl::StatusOr<Graph> graph = ParseGraph(kText);
  ASSERT_TRUE(graph.ok()) << graph.status();
  CompileOptions options;
  options.isa = "mmx";
  EXPECT_EQ(Compile(graph->Clone(), EmptyBackend(), options).status().message(), "there is no mmx");
}

TEST(Compile, AnOpWithoutAKernelIsAnErrorThatNamesTheBackend) {
  const absl::StatusOr<Graph> graph = ParseGraph(kText);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const absl::Status status = Compile(graph->Clone(), EmptyBackend(/*supports=*/false), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(
      status.message(),
      "backend=\"empty\": pass legalize: the target has no kernel for mul %y (at onnx:/Mul) of f32[3], f32[3], and "
      "the op has no decomposition");
}

TEST(Compile, TakesAOneRankProgramOrAPlacedOrALocalOne) {
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  std::set<std::string> texts;
  for (const char* const passes : {"", "distribute{data=2}", "distribute{data=2},localize"}) {
    absl::StatusOr<Graph> graph = ParseGraph(R"(
graph @mean(%x: f32[8,3] split(0), state %w: f32[3]) -> (y: f32[3]) {
  %y = reduce_sum %x {dims=[0]} : f32[3]
  return %y
}
)");
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_EQ(passes::RunPasses(*passes::PassesFromText(passes), *graph), absl::OkStatus());
    const absl::StatusOr<Executable> executable = Compile(*std::move(graph), **CreateBackend("cpu"), options);
    ASSERT_TRUE(executable.ok()) << executable.status();
    EXPECT_THAT(executable->graph_text, HasSubstr("%x: f32[4,3]"));
    texts.insert(executable->graph_text + executable->certificate.ToString());
  }
  EXPECT_EQ(texts.size(), 1u);
}

TEST(Compile, AnExecutableSaysWhichBackendMadeIt) {
  const absl::StatusOr<Executable> executable = Compile(Graph("nothing"), EmptyBackend(), {});
  ASSERT_TRUE(executable.ok()) << executable.status();
  EXPECT_EQ(executable->backend, "empty");
  EXPECT_THAT(executable->ToString(), HasSubstr("executable @nothing backend=empty ranks=1 "));
}

// --- Smaller dimensions ---

// What a comparison of `text`, made smaller if `shrink`, with these options takes for granted, or its error: in lines.
std::string Verified(const std::string& text, const std::string& strategy, bool shrink = true) {
  CompileOptions options;
  static_cast<Strategy&>(options) = *Strategy::Parse(strategy);
  const absl::StatusOr<Graph> graph = ParseGraph(text);
  if (!graph.ok()) return std::string(graph.status().message());
  const absl::StatusOr<verify::Assumptions> assumed = Verify(*graph, EmptyBackend(), options, shrink);
  return assumed.ok() ? absl::StrJoin(*assumed, "\n") : std::string(assumed.status().message());
}

constexpr char kSmaller[] = "what holds for smaller dimensions holds for those of the program: ";

// A weight whose rows are those of a concat, and are split over three ranks.
TEST(Verify, SizesThatFollowCanBeSplitAsBefore) {
  const std::string strategy = "mesh={data=1,model=3},split={w={model=0}}";
  const std::string thirds = R"(
graph @f(%a: f32[8192,100] split(0), %b: f32[8192,100] split(0), %c: f32[8192,400] split(0), state %w: f32[600,64])
    -> (y: f32[8192,64] split(0), %w: f32[600,64]) {
  %x = concat %a, %b, %c {dim=1} : f32[8192,600]
  %y = matmul %x, %w : f32[8192,64]
  return %y, %w
}
)";
  EXPECT_THAT(Verified(thirds, strategy), testing::StartsWith(kSmaller));
  const std::string uneven = R"(
graph @f(%a: f32[8192,100] split(0), %c: f32[8192,400] split(0), state %w: f32[500,64])
    -> (y: f32[8192,64] split(0), %w: f32[500,64]) {
  %x = concat %a, %c {dim=1} : f32[8192,500]
  %y = matmul %x, %w : f32[8192,64]
  return %y, %w
}
)";
  for (bool shrink : {true, false}) {
    EXPECT_THAT(Verified(uneven, strategy, shrink), HasSubstr("cannot share dimension 0 evenly"));
  }
}

// A step whose gradient travels as signs, which are no sum, and with a state.
constexpr char kWithExchange[] = R"ir(
graph @step(%x: f32[8,3] split(0), state %w: f32[3]) -> (%w: f32[3]) {
  %grad = reduce_sum %x {dims=[0]} : f32[3]
  %g = exchange %grad {by="signs(k=1)", state=w, body=
    mesh {data=2}
    graph @signs(%gradient: f32[3] partial(sum), state %error: f32[2,3] split(0))
        -> (sum: f32[3], %error: f32[2,3] split(0)) {
      %0 = parts %gradient {axis=data, shape=[2,3]} : f32[2,3] split(0)
      %1 = add %0, %error : f32[2,3] split(0)
      %signs = sign %1 : f32[2,3] split(0)
      %all = all_gather %signs {axis=data, dim=0} : f32[2,3]
      %sum = reduce_sum %all {dims=[0]} : f32[3]
      return %sum, %1
    }} : f32[3]
  %next = sgd %w, %g {learning_rate=0.1} : f32[3]
  return %next
}
)ir";

TEST(Verify, ExchangesWithBodiesAreExactSumsWhichIsSaid) {
  for (bool shrink : {true, false}) {
    EXPECT_THAT(Verified(kWithExchange, "mesh={data=2}", shrink),
                HasSubstr("the sums of gradients are those that the exchanges make of them: signs(k=1)"));
  }
}

TEST(Compile, VerifiesAStepWithExchangesAsIfTheyWereExact) {
  const absl::StatusOr<Graph> step = ParseGraph(kWithExchange);
  ASSERT_TRUE(step.ok()) << step.status();
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  options.verify = true;
  EXPECT_THAT(Compile(step->Clone(), EmptyBackend(), options).status().message(), HasSubstr("there is no kernel"));
}

// A program that takes row `n` - 1 of 4096, with `n` in a constant.
std::string RowBefore(const std::string& n) {
  return R"(
graph @f(%x: f32[80,4096,8] split(0)) -> (y: f32[80,1,8] split(0)) {
  %n = constant {value=dense<i64[1]: )" +
         n + R"(>} : i64[1]
  %one = constant {value=dense<i64[1]: 1>} : i64[1]
  %row = sub %n, %one : i64[1]
  %square = mul %x, %x : f32[80,4096,8]
  %y = gather %square, %row {dim=1} : f32[80,1,8]
  return %y
}
)";
}

TEST(Verify, SizesOfWhichAPositionIsComputedStay) {
  EXPECT_EQ(Verified(RowBefore("4096"), "mesh={data=2}"),
            std::string(kSmaller) + "8 -> 4 (dim 2 of x), 80 -> 2 (dim 0 of x)");
}

// A backend that records the buckets of the programs for which it has kernels.
class BucketBackend : public EmptyBackend {
 public:
  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override {
    ASSIGN_OR_RETURN(Target target, EmptyBackend::MakeTarget(options));
    target.supports = [this](const Node& node) {
      if (node.op().FindAttribute("bucket") && node.attr<int64_t>("bucket") >= 0)
        buckets_.insert(node.attr<int64_t>("bucket"));
      return true;
    };
    return target;
  }
  const std::set<int64_t>& buckets() const { return buckets_; }

 private:
  mutable std::set<int64_t> buckets_;
};

TEST(Verify, ASmallerProgramHasAsManyBuckets) {
  std::string inputs = "%dz: f32[1024,512] split(0)", results, nodes, values;
  for (const char* const i : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
    absl::StrAppend(&inputs, ", %x", i, ": f32[1024,512] split(0), state %w", i, ": f32[512,512]");
    absl::StrAppend(&results, results.empty() ? "" : ", ", "%w", i, ": f32[512,512]");
    absl::StrAppend(&nodes, "  %dw", i, " = matmul %x", i, ", %dz {transpose_a=true} : f32[512,512]\n");
    absl::StrAppend(&nodes, "  %v", i, " = sgd %w", i, ", %dw", i, " {learning_rate=0.1} : f32[512,512]\n");
    absl::StrAppend(&values, values.empty() ? "" : ", ", "%v", i);
  }
  const absl::StatusOr<Graph> step =
      ParseGraph("graph @step(" + inputs + ") -> (" + results + ") {\n" + nodes + "  return " + values + "\n}\n");
  ASSERT_TRUE(step.ok()) << step.status();
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  options.bucket_bytes = 2 << 20;
  const BucketBackend whole, smaller;
  EXPECT_THAT(Compile(step->Clone(), whole, options).status().message(), HasSubstr("there is no kernel"));
  const absl::StatusOr<verify::Assumptions> assumed = Verify(*step, smaller, options);
  ASSERT_TRUE(assumed.ok()) << assumed.status();
  EXPECT_THAT(absl::StrJoin(*assumed, "\n"), HasSubstr(kSmaller));
  EXPECT_EQ(smaller.buckets(), whole.buckets());
  EXPECT_GE(whole.buckets().size(), 4u);
}

TEST(Verify, AProgramIsComparedAsItIsIfASmallerOneCannotRun) {
  EXPECT_EQ(Verified(RowBefore("4000"), "mesh={data=2}"), "");
}

// Returns the message when a graph with these inputs is compiled for two ranks.
std::string MessageFor(const std::string& inputs, bool replicated = false) {
  const absl::StatusOr<Graph> graph =
      ParseGraph("graph @g(" + inputs + ") -> (z: f32[4]) {\n  %z = exp %w : f32[4]\n  return %z\n}\n");
  if (!graph.ok()) return std::string(graph.status().message());
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  options.replicated = replicated;
  return std::string(Compile(graph->Clone(), EmptyBackend(), options).status().message());
}

TEST(Compile, RanksThatShareNoInputAreRefusedUnlessThatIsMeant) {
  const std::string shared_nothing = "state %w: f32[4], %x: f32[8,3], %y: i64[8], state %v: f32[2]";
  EXPECT_THAT(MessageFor(shared_nothing),
              HasSubstr("2 ranks along axis data, and none of its inputs is split over them: x f32[8,3], y i64[8];"));
  EXPECT_THAT(MessageFor(shared_nothing), HasSubstr("dims={\"x:0\": 128}"));
  const std::string compiled = "there is no kernel for exp %z";
  EXPECT_THAT(MessageFor(shared_nothing, /*replicated=*/true), HasSubstr(compiled));
  EXPECT_THAT(MessageFor("state %w: f32[4] split(0), %x: f32[8,3]"), HasSubstr(compiled));
  EXPECT_THAT(MessageFor("state %w: f32[4], %x: f32[8,3] split(0)"), HasSubstr(compiled));
  EXPECT_THAT(MessageFor("state %w: f32[4]"), HasSubstr(compiled));  // a program without data inputs
}

}  // namespace
}  // namespace lockstep
