// Values that share memory, through the compiler and the executor: a value that is still needed must not be
// overwritten. In each graph, a single condition of the planner keeps two values apart; the checks of the steps ensure
// that this is still so.

#include "backends/backend.h"
#include "backends/compile.h"
#include "backends/conformance/compare_with_interpreter.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Compares with the interpreter and returns the steps as text.
std::string RunAndPrint(std::string_view text) {
  const absl::StatusOr<Graph> graph = ParseGraph(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  ExpectAgreesWithInterpreter(*graph, RandomInputs(*graph, 1), 1e-5, CompileOptions());
  const auto backend = CreateBackend("cpu");
  EXPECT_TRUE(backend.ok()) << backend.status();
  const absl::StatusOr<Executable> executable = Compile(graph->Clone(), **backend, CompileOptions());
  EXPECT_TRUE(executable.ok()) << executable.status();
  return executable->ToString();
}

int Count(const std::string& text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The reduction works in place, in the bucket: a value that is read afterwards has to be copied there.
TEST(Aliasing, AValueThatIsReadAfterItsAllReduce) {
  const std::string steps = RunAndPrint(R"(
mesh {data=2}
local graph @f(%x: f32[8,8] local, %w: f32[8,8]) -> (y: f32[8,8] local, z: f32[8,8]) {
  %a = matmul %x, %w : f32[8,8] local
  %g = all_reduce %a {axis=data, kind=sum} : f32[8,8]
  %z = matmul %g, %w : f32[8,8]
  %y = matmul %a, %z : f32[8,8] local
  return %y, %z
})");
  EXPECT_EQ(Count(steps, "copy"), 1) << steps;
  EXPECT_EQ(Count(steps, "all_reduce.start"), 1) << steps;
}

// Without the last read it needs no copy.
TEST(Aliasing, AValueThatIsNotReadAfterItsAllReduce) {
  const std::string steps = RunAndPrint(R"(
mesh {data=2}
local graph @f(%x: f32[8,8] local, %w: f32[8,8]) -> (z: f32[8,8]) {
  %a = matmul %x, %w : f32[8,8] local
  %g = all_reduce %a {axis=data, kind=sum} : f32[8,8]
  %z = matmul %g, %w : f32[8,8]
  return %z
})");
  EXPECT_EQ(Count(steps, "copy"), 0) << steps;
}

// The kernel that computes the next value still reads the old one while it writes.
TEST(Aliasing, AStateWhoseKernelStillReadsIt) {
  const std::string steps = RunAndPrint(R"(
graph @f(state %w: f32[64,64]) -> (%w: f32[64,64]) {
  %w1 = matmul %w, %w : f32[64,64]
  return %w1
})");
  EXPECT_EQ(Count(steps, "onednn.matmul"), 1) << steps;
}

// An elementwise loop could overwrite it, but the same loop also reads it transposed.
TEST(Aliasing, AStateThatALoopReadsInTwoOrders) {
  const std::string steps = RunAndPrint(R"(
graph @f(state %w: f32[64,64]) -> (%w: f32[64,64]) {
  %t = transpose %w {permutation=[1,0]} : f32[64,64]
  %w1 = sub %w, %t : f32[64,64]
  return %w1
})");
  EXPECT_EQ(Count(steps, "llvm."), 1) << steps;
}

// In the loop's first phase y could overwrite x, but the second phase reads x again.
TEST(Aliasing, AnOperandThatALaterPhaseOfTheLoopNeeds) {
  const std::string steps = RunAndPrint(R"(
graph @f(%in: f32[64,64], %w: f32[64,64]) -> (u: f32[64,64], v: f32[64,64]) {
  %x = matmul %in, %w : f32[64,64]
  %y = tanh %x : f32[64,64]
  %s = reduce_sum %y {dims=[1]} : f32[64]
  %b = broadcast %s {dims=[0], shape=[64,64]} : f32[64,64]
  %z = mul %x, %b : f32[64,64]
  %u = matmul %y, %w : f32[64,64]
  %v = matmul %z, %w : f32[64,64]
  return %u, %v
})");
  EXPECT_EQ(Count(steps, "llvm."), 1) << steps;
  EXPECT_EQ(Count(steps, "onednn.matmul"), 3) << steps;
}

}  // namespace
}  // namespace lockstep
