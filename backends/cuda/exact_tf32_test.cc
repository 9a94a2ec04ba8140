#include "backends/cuda/exact_tf32.h"

#include "gtest/gtest.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

// Returns whether TF32 is exact for the last node of a body with the operands %a and %b.
bool IsExact(const std::string& lines) {
  const Graph graph = ParseForTest(
      "graph @f(%h: f16[4,4], %b16: bf16[4,4], %f: f32[4,4], %d: f64[4,4], %i: i8[4,4]) -> (y: f32[4,4]) {\n" + lines +
      "\n%y = matmul %a, %b : f32[4,4]\nreturn %y\n}");
  const Node* last = nullptr;
  for (const Node& node : graph.nodes()) last = &node;
  return IsExactInTf32(*last);
}

TEST(IsExactInTf32, OfConvertedNumbersOf16Bits) {
  EXPECT_TRUE(IsExact("%a = convert %h {dtype=f32} : f32[4,4]\n%b = convert %b16 {dtype=f32} : f32[4,4]"));
  EXPECT_TRUE(
      IsExact("%1 = convert %h {dtype=f32} : f32[4,4]\n%a = transpose %1 {permutation=[1, 0]} : f32[4,4]\n"
              "%b = convert %b16 {dtype=f32} : f32[4,4]"));
}

TEST(IsExactInTf32, NotOfOtherNumbers) {
  const std::string b = "\n%b = convert %b16 {dtype=f32} : f32[4,4]";
  EXPECT_FALSE(IsExact("%a = tanh %f : f32[4,4]" + b));
  EXPECT_FALSE(IsExact("%a = convert %d {dtype=f32} : f32[4,4]" + b));
  EXPECT_FALSE(IsExact("%a = convert %i {dtype=f32} : f32[4,4]" + b));
  EXPECT_FALSE(IsExact("%1 = convert %h {dtype=f32} : f32[4,4]\n%a = add %1, %1 : f32[4,4]" + b));
  EXPECT_FALSE(IsExact("%a = concat %f {dim=0} : f32[4,4]" + b));
}

// The operands are results of fusions, whose bodies convert them or pass them on.
TEST(IsExactInTf32, OfFusions) {
  const auto fused = [](const std::string& body) {
    return IsExact(
        "%c = convert %h {dtype=f32} : f32[4,4]\n%a = fusion %h, %f, %c {body=graph @body(%x: f16[4,4], %g: f32[4,4], "
        "%c: "
        "f32[4,4]) -> (y: f32[4,4]) {\n" +
        body + "\nreturn %y\n}} : f32[4,4]\n%b = convert %b16 {dtype=f32} : f32[4,4]");
  };
  EXPECT_TRUE(fused("%1 = tanh %x : f16[4,4]\n%y = convert %1 {dtype=f32} : f32[4,4]"));
  EXPECT_TRUE(fused("%y = transpose %c {permutation=[1, 0]} : f32[4,4]"));
  EXPECT_FALSE(fused("%y = transpose %g {permutation=[1, 0]} : f32[4,4]"));
  EXPECT_FALSE(fused("%1 = convert %x {dtype=f32} : f32[4,4]\n%y = tanh %1 : f32[4,4]"));
}

}  // namespace
}  // namespace lockstep::cuda
