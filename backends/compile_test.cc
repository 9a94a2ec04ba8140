// The programs that Compile takes, and its messages for ranks that share no work and for a backend that fails.

#include "backends/compile.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

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
