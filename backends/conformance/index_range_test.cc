// Indices out of range: the compiled program fails like the interpreter and names the op, the index and its source.

#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrograms[] = {
    R"(
graph @f(%x: f32[9,300], %i: i64[100]) -> (r: f32[100,300]) {
  %r = gather %x, %i {dim=0} : f32[100,300] @"onnx:/op"
  return %r
})",
    R"(
graph @f(%x: f32[100,300], %i: i64[100]) -> (r: f32[9,300]) {
  %r = scatter_sum %i, %x {dim=0, size=9} : f32[9,300] @"onnx:/op"
  return %r
})",
    R"(
graph @f(%x: f32[9,300], %i: i64[100], %u: f32[100,300]) -> (r: f32[9,300]) {
  %r = scatter %x, %i, %u {dim=0} : f32[9,300] @"onnx:/op"
  return %r
})",
};

TEST(IndexRange, ErrorsAreThoseOfTheInterpreter) {
  for (std::string_view text : kPrograms) {
    const absl::StatusOr<Graph> graph = ParseGraph(text);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (int64_t index : {-10, -9, 8, 9}) {
      std::vector<Tensor> inputs;
      for (const Input& input : graph->inputs()) inputs.emplace_back(input.value.type());
      inputs[1].mutable_data<int64_t>()[70] = index;
      const absl::Status interpreted = InterpretOneRank(*graph, inputs).status();
      const std::string message(interpreted.message());
      const bool in_range = index >= -9 && index < 9;
      EXPECT_EQ(interpreted.ok(), in_range) << interpreted;
      std::string said = message.substr(0, message.find(", at "));
      if (IsGpu() && !in_range) {  // a GPU kernel reports the error without its position
        said = said.substr(0, said.find("index ")) + "an index" + said.substr(said.find(" is outside"));
      }
      for (int threads : {1, 2}) {
        CompileOptions options;
        options.threads = threads;
        const absl::Status compiled = RunInProcess(*graph, TestedBackend(), {inputs}, options).status();
        EXPECT_EQ(compiled.ok(), in_range) << compiled;
        EXPECT_THAT(std::string(compiled.message()), testing::HasSubstr(said));
      }
      if (in_range) continue;
      EXPECT_THAT(std::string(interpreted.message()),
                  testing::AllOf(testing::HasSubstr("index " + std::to_string(index) + " at position [70]"),
                                 testing::HasSubstr("[-9, 9)"), testing::HasSubstr("onnx:/op")));
    }
  }
}

}  // namespace
}  // namespace lockstep
