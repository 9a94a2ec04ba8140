// Checks the traits of ops (core/op_traits.h) and the index functions of core/op_def.h against the ops' reference
// meanings on the rows of the table.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/interpreter.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

constexpr OpTrait kWhatAnOpDoes[] = {kElementwise, kMovement, kGenerator, kReduction, kCollective, kOptimizer, kOpaque};

TEST(OpTraits, EveryOpSaysWhatItDoes) {
  for (const OpDef* op : AllOps()) {
    SCOPED_TRACE(op->name());
    const auto count = std::count_if(std::begin(kWhatAnOpDoes), std::end(kWhatAnOpDoes),
                                     [&](OpTrait trait) { return op->has_trait(trait); });
    EXPECT_GE(count, 1) << "the block declares no trait that says what the op does: see core/op_traits.h";
    if (op->has_trait(kOpaque)) {
      EXPECT_EQ(count, 1);
    }
    const size_t operands = op->is_variadic() ? 0 : op->operand_names().size();
    if (op->is_mover()) {
      EXPECT_TRUE(op->has_trait(kMovement) && operands == 1);
    }
    if (op->count()) {
      EXPECT_TRUE(op->has_trait(kGenerator) && op->operand_names().empty());
    }
    if (op->has_trait(kRematerialised)) {
      EXPECT_TRUE(op->is_mover() || op->count());
    }
    if (op->has_trait(kIdempotent) || op->has_trait(kInvolution)) {
      EXPECT_TRUE(operands == 1U && op->attribute_defs().empty());
    }
    if (op->has_trait(kCommutative)) {
      EXPECT_EQ(operands, 2U);
    }
    if (op->has_trait(kExpensive) || op->has_trait(kSteps)) {
      EXPECT_TRUE(op->has_trait(kElementwise));
    }
    if (op->f32_ulps() > 0) {
      EXPECT_TRUE(op->has_trait(kElementwise)) << "only kernels of elementwise ops are checked against this limit";
    }
    // The step count of an optimizer must be at least 1, which its block states as a constraint on data.
    const bool is_on_data = std::any_of(op->constraints().begin(), op->constraints().end(),
                                        [](const auto& each) { return each.text.starts_with("when it runs: "); });
    EXPECT_EQ(op->has_trait(kChecksData), op->refusal() || (is_on_data && !op->has_trait(kOptimizer)));
    if (op->has_trait(kEndsGradients)) {
      EXPECT_FALSE(op->vjp());
    }
    if (op->has_trait(kLoop)) {
      EXPECT_NE(op->FindAttribute("body"), nullptr);
    }
    if (op->has_trait(kOfServers)) {
      EXPECT_NE(op->FindAttribute("key"), nullptr);
    }
    EXPECT_EQ(op->has_trait(kReduction), op->reduction().has_value());
    EXPECT_EQ(op->has_trait(kCollective), op->collective().has_value());
    if (op->reduction()) {
      EXPECT_TRUE(op->FindAttribute("dims") != nullptr && operands == 1);
    }
    if (op->collective()) {
      EXPECT_TRUE(op->FindAttribute("axis") != nullptr && op->ranks_eval());
    }
  }
}

// Programs read the attributes of a collective's kind from its node.
TEST(OpTraits, CollectivesHaveTheAttributesOfTheirKind) {
  for (const OpDef* op : AllOps()) {
    if (!op->collective()) continue;
    SCOPED_TRACE(op->name());
    const CollectiveTraits traits = TraitsOf(*op->collective());
    const auto has = [&](std::string_view attribute) { return op->FindAttribute(attribute) != nullptr; };
    EXPECT_EQ(has("kind"), traits.reduces);
    EXPECT_EQ(has("root"), traits.has_root());
    EXPECT_EQ(has("sources") && has("targets"), traits.permutes);
    EXPECT_EQ(has("dim"), traits.scatters != traits.gathers);
    EXPECT_EQ(has("split_dim") && has("concat_dim"), traits.scatters && traits.gathers);
    EXPECT_EQ(has("bucket"), traits.is_in_bucket);
    EXPECT_EQ(op->is_variadic(), traits.is_in_bucket);
  }
}

// --- On rows ---------------------------------------------------------------------------------------------------------

// The node of a row, with inputs and their results.
struct Evaluated {
  Graph graph;
  std::vector<std::vector<Tensor>> inputs, results;  // by rank
  const Node& node() const { return graph.nodes().front(); }
};

absl::StatusOr<Evaluated> Evaluate(const OpCase& row) {
  Evaluated evaluated;
  ASSIGN_OR_RETURN(evaluated.graph, CaseGraph(row));
  evaluated.inputs = RankInputs(row);
  ASSIGN_OR_RETURN(evaluated.results, Interpret(evaluated.graph, evaluated.inputs));
  return evaluated;
}

// Calls check(op, evaluated) for the accepted rows of the ops for which `holds` returns true. Returns the number of
// these ops that had a row with elements, because a check without rows checks nothing.
template <typename Holds, typename Check>
void ForRowsOf(const Holds& holds, const Check& check) {
  std::set<std::string> wanted, seen;
  for (const OpDef* op : AllOps()) {
    if (holds(*op)) wanted.insert(op->name());
  }
  EXPECT_FALSE(wanted.empty());
  for (const OpCase& row : AcceptedOpCases()) {
    if (!wanted.contains(row.op)) continue;
    SCOPED_TRACE(row.ToString());
    const absl::StatusOr<Evaluated> evaluated = Evaluate(row);
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    check(GetOp(row.op), *evaluated);
    if (!evaluated->results[0].empty() && evaluated->results[0][0].num_elements() > 0) seen.insert(row.op);
  }
  EXPECT_EQ(seen, wanted);
}

auto Has(OpTrait trait) {
  return [trait](const OpDef& op) { return op.has_trait(trait); };
}

std::vector<int64_t> IndexAt(int64_t at, const Shape& shape) {
  std::vector<int64_t> index(shape.dims().size());
  for (size_t d = index.size(); d-- > 0; at /= shape.dims()[d]) index[d] = at % shape.dims()[d];
  return index;
}

std::string Bits(const Tensor& tensor, int64_t at) {
  const size_t size = SizeOf(tensor.dtype());
  return std::string(reinterpret_cast<const char*>(tensor.bytes()) + static_cast<size_t>(at) * size, size);
}

TEST(OpTraits, MoversMoveAsTheirMapSays) {
  ForRowsOf([](const OpDef& op) { return static_cast<bool>(op.index_map()); },
            [](const OpDef&, const Evaluated& row) {
              const IndexMap map = IndexMapOf(row.node());
              const Tensor &x = row.inputs[0][0], &y = row.results[0][0];
              ASSERT_EQ(map.size(), static_cast<size_t>(x.shape().rank()));
              // Moves the position of each element by the map; then the elements themselves.
              for (int64_t at = 0; at < y.num_elements(); ++at) {
                int64_t from = 0;
                for (size_t d = 0; d < map.size(); ++d) {
                  const int64_t index = map[d].At(IndexAt(at, y.shape()));
                  ASSERT_TRUE(index >= 0 && index < x.shape().dims()[d]) << "dimension " << d << " index " << index;
                  from = from * x.shape().dims()[d] + index;
                }
                ASSERT_EQ(Bits(y, at), Bits(x, from)) << "element " << at;
              }
            });
}

TEST(OpTraits, WhatKeepsTheOrderIsTheSameMemory) {
  ForRowsOf(Has(kKeepsOrder), [](const OpDef&, const Evaluated& row) {
    const Tensor &x = row.inputs[0][0], &y = row.results[0][0];
    ASSERT_EQ(x.num_bytes(), y.num_bytes());
    EXPECT_EQ(std::memcmp(x.bytes(), y.bytes(), x.num_bytes()), 0);
  });
}

// `wide_result` rounds a sum of products once: any rule other than kLow would round twice. Optimizers are f32.
TEST(OpTraits, PrecisionsOfSumsThatRoundOnceAndOfOptimizers) {
  for (const OpDef* op : AllOps()) {
    if (op->FindAttribute("wide_result") != nullptr) {
      EXPECT_EQ(op->precision(), PrecisionRule::kLow) << op->name();
    }
    if (op->has_trait(kOptimizer)) {
      EXPECT_EQ(op->precision(), PrecisionRule::kFull) << op->name();
    }
  }
}

TEST(OpTraits, MovementsComputeNothing) {
  ForRowsOf(Has(kMovement), [](const OpDef&, const Evaluated& row) {
    std::set<std::string> known;
    const auto add = [&](const Tensor& tensor) {
      for (int64_t at = 0; at < tensor.num_elements(); ++at) known.insert(Bits(tensor, at));
    };
    for (const auto& of_rank : row.inputs) std::for_each(of_rank.begin(), of_rank.end(), add);
    for (const auto& [name, attribute] : row.node().attributes()) {
      if (const auto* tensor = std::get_if<Tensor>(&attribute)) add(*tensor);
      if (const auto* number = std::get_if<double>(&attribute)) add(Tensor::Scalar(row.node().type().dtype, *number));
    }
    for (const auto& of_rank : row.results) {
      for (int64_t at = 0; at < of_rank[0].num_elements(); ++at)
        ASSERT_TRUE(known.contains(Bits(of_rank[0], at))) << "element " << at;
    }
  });
}

TEST(OpTraits, GeneratorsCountAsTheySay) {
  ForRowsOf([](const OpDef& op) { return static_cast<bool>(op.count()); },
            [](const OpDef&, const Evaluated& row) {
              const Affine count = CountOf(row.node());
              const Tensor& y = row.results[0][0];
              for (int64_t at = 0; at < y.num_elements(); ++at) {
                const Tensor expected = Tensor::Of<int64_t>({}, {count.At(IndexAt(at, y.shape()))});
                ASSERT_EQ(Bits(y, at), Bits(expected.Converted(y.dtype()), 0)) << "element " << at;
              }
            });
}

// Computes in T; integers wrap around.
template <typename T>
T Combined(ReduceKind kind, T a, T b) {
  switch (kind) {
    case ReduceKind::kSum: return a + b;
    case ReduceKind::kProd: return a * b;
    case ReduceKind::kMin: return std::min(a, b);
    case ReduceKind::kMax: return std::max(a, b);
    case ReduceKind::kMean: break;
  }
  ADD_FAILURE() << "a mean was accepted as a reduction";
  return a;
}

// Returns x reduced over dims.
template <typename T>
std::vector<T> Reduced(ReduceKind kind, const Tensor& x, const std::vector<int64_t>& dims, int64_t count) {
  std::vector<T> reduced(static_cast<size_t>(count));
  std::vector<bool> started(reduced.size());
  for (int64_t at = 0; at < x.num_elements(); ++at) {
    const std::vector<int64_t> index = IndexAt(at, x.shape());
    size_t to = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end())
        to = to * static_cast<size_t>(x.shape().dims()[d]) + static_cast<size_t>(index[d]);
    }
    const auto element = static_cast<T>(x.At(at));
    reduced[to] = started[to] ? Combined(kind, reduced[to], element) : element;
    started[to] = true;
  }
  return reduced;
}

TEST(OpTraits, ReductionsCombineAsTheirKindSays) {
  ForRowsOf(Has(kReduction), [](const OpDef& op, const Evaluated& row) {
    const Tensor &x = row.inputs[0][0], &y = row.results[0][0];
    if (x.num_elements() == 0) return;  // the op's documentation defines a reduction of nothing
    const auto& dims = row.node().attr<std::vector<int64_t>>("dims");
    ASSERT_EQ(y.shape(), x.shape().Without(dims));
    const auto check = [&](const auto& expected, double tolerance) {
      using T = typename std::decay_t<decltype(expected)>::value_type;
      for (size_t i = 0; i < expected.size(); ++i) {
        const double rounded = Tensor::Of<T>({}, {expected[i]}).Converted(y.dtype()).At(0);
        EXPECT_NEAR(y.At(static_cast<int64_t>(i)), rounded, tolerance * std::fabs(rounded)) << "element " << i;
      }
    };
    if (IsFloat(x.dtype())) check(Reduced<double>(*op.reduction(), x, dims, y.num_elements()), 1e-12);
    else check(Reduced<int64_t>(*op.reduction(), x, dims, y.num_elements()), 0);
  });
}

// --- Collectives -----------------------------------------------------------------------------------------------------

double Total(const std::vector<std::vector<Tensor>>& tensors) {
  double total = 0;
  for (const auto& of_rank : tensors) {
    for (int64_t at = 0; at < of_rank[0].num_elements(); ++at) total += of_rank[0].At(at);
  }
  return total;
}

TEST(OpTraits, CollectivesCommunicateAsTheySay) {
  ForRowsOf(Has(kCollective), [](const OpDef& op, const Evaluated& row) {
    const auto ranks = static_cast<int64_t>(row.inputs.size());
    const int64_t before = row.inputs[0][0].num_elements(), after = row.results[0][0].num_elements();
    const CollectiveTraits traits = TraitsOf(*op.collective());
    EXPECT_TRUE(traits.moves_data) << op.name();
    const bool may_differ = traits.scatters || traits.permutes || traits.to_root;
    for (const auto& of_rank : row.results) EXPECT_TRUE(may_differ || of_rank == row.results[0]) << "ranks differ";
    EXPECT_EQ(after * (traits.scatters ? ranks : 1), before * (traits.gathers ? ranks : 1));
    if (traits.permutes) return;  // ranks that are not the source of a pair send nothing
    const std::vector<Tensor>* root =
        traits.from_root ? &row.inputs[static_cast<size_t>(row.node().attr<int64_t>("root"))] : nullptr;
    if (root && !traits.scatters) {
      EXPECT_EQ(row.results[0], *root);
    }
    const auto kind = row.node().attributes().find("kind");
    if (traits.reduces && std::get<std::string>(kind->second) != "sum") return;
    // Each element that is sent, or the sum of those of all ranks, is in the result of one rank or of all ranks.
    const double copies = traits.scatters || traits.to_root ? 1 : static_cast<double>(ranks);
    const double total = copies * (root ? Total({*root}) : Total(row.inputs));
    EXPECT_NEAR(Total(row.results), total,
                traits.reduces ? 0.05 * std::fabs(total) + 0.05 : 1e-9 * std::fabs(total) + 1e-9);
  });
}

TEST(OpTraits, AlongOneRankResultsAreOperands) {
  std::set<std::string> seen, wanted;
  for (const OpDef* op : AllOps()) {
    if (op->has_trait(kOneRankIdentity)) wanted.insert(op->name());
  }
  for (OpCase row : AcceptedOpCases()) {
    if (!wanted.contains(row.op)) continue;
    row.ranks = 1;
    const absl::StatusOr<Evaluated> evaluated = Evaluate(row);
    if (!evaluated.ok()) continue;  // a broadcast from a rank that does not exist
    seen.insert(row.op);
    EXPECT_EQ(evaluated->results, evaluated->inputs) << row.ToString();
  }
  EXPECT_EQ(seen, wanted) << "each needs a row of op cases that is accepted on one rank";
}

// Ops need not check ranges themselves: every node is checked against the ranges in the op's block.
TEST(OpTraits, RangesOfAttributesHoldOfEveryOp) {
  const OpDef op = OpDef("scaled")
                       .Operand("x")
                       .Attr<double>("by")
                       .In(Above(0, 2))
                       .OptionalAttr<double>("shift", 0.5)
                       .In(AtLeast(0))
                       .Infer([](InferContext& c) { return c.SetResult(c.operand(0)); });
  ASSERT_EQ(op.constraints().size(), 1U);
  EXPECT_EQ(op.constraints()[0].id, "range");
  Graph graph("g");
  const Value x = graph.AddInput("x", TensorType{DType::kF32, {3}}).value();
  const auto insert = [&](AttributeMap attributes) {
    return graph.Insert({&op, {x}, std::move(attributes), "model:/scale", {}});
  };
  const std::string expected = ", expected a finite number above 0 and below 2";
  EXPECT_EQ(insert({{"by", -1.5}}).status().message(), "scaled (range): by is -1.5" + expected + ", at model:/scale");
  for (double by : {0.0, 2.0, std::nan(""), HUGE_VAL}) EXPECT_FALSE(insert({{"by", by}}).ok()) << by;
  EXPECT_EQ(insert({{"by", 1.0}, {"shift", -1.0}}).status().message(),
            "scaled (range): shift is -1, expected a finite number of at least 0, at model:/scale");
  EXPECT_TRUE(graph.nodes().empty());
  const absl::StatusOr<Node*> node = insert({{"by", int64_t{1}}});
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(graph.SetAttribute(*node, "by", 3.0).message(), "scaled (range): by is 3" + expected);
  EXPECT_EQ((*node)->attr<double>("by"), 1);
}

TEST(OpTraits, WholeNumbersHaveRangesAndStringsChoices) {
  const OpDef op = OpDef("repeated")
                       .Operand("x")
                       .Attr<int64_t>("times")
                       .In(Between(1, 9))
                       .OptionalAttr<std::string>("mode", "wrap", "what is beyond the end")
                       .OneOf({"wrap", "zero"})
                       .Infer([](InferContext& c) { return c.SetResult(c.operand(0)); });
  Graph graph("g");
  const Value x = graph.AddInput("x", TensorType{DType::kF32, {3}}).value();
  const auto error = [&](AttributeMap attributes) {
    return std::string(graph.Insert({&op, {x}, std::move(attributes), "", {}}).status().message());
  };
  EXPECT_EQ(error({{"times", int64_t{1}}}), "");
  EXPECT_EQ(error({{"times", int64_t{9}}, {"mode", std::string("zero")}}), "");
  for (const auto& [times, text] : {std::pair<int64_t, std::string>{0, "0"}, {10, "10"}})
    EXPECT_EQ(error({{"times", times}}),
              "repeated (range): times is " + text + ", expected a finite number from 1 to 9");
  EXPECT_EQ(error({{"times", int64_t{1}}, {"mode", std::string("mirror")}}),
            "repeated (choice): mode is 'mirror', expected one of wrap, zero");
}

TEST(OpTraits, OptimizersResultsAreNextValuesOfTheLeadingOperands) {
  ForRowsOf(Has(kOptimizer), [](const OpDef&, const Evaluated& row) {
    for (size_t i = 0; i < row.results[0].size(); ++i)
      EXPECT_EQ(row.results[0][i].type(), row.inputs[0][i].type()) << "result " << i;
  });
}

// A state is never negative if its block says so, and otherwise is negative in some row.
TEST(OpTraits, OptimizersStatesAreNeverNegativeOrAreSometimes) {
  std::set<std::string> never, states, negative;
  for (const OpDef* op : AllOps()) {
    for (const OptimizerState& state : op->optimizer().states) {
      states.insert(op->name() + " " + state.operand);
      if (state.is_never_negative) never.insert(op->name() + " " + state.operand);
    }
  }
  ForRowsOf(Has(kOptimizer), [&](const OpDef& op, const Evaluated& row) {
    for (size_t i = 0; i < op.optimizer().states.size(); ++i) {
      const Tensor& next = row.results[0][1 + i];  // results after the variable
      for (int64_t at = 0; at < next.num_elements(); ++at) {
        if (next.At(at) < 0) negative.insert(op.name() + " " + op.optimizer().states[i].operand);
      }
    }
  });
  EXPECT_GE(never.size(), 3U);
  for (const std::string& state : states) EXPECT_NE(never.contains(state), negative.contains(state)) << state;
}

}  // namespace
}  // namespace lockstep
