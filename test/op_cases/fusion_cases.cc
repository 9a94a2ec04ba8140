#include "core/printer.h"
#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap Body(std::string_view text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return {{"body", Region(*std::move(graph))}};
}

constexpr std::string_view kScaledSum = R"(
graph @scaled_sum(%x: f64[6,4], %y: f64[4]) -> (scaled: f64[6,4], sum: f64[6]) {
  %0 = broadcast %y {dims=[1], shape=[6,4]} : f64[6,4]
  %1 = mul %x, %0 : f64[6,4]
  %2 = exp %1 : f64[6,4]
  %3 = reduce_sum %2 {dims=[1]} : f64[6]
  return %1, %3
})";

constexpr std::string_view kEmpty = R"(
graph @empty(%x: f64[0,4], %y: f64[2,0]) -> (sum: f64[4], largest: f64[2]) {
  %0 = exp %x : f64[0,4]
  %1 = reduce_sum %0 {dims=[0]} : f64[4]
  %2 = reduce_max %y {dims=[1]} : f64[2]
  return %1, %2
})";

constexpr std::string_view kOfNothing = R"(
graph @of_nothing() -> (ones: f32[6]) {
  %0 = constant {value=dense<f32[]: 1.0>} : f32[]
  %1 = broadcast %0 {dims=[], shape=[6]} : f32[6]
  return %1
})";

constexpr std::string_view kWithState = R"(
graph @with_state(state %w: f32[2]) -> (negative: f32[2]) {
  %0 = neg %w : f32[2]
  return %0
})";

constexpr std::string_view kWithCollective = R"(
mesh {data=2}
graph @with_collective(%x: f32[2] partial(sum)) -> (sum: f32[2]) {
  %0 = all_reduce %x {axis=data, kind=sum} : f32[2]
  return %0
})";

}  // namespace

std::vector<OpCase> FusionCases() {
  const AttributeMap without_result = {{"body", Region(Graph("without_result"))}};
  return {
      Case("fusion", {F64({6, 4}), F64({4})}, Body(kScaledSum)),
      Case("fusion", {}, Body(kOfNothing)),
      Case("fusion", {F64({0, 4}), F64({2, 0})}, Body(kEmpty)),
      Case("fusion", {F64({6, 4})}, Body(kScaledSum)).Refused("C1"),
      Case("fusion", {F64({6, 4}), F32({4})}, Body(kScaledSum)).Refused("C1"),
      Case("fusion", {F32({2})}, Body(kWithState)).Refused("C2"),
      Case("fusion", {F32({2})}, Body(kWithCollective)).Refused("C3"),
      Case("fusion", {}, without_result).Refused("C4"),
  };
}

}  // namespace lockstep
