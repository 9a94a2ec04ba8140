// Labels and indices out of range, which type inference cannot see: the message names the op, its source, the position
// and the value.

#include <gtest/gtest.h>

#include "core/interpreter.h"
#include "core/printer.h"

namespace lockstep {
namespace {

absl::Status StatusOf(const char* text, const std::vector<Tensor>& inputs) {
  const absl::StatusOr<Graph> graph = ParseGraph(text);
  if (!graph.ok()) return graph.status();
  return InterpretOneRank(*graph, inputs).status();
}

constexpr char kLoss[] = R"(graph @f(%x: f32[2,3,2], %labels: i64[2,2]) -> (loss: f32[]) {
  %loss, %dx = softmax_cross_entropy %x, %labels {scale=0.25} : f32[], f32[2,3,2] @"onnx:/loss"
  return %loss
})";

absl::Status LossStatus(const std::vector<int64_t>& labels) {
  return StatusOf(kLoss, {Tensor({DType::kF32, {2, 3, 2}}), Tensor::Of({2, 2}, labels)});
}

TEST(LabelRangeTest, NamesPositionAndValue) {
  EXPECT_TRUE(LossStatus({0, 1, 2, 0}).ok()) << LossStatus({0, 1, 2, 0});
  const absl::Status above = LossStatus({0, 1, 3, 0}), below = LossStatus({0, -1, 2, 0});
  EXPECT_EQ(above.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(above.message().find("softmax_cross_entropy (C5): label 3 at position [1, 0] is outside [0, 3)"),
            absl::string_view::npos)
      << above;
  EXPECT_NE(above.message().find("onnx:/loss"), absl::string_view::npos) << above;
  EXPECT_NE(below.message().find("label -1 at position [0, 1]"), absl::string_view::npos) << below;
}

TEST(IndexRangeTest, NamesPositionValueAndDimension) {
  const auto status = [](const std::vector<int32_t>& indices) {
    return StatusOf(R"(graph @f(%x: f32[3,5], %i: i32[2,2]) -> (y: f32[3,2,2]) {
  %y = gather %x, %i {dim=1} : f32[3,2,2] @"onnx:/embedding"
  return %y
})",
                    {Tensor({DType::kF32, {3, 5}}), Tensor::Of({2, 2}, indices)});
  };
  EXPECT_TRUE(status({4, 0, -5, -1}).ok()) << status({4, 0, -5, -1});
  EXPECT_EQ(
      status({4, 0, 5, -1}).message(),
      "gather (C6): index 5 at position [1, 0] is outside [-5, 5), the extent of dimension 1, at onnx:/embedding");
  EXPECT_NE(status({4, -6, 0, 0}).message().find("index -6 at position [0, 1]"), absl::string_view::npos);
}

}  // namespace
}  // namespace lockstep
