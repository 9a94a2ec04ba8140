// What Compile makes of a backend that fails.

#include "backends/compile.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;

// Says that it has kernels for everything, and then has none.
class EmptyBackend : public Backend {
 public:
  std::string_view name() const override { return "empty"; }
  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override {
    if (options.isa == "mmx") return InvalidArgument() << "there is no mmx";
    return Target{.threads = options.threads, .isa = options.isa, .fusion = {}, .loops = {}, .fingerprint = "empty"};
  }
  absl::StatusOr<std::unique_ptr<Device>> MakeDevice() const override { return CreateHostDevice(); }
  bool Supports(const Node&) const override { return true; }
  absl::StatusOr<Program> Lower(const Graph& graph, const Target&) const override {
    return Unimplemented() << "there is no kernel for " << graph.nodes().front().Describe();
  }
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

}  // namespace
}  // namespace lockstep
