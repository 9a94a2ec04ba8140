// The layouts in which a program for a GPU computes its values, and its reorders (docs/decisions/0006). Nothing runs.

#include <string>
#include <vector>

#include "backends/compile.h"
#include "backends/cuda/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

using testing::ElementsAre;

// Returns the steps of a program in bf16 that begins with a convolution, whose result is %z, each with its result:
// "ptx.tanh %t:channels-last". The steps up to the convolution are not among them.
std::vector<std::string> StepsAfterConvolution(const std::string& body, const std::string& results,
                                               const std::string& inputs = "") {
  const Graph graph = ParseForTest(
      "graph @f(%x: bf16[4,8,6,4], %k: bf16[8,8,3,3]" + inputs + ") -> (" + results +
      ") {\n%z = convolution %x, %k {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : "
      "bf16[4,8,6,4]\n" +
      body + "}\n");
  CompileOptions options;
  options.isa = "h200";
  const absl::StatusOr<Executable> executable = Compile(graph.Clone(), *CreateCudaBackend(), options);
  EXPECT_TRUE(executable.ok()) << executable.status();
  std::vector<std::string> steps;
  if (!executable.ok()) return steps;
  bool after = false;
  for (const auto& step : executable->steps) {
    const StepInfo& info = step->info();
    const StepOperand& result = info.writes.front();
    if (after) steps.push_back(info.name + " %" + result.name + (result.layout.empty() ? "" : ":" + result.layout));
    after = after || result.name == "z";
  }
  return steps;
}

// A loop's results, and what only a change of the shape separates from them, are written as they are needed.
TEST(Layouts, ALoopWritesRowsForReadersThatTakeOnlyRows) {
  EXPECT_THAT(StepsAfterConvolution("%t = tanh %z : bf16[4,8,6,4]\nreturn %t\n", "t: bf16[4,8,6,4]"),
              ElementsAre("ptx.tanh %t"));
  EXPECT_THAT(
      StepsAfterConvolution("%t = tanh %z : bf16[4,8,6,4]\n%s = reshape %t {shape=[4,192]} : bf16[4,192]\nreturn %s\n",
                            "s: bf16[4,192]"),
      ElementsAre("ptx.tanh %t"));
}

constexpr char kPool[] = " {include_padding=false, padding_high=[0,0], padding_low=[0,0], stride=[2,2], window=[2,2]";

TEST(Layouts, APoolWritesWhatItsReadersNeed) {
  EXPECT_THAT(StepsAfterConvolution("%p = avg_pool %z" + std::string(kPool) +
                                        "} : bf16[4,8,3,2]\n%s = reshape %p {shape=[4,48]} : bf16[4,48]\nreturn %s\n",
                                    "s: bf16[4,48]"),
              ElementsAre("cuda.avg_pool %p"));
  EXPECT_THAT(StepsAfterConvolution(
                  "%g = avg_pool_grad %d" + std::string(kPool) +
                      ", input_shape=[4,8,6,4]} : bf16[4,8,6,4]\n%w = convolution_grad_filter %x, %g {dilation=[1,1], "
                      "filter_shape=[8,8,3,3], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : bf16[8,8,3,3]\n"
                      "%h = reduce_sum %z {dims=[0,2,3]} : bf16[8]\nreturn %w, %h\n",
                  "w: bf16[8,8,3,3], h: bf16[8]", ", %d: bf16[4,8,3,2]"),
              testing::Contains("cuda.avg_pool_grad %g:channels-last"));
}

}  // namespace
}  // namespace lockstep::cuda
