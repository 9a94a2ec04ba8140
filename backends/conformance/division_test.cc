// Integer division by zero: the compiled program fails like the interpreter and names the node that divided.

#include <optional>

#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Returns the messages of the interpreter and of the compiled program.
std::pair<std::string, std::string> Errors(std::string_view text, const std::vector<Tensor>& inputs, int threads) {
  const absl::StatusOr<Graph> graph = ParseGraph(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  CompileOptions options;
  options.threads = threads;
  return {std::string(InterpretOneRank(*graph, inputs).status().message()),
          std::string(RunInProcess(*graph, TestedBackend(), {inputs}, options).status().message())};
}

Tensor Fives(Shape shape, std::optional<int64_t> zero_at = std::nullopt) {
  Tensor tensor = Tensor::Full({DType::kI32, std::move(shape)}, 5);
  if (zero_at) tensor.mutable_data<int32_t>()[static_cast<size_t>(*zero_at)] = 0;
  return tensor;
}

constexpr char kTwoDivisions[] = R"(
graph @f(%x: i32[100003], %y: i32[100003], %z: i32[100003]) -> (r: i32[100003]) {
  %a = div %x, %y : i32[100003] @"onnx:/first/Div"
  %b = add %a, %x : i32[100003] @"onnx:/Add"
  %r = div %b, %z : i32[100003] @"onnx:/second/Div"
  return %r
})";

TEST(Division, TheNodeOfAFusionThatDividedIsNamed) {
  for (int threads : {1, 2}) {
    for (int64_t at : {int64_t{0}, int64_t{50001}, int64_t{100002}}) {
      SCOPED_TRACE(std::to_string(threads) + " threads, zero at " + std::to_string(at));
      const Shape shape = {100003};
      const auto first = Errors(kTwoDivisions, {Fives(shape), Fives(shape, at), Fives(shape)}, threads);
      EXPECT_EQ(first.first, "div: integer division by zero, at onnx:/first/Div");
      EXPECT_THAT(first.second, HasSubstr(first.first));
      const auto second = Errors(kTwoDivisions, {Fives(shape), Fives(shape), Fives(shape, at)}, threads);
      EXPECT_EQ(second.first, "div: integer division by zero, at onnx:/second/Div");
      EXPECT_THAT(second.second, HasSubstr(second.first));
      EXPECT_EQ(Errors(kTwoDivisions, {Fives(shape), Fives(shape), Fives(shape)}, threads).second, "");
    }
  }
}

TEST(Division, InFrontOfAReductionToo) {
  const auto errors = Errors(R"(
graph @f(%x: i32[300,400], %y: i32[300,400]) -> (r: i32[]) {
  %q = div %x, %y : i32[300,400] @"onnx:/Div"
  %r = reduce_sum %q {dims=[0,1]} : i32[]
  return %r
})",
                             {Fives({300, 400}), Fives({300, 400}, 119'999)}, 2);
  EXPECT_EQ(errors.first, "div: integer division by zero, at onnx:/Div");
  EXPECT_THAT(errors.second, HasSubstr(errors.first));
}

// The division comes after the reduction, in the loop's finish function.
TEST(Division, ByAReducedValue) {
  const auto errors = Errors(R"(
graph @f(%x: i32[300,400], %y: i32[]) -> (r: i32[]) {
  %s = reduce_sum %x {dims=[0,1]} : i32[]
  %r = div %s, %y : i32[] @"onnx:/Div"
  return %r
})",
                             {Fives({300, 400}), Tensor::Full({DType::kI32, {}}, 0)}, 2);
  EXPECT_EQ(errors.first, "div: integer division by zero, at onnx:/Div");
  EXPECT_THAT(errors.second, HasSubstr(errors.first));
}

TEST(Division, WhatItLeaves) {
  for (const std::string op : {"fmod", "remainder"}) {
    const auto errors = Errors("graph @f(%x: i32[100], %y: i32[100]) -> (r: i32[100]) { %r = " + op +
                                   " %x, %y : i32[100] @\"onnx:/Mod\" return %r }",
                               {Fives({100}), Fives({100}, 37)}, 1);
    EXPECT_EQ(errors.first, op + ": integer division by zero, at onnx:/Mod");
    EXPECT_THAT(errors.second, HasSubstr(errors.first));
  }
}

TEST(Division, NegativePowerOfZero) {
  const auto errors = Errors(R"(
graph @f(%x: i32[3], %y: i32[3]) -> (r: i32[3]) {
  %r = pow %x, %y : i32[3] @"onnx:/Pow"
  return %r
})",
                             {Fives({3}, 1), Tensor::Full({DType::kI32, {3}}, -1)}, 1);
  EXPECT_EQ(errors.first, "pow: integer division by zero, at onnx:/Pow");
  EXPECT_THAT(errors.second, HasSubstr(errors.first));
}

}  // namespace
}  // namespace lockstep
