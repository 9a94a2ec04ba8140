#include "core/check.h"
#include "core/printer.h"
#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap On(std::string axis) { return {{"axis", std::move(axis)}}; }
AttributeMap On(std::string axis, int64_t dim) { return {{"axis", std::move(axis)}, {"dim", dim}}; }
AttributeMap On(std::string axis, std::string kind) { return {{"axis", std::move(axis)}, {"kind", std::move(kind)}}; }
AttributeMap On(std::string axis, int64_t dim, std::string kind) {
  return {{"axis", std::move(axis)}, {"dim", dim}, {"kind", std::move(kind)}};
}
AttributeMap From(std::string axis, int64_t root) { return {{"axis", std::move(axis)}, {"root", root}}; }
AttributeMap PartsOn(std::string axis, Ints shape, std::string kind = "sum") {
  return {{"axis", std::move(axis)}, {"shape", std::move(shape)}, {"kind", std::move(kind)}};
}

const std::string kData = "data";

std::vector<OpCase> ReducingCases() {
  std::vector<OpCase> rows;
  for (const char* kind : {"sum", "min", "max", "prod", "mean"}) {
    const AttributeMap attributes = On(kData, std::string(kind));
    for (int64_t ranks : {1, 2, 3, 4, 7}) rows.push_back(Case("all_reduce", {F64({2, 3})}, attributes).Ranks(ranks));
    rows.push_back(Case("all_reduce", {F64({2}), F64({}), F64({1, 3})}, attributes).Ranks(3));
    rows.push_back(Case("all_reduce", {BF16({4})}, attributes).Ranks(3));
    rows.push_back(Case("all_reduce", {I32({4}), U8({2})}, attributes).Ranks(2));
    rows.push_back(Case("all_reduce", {F32({0})}, attributes).Ranks(2).NoGradient("no elements"));
    rows.push_back(Case("all_reduce", {F32({2}), F32({0, 3})}, attributes).Ranks(2).NoGradient("no elements"));
    rows.push_back(Case("reduce_scatter", {F32({0, 2})}, On(kData, 0, kind)).Ranks(2).NoGradient("no elements"));
    rows.push_back(Case("reduce_scatter", {F32({2, 0})}, On(kData, 0, kind)).Ranks(2).NoGradient("no elements"));
    rows.push_back(Case("reduce_scatter", {I64({3, 2})}, On(kData, 0, kind)).Ranks(3));
    rows.push_back(
        Case("reduce_scatter", {F16({4, 2})}, On(kData, 1, kind)).Ranks(2).NoGradient("only sum and mean have one"));
  }
  rows.push_back(Case("all_reduce", {Tensor::Of<bool>({2}, {true, false})}, On(kData, "max")).Ranks(2));
  // All ranks have the same operand: ties, and zero factors on every rank.
  rows.push_back(Case("all_reduce", {Tensor::Of<double>({2}, {1, 0})}, On(kData, "max"))
                     .Ranks(2)
                     .NoGradient("no differences at ties"));
  rows.push_back(Case("all_reduce", {Tensor::Of<double>({2}, {0, 3})}, On(kData, "prod")).Ranks(3));
  rows.push_back(Case("all_reduce", {F32({2})}, {{"axis", kData}, {"kind", "sum"}, {"bucket", int64_t{2}}}).Ranks(2));
  const auto wire = [](std::string kind, std::string dtype) {
    return AttributeMap{{"axis", kData}, {"kind", std::move(kind)}, {"wire", std::move(dtype)}};
  };
  rows.push_back(Case("all_reduce", {F32({2, 3}), F32({5})}, wire("sum", "bf16")).Ranks(3));
  rows.push_back(Case("all_reduce", {F32({2, 3})}, wire("mean", "bf16")).Ranks(2));
  rows.push_back(Case("all_reduce", {F32({2, 3}), F32({600})}, wire("sum", "int8")).Ranks(3));
  rows.push_back(Case("all_reduce", {F32({0}), F32({5})}, wire("sum", "int8")).Ranks(2).NoGradient("no elements"));
  rows.push_back(Case("all_reduce", {F32({7})}, wire("sum", "int8")).Ranks(1));
  rows.push_back(Case("all_reduce", {F32({2})}, wire("mean", "int8")).Ranks(2).Refused("C4"));
  rows.push_back(Case("all_reduce", {BF16({2})}, wire("sum", "int8")).Ranks(2).Refused("C4"));
  rows.push_back(Case("all_reduce", {F32({2})}, wire("sum", "f16")).Ranks(2).Refused("C4"));
  rows.push_back(Case("all_reduce", {F32({2})}, wire("max", "bf16")).Ranks(2).Refused("C4"));
  rows.push_back(Case("all_reduce", {F32({2}), F64({2})}, wire("sum", "bf16")).Ranks(2).Refused("C4"));
  rows.push_back(Case("all_reduce", {F32({2})}, On("model", "sum")).Ranks(2).Refused("C1"));
  rows.push_back(Case("all_reduce", {F32({2})}, On(kData, "sum")).Refused("C1"));  // no mesh at all
  rows.push_back(Case("all_reduce", {F32({2})}, On(kData, "average")).Ranks(2).Refused("C2"));
  rows.push_back(Case("all_reduce", {F32({2}), Bool({2})}, On(kData, "sum")).Ranks(2).Refused("C3"));

  for (const char* kind : {"sum", "mean"}) {
    rows.push_back(Case("reduce_scatter", {F64({4, 3})}, On(kData, 0, kind)).Ranks(2));
    rows.push_back(Case("reduce_scatter", {F32({2, 6, 1})}, On(kData, 1, kind)).Ranks(3));
    rows.push_back(Case("reduce_scatter", {F64({2})}, On(kData, 0, kind)).Ranks(1));
    rows.push_back(Case("reduce_scatter", {F64({3}), F64({6, 2}), F64({9, 1})}, On(kData, 0, kind)).Ranks(3));
    rows.push_back(Case("reduce_scatter", {F32({2, 4}), F64({3, 2})}, On(kData, 1, kind)).Ranks(2));
  }
  rows.push_back(Case("reduce_scatter", {F32({2})}, On("model", 0, "sum")).Ranks(2).Refused("C1"));
  rows.push_back(Case("reduce_scatter", {F32({2})}, On(kData, 1, "sum")).Ranks(2).Refused("C2"));
  rows.push_back(Case("reduce_scatter", {F32({2}), F32({3})}, On(kData, 0, "sum")).Ranks(2).Refused("C3"));
  rows.push_back(Case("reduce_scatter", {F32({2})}, On(kData, 0, "plus")).Ranks(2).Refused("C4"));
  rows.push_back(Case("reduce_scatter", {Bool({2})}, On(kData, 0, "prod")).Ranks(2).Refused("C5"));
  return rows;
}

AttributeMap Between(int64_t split_dim, int64_t concat_dim) {
  return {{"axis", kData}, {"split_dim", split_dim}, {"concat_dim", concat_dim}};
}
AttributeMap Pairs(Ints sources, Ints targets) {
  return {{"axis", kData}, {"sources", std::move(sources)}, {"targets", std::move(targets)}};
}
AttributeMap Root(std::string axis, int64_t dim, int64_t root) {
  return {{"axis", std::move(axis)}, {"dim", dim}, {"root", root}};
}

std::vector<OpCase> ExchangingCases() {
  return {
      Case("all_to_all", {F64({6, 2})}, Between(0, 1)).Ranks(3),
      Case("all_to_all", {F64({2, 6})}, Between(1, 0)).Ranks(2),
      Case("all_to_all", {F32({2, 4, 3})}, Between(1, 2)).Ranks(2),
      Case("all_to_all", {F64({4, 3})}, Between(0, 0)).Ranks(2),
      Case("all_to_all", {F32({2, 6})}, Between(1, 1)).Ranks(3),
      Case("all_to_all", {BF16({7, 1, 2})}, Between(0, 1)).Ranks(7),
      Case("all_to_all", {I64({4})}, Between(0, 0)).Ranks(4),
      Case("all_to_all", {Bool({2, 3})}, Between(0, 1)).Ranks(1),
      Case("all_to_all", {F32({2, 0})}, Between(0, 1)).Ranks(2).NoGradient("no elements"),
      Case("all_to_all", {F32({0, 3})}, Between(0, 1)).Ranks(2).NoGradient("no elements"),
      Case("all_to_all", {F32({2, 2})}, {{"axis", "model"}, {"split_dim", int64_t{0}}, {"concat_dim", int64_t{1}}})
          .Ranks(2)
          .Refused("C1"),
      Case("all_to_all", {F32({2, 2})}, Between(2, 0)).Ranks(2).Refused("C2"),
      Case("all_to_all", {F32({2, 2})}, Between(0, -1)).Ranks(2).Refused("C2"),
      Case("all_to_all", {F32({3, 2})}, Between(0, 1)).Ranks(2).Refused("C3"),
      Case("all_to_all", {F32({0, int64_t{1} << 60})}, Between(0, 1)).Ranks(16).Refused("C4"),

      Case("collective_permute", {F64({2, 3})}, Pairs({0, 1, 2}, {1, 2, 0})).Ranks(3),
      Case("collective_permute", {F64({3})}, Pairs({3, 0}, {0, 2})).Ranks(4),
      Case("collective_permute", {F16({3})}, Pairs({0}, {1})).Ranks(2),
      Case("collective_permute", {Bool({3})}, Pairs({1, 0}, {1, 0})).Ranks(2),
      Case("collective_permute", {I32({})}, Pairs({0}, {0})).Ranks(1),
      Case("collective_permute", {F32({0})}, Pairs({0}, {1})).Ranks(2).NoGradient("no elements"),
      Case("collective_permute", {F32({2})}, {{"axis", "model"}, {"sources", Ints{0}}, {"targets", Ints{1}}})
          .Ranks(2)
          .Refused("C1"),
      Case("collective_permute", {F32({2})}, Pairs({0, 1}, {1})).Ranks(2).Refused("C2"),
      Case("collective_permute", {F32({2})}, Pairs({}, {})).Ranks(2).Refused("C2"),
      Case("collective_permute", {F32({2})}, Pairs({0}, {2})).Ranks(2).Refused("C3"),
      Case("collective_permute", {F32({2})}, Pairs({-1}, {0})).Ranks(2).Refused("C3"),
      Case("collective_permute", {F32({2})}, Pairs({0, 0}, {0, 1})).Ranks(2).Refused("C4"),
      Case("collective_permute", {F32({2})}, Pairs({0, 1}, {1, 1})).Ranks(2).Refused("C4"),

      Case("collective_gather", {F64({2, 3})}, Root(kData, 0, 1)).Ranks(3),
      Case("collective_gather", {F32({2, 3, 1})}, Root(kData, 1, 0)).Ranks(2),
      Case("collective_gather", {U8({2})}, Root(kData, 0, 3)).Ranks(4),
      Case("collective_gather", {I64({1})}, Root(kData, 0, 0)).Ranks(1),
      Case("collective_gather", {F32({2, 0})}, Root(kData, 0, 1)).Ranks(2).NoGradient("no elements"),
      Case("collective_gather", {F32({2})}, Root("model", 0, 0)).Ranks(2).Refused("C1"),
      Case("collective_gather", {F32({})}, Root(kData, 0, 0)).Ranks(2).Refused("C2"),
      Case("collective_gather", {F32({int64_t{1} << 56})}, Root(kData, 0, 0)).Ranks(1 << 10).Refused("C3"),
      Case("collective_gather", {F32({2})}, Root(kData, 0, 2)).Ranks(2).Refused("C4"),

      Case("collective_scatter", {F64({6, 3})}, Root(kData, 0, 1)).Ranks(3),
      Case("collective_scatter", {F32({2, 6, 1})}, Root(kData, 1, 0)).Ranks(2),
      Case("collective_scatter", {F16({7})}, Root(kData, 0, 6)).Ranks(7),
      Case("collective_scatter", {Bool({2})}, Root(kData, 0, 0)).Ranks(1),
      Case("collective_scatter", {F32({0, 2})}, Root(kData, 0, 1)).Ranks(2).NoGradient("no elements"),
      Case("collective_scatter", {F32({2})}, Root("model", 0, 0)).Ranks(2).Refused("C1"),
      Case("collective_scatter", {F32({2})}, Root(kData, 1, 0)).Ranks(2).Refused("C2"),
      Case("collective_scatter", {F32({3})}, Root(kData, 0, 0)).Ranks(2).Refused("C3"),
      Case("collective_scatter", {F32({2})}, Root(kData, 0, -1)).Ranks(2).Refused("C4"),
  };
}

// An exchange with this body.
AttributeMap By(std::string_view body) {
  absl::StatusOr<Graph> graph = ParseGraph(body);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return {{"by", "some()"}, {"body", Region(*std::move(graph))}};
}

constexpr std::string_view kSumWithState = R"(
mesh {data=2}
graph @some(%g: f64[2] partial(sum), state %last: f64[2]) -> (sum: f64[2], %last: f64[2]) {
  %sum = all_reduce %g {axis=data, kind=sum} : f64[2]
  return %sum, %sum
})";

constexpr std::string_view kOnTwoAxes = R"(
mesh {data=2, model=2}
graph @some(%g: f32[2] partial(sum)) -> (sum: f32[2]) {
  %sum = all_reduce %g {axis=data, kind=sum} : f32[2]
  return %sum
})";

constexpr std::string_view kOfTwo = R"(
mesh {data=2}
graph @some(%g: f32[2] partial(sum), %h: f32[2] partial(sum)) -> (sum: f32[2]) {
  %sum = all_reduce %g {axis=data, kind=sum} : f32[2]
  return %sum
})";

constexpr std::string_view kOfWhole = R"(
mesh {data=2}
graph @some(%g: f32[2]) -> (sum: f32[2]) {
  %sum = neg %g : f32[2]
  return %sum
})";

constexpr std::string_view kToTerms = R"(
mesh {data=2}
graph @some(%g: f32[2] partial(sum)) -> (sum: f32[2] partial(sum)) {
  %sum = neg %g : f32[2] partial(sum)
  return %sum
})";

constexpr std::string_view kToTwo = R"(
mesh {data=2}
graph @some(%g: f32[2] partial(sum)) -> (sum: f32[2], again: f32[2]) {
  %sum = all_reduce %g {axis=data, kind=sum} : f32[2]
  return %sum, %sum
})";

std::vector<OpCase> GradientExchangeCases() {
  const AttributeMap by{{"by", "some()"}};
  std::vector<OpCase> rows;
  for (int64_t ranks : {1, 2, 3, 4}) rows.push_back(Case("exchange", {F64({2, 3})}, by).Ranks(ranks));
  rows.push_back(Case("exchange", {BF16({4})}, by).Ranks(3));
  rows.push_back(Case("exchange", {F32({0, 2})}, by).Ranks(2));
  // Bodies are gone before types are local; those that are accepted are in test/golden/lower_exchanges.ir.
  rows.push_back(Case("exchange", {F32({2})}, By(kOnTwoAxes)).Ranks(2).Refused("C1"));
  rows.push_back(Case("exchange", {F64({3})}, By(kSumWithState)).Ranks(2).Refused("C2"));
  rows.push_back(Case("exchange", {F32({2})}, By(kOfWhole)).Ranks(2).Refused("C2"));
  rows.push_back(Case("exchange", {F32({2})}, By(kOfTwo)).Ranks(2).Refused("C2"));
  rows.push_back(Case("exchange", {F32({2})}, By(kToTerms)).Ranks(2).Refused("C3"));
  rows.push_back(Case("exchange", {F32({2})}, By(kToTwo)).Ranks(2).Refused("C3"));
  rows.push_back(Case("exchange", {I32({2})}, by).Ranks(2).Refused("C4"));
  return rows;
}

constexpr std::string_view kMeanOfWeights = R"(
mesh {data=2}
graph @some(%weights: f32[2] local, %agreed: f32[2]) -> (agreed: f32[2], own: f32[2,2] split(0)) {
  %mean = all_reduce %weights {axis=data, kind=mean} : f32[2]
  %0 = as_local %mean {axis=data} : f32[2] local
  %1 = sub %0, %mean : f32[2] local
  %own = parts %1 {axis=data, shape=[2, 2]} : f32[2,2] split(0)
  return %mean, %own
})";

constexpr std::string_view kOfReplicated = R"(
mesh {data=2}
graph @some(%weights: f32[2], %agreed: f32[2]) -> (agreed: f32[2], own: f32[2,2] split(0)) {
  %0 = as_local %weights {axis=data} : f32[2] local
  %own = parts %0 {axis=data, shape=[2, 2]} : f32[2,2] split(0)
  return %weights, %own
})";

constexpr std::string_view kWithoutOwn = R"(
mesh {data=2}
graph @some(%weights: f32[2] local, %agreed: f32[2]) -> (agreed: f32[2]) {
  %mean = all_reduce %weights {axis=data, kind=mean} : f32[2]
  return %mean
})";

AttributeMap ByOfWeights(std::string_view body) {
  AttributeMap attributes = By(body);
  attributes.emplace("state", "w");
  return attributes;
}

std::vector<OpCase> WeightExchangeCases() {
  const AttributeMap by{{"by", "some()"}, {"state", "w"}};
  return {
      Case("exchange_weights", {F64({2, 3})}, by).Ranks(1),
      Case("exchange_weights", {BF16({4})}, by).Ranks(3),
      Case("exchange_weights", {F32({0, 2})}, by).Ranks(2),
      Case("exchange_weights", {F32({2})}, ByOfWeights(kOnTwoAxes)).Ranks(2).Refused("C1"),
      Case("exchange_weights", {F32({3})}, ByOfWeights(kMeanOfWeights)).Ranks(2).Refused("C2"),
      Case("exchange_weights", {F32({2})}, ByOfWeights(kOfReplicated)).Ranks(2).Refused("C2"),
      Case("exchange_weights", {F32({2})}, ByOfWeights(kWithoutOwn)).Ranks(2).Refused("C3"),
      Case("exchange_weights", {I32({2})}, by).Ranks(2).Refused("C4"),

      Case("as_local", {F64({4, 3})}, On(kData)).Ranks(2),
      Case("as_local", {I32({})}, On(kData)).Ranks(3),
      Case("as_local", {F32({0, 2})}, On(kData)).Ranks(2),
      Case("as_local", {F32({2})}, On("model")).Ranks(2).Refused("C1"),

      Case("as_replicated", {F64({4, 3})}, On(kData)).Ranks(2),
      Case("as_replicated", {Bool({0, 2})}, On(kData)).Ranks(3),
      Case("as_replicated", {F32({2})}, On("model")).Ranks(2).Refused("C1"),
  };
}

}  // namespace

std::vector<OpCase> CollectiveCases() {
  std::vector<OpCase> rows = ReducingCases();
  const std::vector<OpCase> moving = {
      Case("collective_broadcast", {F64({2, 3})}, From(kData, 0)).Ranks(3),
      Case("collective_broadcast", {F32({})}, From(kData, 1)).Ranks(2),
      Case("collective_broadcast", {Bool({4})}, From(kData, 0)).Ranks(1),
      Case("collective_broadcast", {F32({0})}, From(kData, 1)).Ranks(2).NoGradient("no elements"),
      Case("collective_broadcast", {F32({2})}, From("model", 0)).Ranks(2).Refused("C1"),
      Case("collective_broadcast", {F32({2})}, From(kData, 2)).Ranks(2).Refused("C2"),
      Case("collective_broadcast", {F32({2})}, From(kData, -1)).Ranks(2).Refused("C2"),

      Case("all_gather", {F64({2, 3})}, On(kData, 0)).Ranks(3),
      Case("all_gather", {F64({2, 3}), F64({1}), F64({5, 2})}, On(kData, 0)).Ranks(3),
      Case("all_gather", {F32({2, 3}), F32({0, 2}), I32({3}), F32({4})}, On(kData, 0))
          .Ranks(2)
          .NoGradient("no elements"),
      Case("all_gather", {F32({2, 3}), F32({1, 5})}, {{"axis", kData}, {"dim", int64_t{1}}, {"bucket", int64_t{3}}})
          .Ranks(2),
      Case("all_gather", {F32({2, 3, 1})}, On(kData, 2)).Ranks(2),
      Case("all_gather", {BF16({2, 3})}, On(kData, 1)).Ranks(7),
      Case("all_gather", {I64({1})}, On(kData, 0)).Ranks(1),
      Case("all_gather", {F32({0, 2})}, On(kData, 0)).Ranks(2).NoGradient("no elements"),
      Case("all_gather", {F32({2, 0})}, On(kData, 0)).Ranks(2).NoGradient("no elements"),
      Case("all_gather", {F32({2, 0})}, On(kData, 1)).Ranks(2).NoGradient("no elements"),
      Case("all_gather", {F32({2})}, On("model", 0)).Ranks(2).Refused("C1"),
      Case("all_gather", {F32({2}), F32({})}, On(kData, 0)).Ranks(2).Refused("C2"),
      Case("all_gather", {F32({int64_t{1} << 56})}, On(kData, 0)).Ranks(1 << 10).Refused("C3"),

      Case("shard", {F64({4, 3})}, On(kData, 0)).Ranks(2),
      Case("shard", {F32({2, 6, 2})}, On(kData, 1)).Ranks(3),
      Case("shard", {Bool({2})}, On(kData, 0)).Ranks(1),
      Case("shard", {F32({0, 2})}, On(kData, 0)).Ranks(2).NoGradient("no elements"),
      Case("shard", {F32({2, 0})}, On(kData, 0)).Ranks(2).NoGradient("no elements"),
      Case("shard", {F32({2})}, On("model", 0)).Ranks(2).Refused("C1"),
      Case("shard", {F32({2})}, On(kData, -1)).Ranks(2).Refused("C2"),
      Case("shard", {F32({3})}, On(kData, 0)).Ranks(2).Refused("C3"),

      Case("parts", {F64({4, 3})}, PartsOn(kData, {1, 4, 3})).Ranks(2),
      Case("parts", {F32({})}, PartsOn(kData, {1})).Ranks(3),
      Case("parts", {BF16({0, 2})}, PartsOn(kData, {1, 0, 2})).Ranks(2),
      Case("parts", {F32({3})}, PartsOn(kData, {1, 3}, "prod")).Ranks(2),
      Case("parts", {F32({3})}, PartsOn(kData, {1, 3}, "max")).Ranks(2),
      Case("parts", {F32({3})}, PartsOn(kData, {1, 3}, "mean")).Ranks(2),
      Case("parts", {F32({2})}, PartsOn("model", {1, 2})).Ranks(2).Refused("C1"),
      Case("parts", {F32({2})}, PartsOn(kData, {2})).Ranks(2).Refused("C2"),
      Case("parts", {F32({})}, PartsOn(kData, {})).Ranks(2).Refused("C2"),
      Case("parts", {F32({2})}, PartsOn(kData, {2, 2})).Ranks(2).Refused("C3"),
      Case("parts", {F32({2})}, PartsOn(kData, {1, 2}, "median")).Ranks(2).Refused("C4"),

      Case("own_part", {F64({1, 4, 3})}, On(kData)).Ranks(2),
      Case("own_part", {F32({1})}, On(kData)).Ranks(3),
      Case("own_part", {BF16({1, 0, 2})}, On(kData)).Ranks(2),
      Case("own_part", {Bool({1, 2})}, On(kData)).Ranks(1),
      Case("own_part", {F32({1, 2})}, On("model")).Ranks(2).Refused("C1"),
      Case("own_part", {F32({})}, On(kData)).Ranks(2).Refused("C2"),
      Case("own_part", {F32({2, 2})}, On(kData)).Ranks(2).Refused("C2"),

      Case("axis_index", {}, On(kData)).Ranks(3),
      Case("axis_index", {}, On(kData)).Ranks(1),
      Case("axis_index", {}, On("model")).Ranks(2).Refused("C1"),
  };
  rows.insert(rows.end(), moving.begin(), moving.end());
  const std::vector<OpCase> exchanging = ExchangingCases();
  rows.insert(rows.end(), exchanging.begin(), exchanging.end());
  const std::vector<OpCase> of_gradients = GradientExchangeCases();
  rows.insert(rows.end(), of_gradients.begin(), of_gradients.end());
  const std::vector<OpCase> of_weights = WeightExchangeCases();
  rows.insert(rows.end(), of_weights.begin(), of_weights.end());
  return rows;
}

}  // namespace lockstep
