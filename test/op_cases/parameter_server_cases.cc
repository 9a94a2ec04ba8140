#include "core/printer.h"
#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap ToServer(std::string axis) { return {{"axis", std::move(axis)}, {"key", "w"}}; }

AttributeMap ByServer(std::string_view update) {
  absl::StatusOr<Graph> graph = ParseGraph(update);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return {{"key", "w"}, {"update", Region(*std::move(graph))}};
}

constexpr std::string_view kMomentum = R"(
graph @update(%gradient: f64[6,4], state %value: f64[6,4], state %value/v: f64[6,4], setting %rate: f64[] in [0.0, inf) = 0.5) -> (%value: f64[6,4], %value/v: f64[6,4]) {
  %next, %v = sgd_momentum %value, %value/v, %gradient {learning_rate=%rate, momentum=0.9} : f64[6,4], f64[6,4]
  return %next, %v
})";

constexpr std::string_view kUpdateOfNothing = R"(
graph @update(%gradient: f64[0], state %value: f64[0]) -> (%value: f64[0]) {
  %next = sgd %value, %gradient {learning_rate=0.5} : f64[0]
  return %next
})";

constexpr std::string_view kWithInput = R"(
graph @update(%gradient: f32[2], state %value: f32[2], %rate: f64[]) -> (%value: f32[2]) {
  %next = sgd %value, %gradient {learning_rate=%rate} : f32[2]
  return %next
})";

constexpr std::string_view kUpdateWithCollective = R"(
mesh {data=2}
graph @update(%gradient: f32[2] partial(sum), state %value: f32[2]) -> (%value: f32[2]) {
  %sum = all_reduce %gradient {axis=data, kind=sum} : f32[2]
  %next = sgd %value, %sum {learning_rate=0.5} : f32[2]
  return %next
})";

constexpr std::string_view kWithoutNext = R"(
graph @update(%gradient: f32[2], state %value: f32[2]) -> (next: f32[2]) {
  %next = sgd %value, %gradient {learning_rate=0.5} : f32[2]
  return %next
})";

}  // namespace

std::vector<OpCase> ParameterServerCases() {
  std::vector<OpCase> rows;
  for (int64_t ranks : {1, 2, 3, 4}) rows.push_back(Case("push", {F64({2, 3})}, ToServer("data")).Ranks(ranks));
  rows.push_back(Case("push", {BF16({4})}, ToServer("data")).Ranks(3));
  rows.push_back(Case("push", {F32({0, 2})}, ToServer("data")).Ranks(2));
  AttributeMap asynchronous = ToServer("data");
  asynchronous["synchronous"] = false;
  asynchronous["max_staleness"] = int64_t{3};
  rows.push_back(Case("push", {F32({2, 3})}, asynchronous).Ranks(1));
  rows.push_back(Case("push", {F32({2})}, ToServer("model")).Ranks(2).Refused("C1"));
  rows.push_back(Case("push", {I32({2})}, ToServer("data")).Ranks(2).Refused("C2"));
  rows.push_back(Case("push", {F32({2, 3})}, asynchronous).Ranks(2).Refused("C3"));
  AttributeMap bounded = ToServer("data");
  bounded["max_staleness"] = int64_t{3};
  rows.push_back(Case("push", {F32({2})}, bounded).Ranks(2).Refused("C4"));
  bounded["max_staleness"] = int64_t{-2};
  rows.push_back(Case("push", {F32({2})}, bounded).Ranks(2).Refused("range"));

  rows.push_back(Case("pull", {F64({6, 4}), F64({6, 4}), F64({6, 4}), F64({}).In(0.1, 1)}, ByServer(kMomentum)));
  rows.push_back(Case("pull", {F64({0}), F64({0})}, ByServer(kUpdateOfNothing)));
  rows.push_back(Case("pull", {F64({6, 4}), F64({6, 4})}, ByServer(kMomentum)).Refused("C1"));
  rows.push_back(Case("pull", {F64({2}), F64({0})}, ByServer(kUpdateOfNothing)).Refused("C1"));
  rows.push_back(Case("pull", {F32({2}), F32({2}), F64({})}, ByServer(kWithInput)).Refused("C2"));
  rows.push_back(Case("pull", {F32({2}), F32({2})}, ByServer(kUpdateWithCollective)).Refused("C3"));
  rows.push_back(Case("pull", {F32({2}), F32({2})}, ByServer(kWithoutNext)).Refused("C4"));
  return rows;
}

}  // namespace lockstep
