// Attention and its gradients with rows, sizes and masks that kernels treat differently: several blocks and tiles,
// parts of them, groups of heads, queries that see no key.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "backends/compile.h"
#include "backends/conformance/compare_with_interpreter.h"
#include "core/builder.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// kLowest hides keys as some models do: it adds the lowest finite number of bf16.
enum class Mask { kNone, kBool, kAdded, kLowest, kOfEachHead, kOfEachBatch };

// q is [batches, heads, queries, size], k [batches, heads / group, keys, size], v [..., keys, value_size].
struct Case {
  std::string name;
  int64_t queries, keys, size;
  DType dtype = DType::kBF16;
  int64_t batches = 1, heads = 1, group = 1;
  int64_t value_size = 0;  // 0: as `size`
  bool causal = false;
  int64_t past = 0;
  double softcap = 0;
  Mask mask = Mask::kNone;
  bool has_nan = false;  // in the first query of the second half of all heads

  friend void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }
};

// The mask's type, and for which of its elements a query does not see a key.
std::optional<TensorType> MaskOf(const Case& c) {
  switch (c.mask) {
    case Mask::kNone: return std::nullopt;
    case Mask::kBool: return TensorType{DType::kBool, {1, 1, c.queries, c.keys}};
    case Mask::kAdded:
    case Mask::kLowest: return TensorType{c.dtype, {c.batches, c.heads, c.queries, c.keys}};
    case Mask::kOfEachHead: return TensorType{c.dtype, {1, c.heads, 1, c.keys}};
    case Mask::kOfEachBatch: return TensorType{DType::kBool, {c.batches, 1, 1, c.keys}};
  }
  return std::nullopt;
}

// attention and its gradients for the values dy and delta, which are inputs.
Graph GraphOf(const Case& c) {
  Graph graph("f");
  const auto input = [&](const char* name, DType dtype, const Shape& shape) {
    return *graph.AddInput(name, {dtype, shape});
  };
  const int64_t value_size = c.value_size == 0 ? c.size : c.value_size, key_heads = c.heads / c.group;
  const Value q = input("q", c.dtype, {c.batches, c.heads, c.queries, c.size});
  const Value k = input("k", c.dtype, {c.batches, key_heads, c.keys, c.size});
  const Value v = input("v", c.dtype, {c.batches, key_heads, c.keys, value_size});
  const Value dy = input("dy", c.dtype, {c.batches, c.heads, c.queries, value_size});
  const Value delta = input("delta", DType::kF32, {c.batches, c.heads, c.queries});
  std::vector<Value> masks;
  if (const auto mask = MaskOf(c)) masks.push_back(*graph.AddInput("mask", *mask));
  const auto with_mask = [&](std::vector<Value> operands) {
    operands.insert(operands.end(), masks.begin(), masks.end());
    return operands;
  };
  const AttributeMap attributes = {{"scale", 1 / std::sqrt(static_cast<double>(c.size))},
                                   {"causal", c.causal},
                                   {"past", c.past},
                                   {"softcap", c.softcap}};
  Builder b(graph);
  const std::vector<Value> y = b.Ops("attention", with_mask({q, k, v}), attributes);
  const std::vector<Value> grads = b.Ops("attention_grad", with_mask({q, k, v, y[1], dy, delta}), attributes);
  EXPECT_TRUE(b.status().ok()) << b.status();
  const char* names[] = {"y", "log_sum_exp", "dq", "dk", "dv"};
  const Value results[] = {y[0], y[1], grads[0], grads[1], grads[2]};
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(graph.AddResult(names[i], results[i]).ok());
  return graph;
}

// Inputs with scores of several units. Masks hide about a third of the keys, and from every seventh query all.
std::vector<Tensor> InputsOf(const Graph& graph, const Case& c) {
  const double hidden_score =
      c.mask == Mask::kLowest ? -3.3895313892515355e38 : -std::numeric_limits<double>::infinity();
  std::vector<Tensor> inputs;
  for (const Input& input : graph.inputs()) {
    const TensorType& type = input.value.type();
    std::vector<double> values;
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      const double wave = std::sin(static_cast<double>(7 * i % 1009) + 3 * static_cast<double>(inputs.size()));
      if (input.value.name() != "mask") {
        values.push_back(input.value.name() == "delta" ? wave / 4 : 2 * wave);
        continue;
      }
      const int64_t query = type.shape[2] == 1 ? 1 : i / c.keys % c.queries;
      const bool hidden = i % 3 == 1 || (query % 7 == 3);
      if (type.dtype == DType::kBool) values.push_back(hidden ? 0 : 1);
      else values.push_back(hidden ? hidden_score : wave);
    }
    if (c.has_nan && inputs.empty()) values[values.size() / 2] = std::numeric_limits<double>::quiet_NaN();
    inputs.push_back(Tensor::Of<double>(type.shape, values).Converted(type.dtype));
  }
  return inputs;
}

// Products have operands of the case's dtype, on GPUs in TF32 for f32.
double Tolerance(DType dtype) { return dtype == DType::kBF16 ? 3.0 / 256 : 3.0 / 2048; }

class AttentionTest : public testing::TestWithParam<Case> {};

TEST_P(AttentionTest, AgreesWithInterpreter) {
  const Case& c = GetParam();
  const Graph graph = GraphOf(c);
  CompileOptions options;
  options.tf32 = true;
  ExpectAgreesWithInterpreter(graph, {InputsOf(graph, c)}, Tolerance(c.dtype), options);
}

std::vector<Case> Cases() {
  const std::vector<Case> of_each_dtype = {
      {.name = "SmallRows", .queries = 5, .keys = 7, .size = 8},
      {.name = "SeveralTilesAndBlocks", .queries = 150, .keys = 200, .size = 64},
      {.name = "WideRows", .queries = 40, .keys = 100, .size = 128},
      {.name = "OddSizes", .queries = 33, .keys = 65, .size = 72, .value_size = 40},
      {.name = "Groups", .queries = 20, .keys = 70, .size = 16, .batches = 2, .heads = 2, .group = 2},
      {.name = "CausalGroups", .queries = 70, .keys = 140, .size = 8, .heads = 4, .group = 4, .causal = true},
      {.name = "SoftcapCausal", .queries = 70, .keys = 70, .size = 16, .causal = true, .softcap = 3},
      {.name = "AddedMask", .queries = 20, .keys = 70, .size = 16, .batches = 2, .heads = 2, .mask = Mask::kAdded},
      {.name = "LowestMask", .queries = 20, .keys = 70, .size = 16, .mask = Mask::kLowest},
  };
  std::vector<Case> cases = {
      {.name = "OneTile", .queries = 16, .keys = 64, .size = 64},
      {.name = "WideValues", .queries = 20, .keys = 30, .size = 40, .value_size = 72},
      {.name = "Heads", .queries = 20, .keys = 30, .size = 16, .batches = 2, .heads = 2},
      {.name = "OneQuery", .queries = 1, .keys = 129, .size = 32},
      {.name = "OneKey", .queries = 129, .keys = 1, .size = 32},
      {.name = "Causal", .queries = 140, .keys = 140, .size = 32, .causal = true},
      {.name = "CausalWithPast", .queries = 70, .keys = 150, .size = 32, .causal = true, .past = 80},
      {.name = "CausalBlindQueries", .queries = 150, .keys = 40, .size = 32, .causal = true, .past = -20},
      {.name = "CausalSeesNothing", .queries = 10, .keys = 9, .size = 8, .causal = true, .past = -1000},
      {.name = "CausalSeesAll", .queries = 10, .keys = 9, .size = 8, .causal = true, .past = 1000},
      {.name = "Softcap", .queries = 20, .keys = 70, .size = 16, .softcap = 1.5},
      {.name = "BoolMask", .queries = 20, .keys = 70, .size = 16, .heads = 2, .mask = Mask::kBool},
      {.name = "MaskOfEachHead",
       .queries = 20,
       .keys = 70,
       .size = 16,
       .batches = 2,
       .heads = 2,
       .group = 2,
       .mask = Mask::kOfEachHead},
      {.name = "MaskOfEachBatch",
       .queries = 20,
       .keys = 70,
       .size = 16,
       .batches = 2,
       .heads = 2,
       .mask = Mask::kOfEachBatch},
      {.name = "CausalBoolMask", .queries = 140, .keys = 70, .size = 16, .causal = true, .mask = Mask::kBool},
      {.name = "NotANumber", .queries = 20, .keys = 70, .size = 16, .heads = 2, .has_nan = true},
      {.name = "SoftcapFarBelowScores", .queries = 20, .keys = 70, .size = 16, .softcap = 0.02},
      {.name = "NoKeys", .queries = 5, .keys = 0, .size = 8},
      {.name = "NoQueries", .queries = 0, .keys = 5, .size = 8},
  };
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (Case c : of_each_dtype) {
      c.dtype = dtype;
      cases.push_back(c);
    }
  }
  for (Case& c : cases) c.name += "_" + std::string(DTypeName(c.dtype));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
