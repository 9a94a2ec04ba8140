// Which attention has a kernel on GPUs. //backends/conformance compares the kernels with the interpreter.

#include <string>

#include "backends/cuda/cuda_backend.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

// True if the cuda backend has a kernel for attention of q [2, 3, 5, size], of 7 keys, and also for its gradients.
bool HasKernels(const std::string& dtype, int64_t size, int64_t value_size, bool tf32 = false) {
  const std::string keys = std::to_string(size) + "]", values = std::to_string(value_size) + "]",
                    statistics = std::string(dtype == "f64" ? "f64" : "f32") + "[2,3,5]", q = dtype + "[2,3,5," + keys,
                    k = dtype + "[2,3,7," + keys, v = dtype + "[2,3,7," + values, y = dtype + "[2,3,5," + values;
  const Graph graph = ParseForTest("graph @f(%q: " + q + ", %k: " + k + ", %v: " + v + ", %dy: " + y +
                                   ", %delta: " + statistics + ") -> (y: " + y + ", dq: " + q + ", dk: " + k +
                                   ", dv: " + v + ") {\n%y, %l = attention %q, %k, %v " + "{scale=1} : " + y + ", " +
                                   statistics + "\n%dq, %dk, %dv = attention_grad %q, %k, %v, %l, %dy, " +
                                   "%delta {scale=1} : " + q + ", " + k + ", " + v + "\nreturn %y, %dq, %dk, %dv\n}");
  TargetOptions options;
  options.isa = "h200";
  options.tf32 = tf32;
  const auto target = CreateCudaBackend()->MakeTarget(options);
  EXPECT_TRUE(target.ok()) << target.status();
  size_t count = 0;
  for (const Node& node : graph.nodes()) count += target->supports(node) ? 1 : 0;
  EXPECT_TRUE(count == 0 || count == graph.nodes().size());
  return count > 0;
}

TEST(Attention, HasKernelsFor16BitsAndForF32UnderTf32) {
  EXPECT_TRUE(HasKernels("bf16", 64, 64));
  EXPECT_TRUE(HasKernels("f16", 64, 64));
  EXPECT_FALSE(HasKernels("f32", 64, 64));
  EXPECT_TRUE(HasKernels("f32", 64, 64, /*tf32=*/true));
  EXPECT_FALSE(HasKernels("f64", 64, 64, /*tf32=*/true));
}

TEST(Attention, HasKernelsForRowsOfMultiplesOf16BytesUpTo128Elements) {
  EXPECT_TRUE(HasKernels("bf16", 8, 128));
  EXPECT_TRUE(HasKernels("bf16", 72, 40));
  EXPECT_FALSE(HasKernels("bf16", 4, 8));
  EXPECT_FALSE(HasKernels("bf16", 8, 12));
  EXPECT_FALSE(HasKernels("bf16", 136, 8));
  EXPECT_FALSE(HasKernels("bf16", 8, 136));
  EXPECT_TRUE(HasKernels("f32", 4, 12, /*tf32=*/true));
  EXPECT_FALSE(HasKernels("f32", 6, 12, /*tf32=*/true));
}

}  // namespace
}  // namespace lockstep::cuda
