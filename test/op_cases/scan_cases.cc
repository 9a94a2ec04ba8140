#include "core/printer.h"
#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap Loop(std::string_view body, int64_t length, int64_t carried, int64_t scanned, int64_t summed = 0,
                  bool reverse = false) {
  absl::StatusOr<Graph> graph = ParseGraph(body);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return {{"body", Region(*std::move(graph))},
          {"length", length},
          {"carried", carried},
          {"scanned", scanned},
          {"summed", summed},
          {"reverse", reverse}};
}

// h' = tanh(x + h w), which is also stacked, and the sum of the squares of h.
constexpr std::string_view kRecurrence = R"(
graph @recurrence(%h: f64[6,3], %x: f64[6,3], %w: f64[3,3]) -> (next: f64[6,3], y: f64[6,3], s: f64[3]) {
  %0 = matmul %h, %w : f64[6,3]
  %1 = add %x, %0 : f64[6,3]
  %next = tanh %1 : f64[6,3]
  %2 = mul %h, %h : f64[6,3]
  %s = reduce_sum %2 {dims=[0]} : f64[3]
  return %next, %next, %s
})";

// Two carried values, one of them not a float, and a weight that is used twice.
constexpr std::string_view kTwoCarried = R"(
graph @two(%a: f64[2,6], %i: i64[], %x: f64[2,6], %y: f64[2,6], %w: f64[6,6]) ->
    (a: f64[2,6], i: i64[], old: f64[2,6], turn: i64[]) {
  %one = constant {value=dense<i64[]: 1>} : i64[]
  %i.next = add %i, %one : i64[]
  %0 = matmul %a, %w : f64[2,6]
  %1 = mul %0, %x : f64[2,6]
  %2 = matmul %1, %w {transpose_b=true} : f64[2,6]
  %3 = add %2, %y : f64[2,6]
  %a.next = tanh %3 : f64[2,6]
  return %a.next, %i.next, %a, %i
})";

// No carried value: a map, whose sum is a weight's gradient.
constexpr std::string_view kMap = R"(
graph @map(%x: f64[6,2], %y: f64[6,3], %w: f64[2,3]) -> (z: f64[6,3], dw: f64[2,3]) {
  %0 = matmul %x, %w : f64[6,3]
  %z = mul %0, %y : f64[6,3]
  %dw = matmul %x, %z {transpose_a=true} : f64[2,3]
  return %z, %dw
})";

// A power: no scanned operand.
constexpr std::string_view kPower = R"(
graph @power(%p: f64[6], %x: f64[6]) -> (p: f64[6]) {
  %0 = mul %p, %x : f64[6]
  return %0
})";

// Two carried values are swapped in each iteration, and a third never changes.
constexpr std::string_view kSwap = R"(
graph @swap(%a: f64[6], %b: f64[6], %c: f64[6]) -> (b: f64[6], a: f64[6], c: f64[6], s: f64[6]) {
  %s = mul %a, %c : f64[6]
  return %b, %a, %c, %s
})";

// A loop in a loop.
constexpr std::string_view kNested = R"(
graph @outer(%h: f64[6], %x: f64[3,6], %w: f64[6]) -> (h: f64[6], ys: f64[3,6]) {
  %last, %ys = scan %h, %x, %w {carried=1, length=3, reverse=true, scanned=1, body=
    graph @inner(%g: f64[6], %v: f64[6], %u: f64[6]) -> (g: f64[6], y: f64[6]) {
      %0 = mul %g, %u : f64[6]
      %1 = add %0, %v : f64[6]
      %2 = sin %1 : f64[6]
      return %2, %1
    }} : f64[6], f64[3,6]
  return %last, %ys
})";

// Products that do not depend on other iterations: before the loop, after it, and as sums. One of them is carried,
// stacked twice and summed.
constexpr std::string_view kProducts = R"(
graph @products(%a: f64[6,4], %x: f64[6,3], %w: f64[3,4]) ->
    (p: f64[6,4], p1: f64[6,4], p2: f64[6,4], q: f64[6,3], s: f64[6,4], dw: f64[3,4], same: f64[3,4]) {
  %p = matmul %x, %w : f64[6,4]
  %q = matmul %a, %w {transpose_b=true} : f64[6,3]
  %dw = matmul %x, %a {transpose_a=true} : f64[3,4]
  return %p, %p, %p, %q, %p, %dw, %dw
})";

// A carried value that is stacked before and after its update, another carried value equal to it, and sums of two
// dtypes.
constexpr std::string_view kTwice = R"(
graph @twice(%a: f64[6], %b: f64[6], %c: f64[6], %x: f64[6]) ->
    (b: f64[6], v: f64[6], same: f64[6], old: f64[6], new: f64[6], x: f64[6], s: bf16[6], n: i64[]) {
  %0 = mul %a, %x : f64[6]
  %v = add %0, %c : f64[6]
  %s = convert %v {dtype=bf16} : bf16[6]
  %n = constant {value=dense<i64[]: 1>} : i64[]
  return %b, %v, %v, %a, %v, %x, %s, %n
})";

// Products that are not rows of one large product: of transposed rows, of batches, of rows in several dimensions, and
// sums of those. One is stacked twice.
constexpr std::string_view kKeptProducts = R"(
graph @kept(%x: f64[3,6], %y: f64[2,6,3], %z: f64[4,3], %w: f64[3,4], %u: f64[2,3,4]) ->
    (t: f64[6,4], t2: f64[6,4], b: f64[2,6,4], r: f64[2,6,4], s: f64[6,4], s2: f64[2,3,3], s3: f64[3,3]) {
  %t = matmul %x, %w {transpose_a=true} : f64[6,4]
  %b = matmul %y, %u : f64[2,6,4]
  %r = matmul %y, %w : f64[2,6,4]
  %s = matmul %x, %z {transpose_a=true, transpose_b=true} : f64[6,4]
  %s2 = matmul %y, %y {transpose_a=true} : f64[2,3,3]
  %s3 = matmul %y, %y {sum_batch=true, transpose_a=true} : f64[3,3]
  return %t, %t, %b, %r, %s, %s2, %s3
})";

constexpr std::string_view kChangesType = R"(
graph @f(%a: f32[2]) -> (a: f32[]) {
  %0 = reduce_sum %a {dims=[0]} : f32[]
  return %0
})";

constexpr std::string_view kScanWithState = R"(
graph @f(state %w: f32[2]) -> (w: f32[2]) {
  %0 = neg %w : f32[2]
  return %0
})";

constexpr std::string_view kScanWithCollective = R"(
mesh {data=2}
graph @f(%x: f32[2] partial(sum)) -> (sum: f32[2]) {
  %0 = all_reduce %x {axis=data, kind=sum} : f32[2]
  return %0
})";

constexpr std::string_view kSumsBools = R"(
graph @f(%a: bool[2]) -> (a: bool[2]) {
  %0 = not %a : bool[2]
  return %0
})";

}  // namespace

std::vector<OpCase> ScanCases() {
  const auto recurrence = [](int64_t length, bool reverse) {
    return Case("scan", {F64({6, 3}), F64({length, 6, 3}), F64({3, 3})}, Loop(kRecurrence, length, 1, 1, 1, reverse));
  };
  const AttributeMap without_result = {{"body", Region(Graph("without_result"))}, {"length", int64_t{1}}};
  return {
      recurrence(4, false),
      recurrence(4, true),
      recurrence(1, false),
      Case("scan", {F64({6, 3}), F64({0, 6, 3}), F64({3, 3})}, Loop(kRecurrence, 0, 1, 1, 1)).ZeroGradient({1, 2}),
      Case("scan", {F64({2, 6}), I64({}), F64({3, 2, 6}), F64({3, 2, 6}), F64({6, 6}).In(-0.5, 0.5)},
           Loop(kTwoCarried, 3, 2, 2)),
      Case("scan", {F64({4, 6, 2}), F64({4, 6, 3}), F64({2, 3})}, Loop(kMap, 4, 0, 2, 1)),
      Case("scan", {F64({6}), F64({6})}, Loop(kPower, 5, 1, 0)),
      Case("scan", {F64({6}), F64({6}), F64({6})}, Loop(kSwap, 3, 3, 0, 1)),
      Case("scan", {F64({6}), F64({2, 3, 6}), F64({6})}, Loop(kNested, 2, 1, 1)),
      Case("scan", {F64({6, 4}), F64({5, 6, 3}), F64({3, 4})}, Loop(kProducts, 5, 1, 1, 3, true)),
      Case("scan", {F64({5, 3, 6}), F64({5, 2, 6, 3}), F64({5, 4, 3}), F64({3, 4}), F64({2, 3, 4})},
           Loop(kKeptProducts, 5, 0, 3, 3)),
      Case("scan", {F64({6}), F64({6}), F64({6}), F64({3, 6})}, Loop(kTwice, 3, 3, 1, 2))
          .GradientOf({0, 1, 2, 3, 4, 5}),
      Case("scan", {F64({6})}, Loop(kPower, 5, 1, 0)).Refused("C1"),
      Case("scan", {F64({6}), F64({6})}, Loop(kPower, 5, 1, 2)).Refused("C1"),
      Case("scan", {F64({6}), F64({6})}, Loop(kPower, 5, -1, 0)).Refused("C1"),
      Case("scan", {}, without_result).Refused("C2"),
      Case("scan", {F64({6}), F64({6})}, Loop(kPower, 5, 1, 0, 1)).Refused("C2"),
      Case("scan", {F64({6}), F64({6})}, Loop(kPower, -1, 1, 0)).Refused("C3"),
      Case("scan", {F64({6}), F64({5, 6})}, Loop(kPower, 5, 1, 0)).Refused("C4"),
      Case("scan", {F64({6}), F64({6, 6})}, Loop(kPower, 5, 1, 1)).Refused("C4"),
      Case("scan", {F32({2})}, Loop(kChangesType, 5, 1, 0)).Refused("C5"),
      Case("scan", {F32({2})}, Loop(kScanWithState, 5, 0, 0)).Refused("C6"),
      Case("scan", {F32({2})}, Loop(kScanWithCollective, 5, 0, 0)).Refused("C6"),
      Case("scan", {Bool({2})}, Loop(kSumsBools, 5, 0, 0, 1)).Refused("C7"),
  };
}

}  // namespace lockstep
