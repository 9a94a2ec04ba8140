// The placement rules of collectives against the N-rank interpreter: along their own axis, collectives change the
// placement of a value but not the value; along other axes they are ordinary ops.

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/local_types.h"
#include "core/verifier.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"
#include "test/op_cases/placed_values.h"

namespace lockstep {
namespace {

const std::string kCollectiveAxis(kDataAxis);

std::vector<OpCase> CollectiveRows() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (row.refused.empty() && row.ranks > 0) rows.push_back(row);
  }
  return rows;
}

// The traits of the row's op; no trait if it is not a collective.
CollectiveTraits TraitsOfRow(const OpCase& row) {
  const std::optional<CollectiveOp> op = GetOp(row.op).collective();
  return op ? TraitsOf(*op) : CollectiveTraits{.name = row.op, .moves_data = false};
}

// True if an op that is no collective means the sum over ranks.
bool SumsGradients(const OpCase& row) { return row.op == "push" || row.op == "exchange"; }

std::string CollectiveName(const testing::TestParamInfo<OpCase>& info) {
  return info.param.op + "_" + std::to_string(info.index);
}

class CollectivePlacementTest : public testing::TestWithParam<OpCase> {};

// Expects of ops that exchange slices that each slice arrives where the op says, and that a rank to which no rank sends
// has zeros.
void ExpectExchanged(const OpCase& row, const Node& node, const std::vector<std::vector<Tensor>>& inputs,
                     const std::vector<std::vector<Tensor>>& results) {
  const auto input = [&](int64_t rank) -> const Tensor& { return inputs[static_cast<size_t>(rank)][0]; };
  const auto result = [&](int64_t rank) -> const Tensor& { return results[static_cast<size_t>(rank)][0]; };
  const auto expect_zeros = [&](int64_t rank) {
    EXPECT_EQ(result(rank), Tensor(result(rank).type())) << "rank " << rank;
  };
  const CollectiveTraits traits = TraitsOfRow(row);
  if (traits.gathers && traits.scatters) {
    const int64_t split_dim = node.attr<int64_t>("split_dim"), concat_dim = node.attr<int64_t>("concat_dim");
    for (int64_t source = 0; source < row.ranks; ++source) {
      for (int64_t target = 0; target < row.ranks; ++target) {
        EXPECT_EQ(SliceOf(result(target), concat_dim, source, row.ranks),
                  SliceOf(input(source), split_dim, target, row.ranks))
            << "from " << source << " to " << target;
      }
    }
  } else if (traits.permutes) {
    const auto &sources = node.attr<Ints>("sources"), &targets = node.attr<Ints>("targets");
    for (int64_t rank = 0; rank < row.ranks; ++rank) {
      const auto target = std::find(targets.begin(), targets.end(), rank);
      if (target == targets.end()) expect_zeros(rank);
      else EXPECT_EQ(result(rank), input(sources[static_cast<size_t>(target - targets.begin())])) << "rank " << rank;
    }
  } else if (traits.has_root() && traits.counts_slices()) {
    const int64_t dim = node.attr<int64_t>("dim"), root = node.attr<int64_t>("root");
    for (int64_t rank = 0; rank < row.ranks; ++rank) {
      if (traits.scatters) {
        EXPECT_EQ(result(rank), SliceOf(input(root), dim, rank, row.ranks)) << "rank " << rank;
      } else {
        EXPECT_EQ(SliceOf(result(root), dim, rank, row.ranks), input(rank)) << "rank " << rank;
        if (rank != root) expect_zeros(rank);
      }
    }
  } else {
    ADD_FAILURE() << "add the expectation for " << row.op;
  }
}

// Along the op's own axis: where the rule says replicated, all ranks have the same bits; a collective that changes a
// placement does not change the value.
TEST_P(CollectivePlacementTest, MovesAValueWithoutChangingIt) {
  const OpCase& row = GetParam();
  absl::StatusOr<Graph> graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Node& node = graph->nodes().front();
  ASSERT_TRUE(Verify(*graph).ok()) << Verify(*graph);
  const std::vector<std::vector<Tensor>> inputs = RankInputs(row);
  const auto results = Interpret(*graph, inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  const CollectiveTraits traits = TraitsOfRow(row);
  if (traits.is_direct()) return ExpectExchanged(row, node, inputs, *results);
  for (size_t i = 0; i < graph->results().size(); ++i) {
    const Placement placement = graph->results()[i].value.placement(kCollectiveAxis);
    for (int64_t rank = 0; rank < row.ranks; ++rank) {
      const Tensor& result = (*results)[static_cast<size_t>(rank)][i];
      if (row.op == "axis_index") {
        EXPECT_TRUE(placement.is_local());
        EXPECT_EQ(result.At(0), static_cast<double>(rank));
      } else if (SumsGradients(row) || (traits.moves_data && !traits.scatters && !traits.to_root)) {
        EXPECT_TRUE(placement.is_replicated()) << placement;
        EXPECT_EQ(result, (*results)[0][i]) << "rank " << rank;
        if (traits.gathers) {
          EXPECT_EQ(OnRank(result, CollectiveOperandPlacement(row), rank, row.ranks),
                    inputs[static_cast<size_t>(rank)][i]);
        } else if (traits.from_root) {
          EXPECT_EQ(result, inputs[static_cast<size_t>(node.attr<int64_t>("root"))][0]);
        }
      } else if (row.op == "parts") {
        EXPECT_EQ(placement, Placement::Split(0));
        EXPECT_EQ(result, inputs[static_cast<size_t>(rank)][i].Reshaped(result.shape()));
      } else if (row.op == "as_replicated" || row.op == "exchange_weights") {
        EXPECT_TRUE(placement.is_replicated()) << placement;
        EXPECT_EQ(result, inputs[static_cast<size_t>(rank)][i]);
      } else if (row.op == "own_part" || row.op == "as_local") {
        EXPECT_TRUE(placement.is_local());
        EXPECT_EQ(result, inputs[static_cast<size_t>(rank)][i].Reshaped(result.shape()));
      } else if (row.op == "shard" || (traits.reduces && traits.scatters)) {
        const int64_t dim = node.attr<int64_t>("dim");
        EXPECT_EQ(placement, Placement::Split(dim));
        if (row.op == "shard") {
          EXPECT_EQ(result, SliceOf(inputs[static_cast<size_t>(rank)][i], dim, rank, row.ranks));
        }
      } else {
        ADD_FAILURE() << "add the expectation for " << row.op;
      }
    }
  }
}

// Reductions compute the one-rank reduction of the ranks' tensors; those that scatter, a slice of it.
TEST_P(CollectivePlacementTest, ReducesInRankOrder) {
  const OpCase& row = GetParam();
  const CollectiveTraits traits = TraitsOfRow(row);
  if (!traits.reduces && !SumsGradients(row)) return;
  const std::vector<std::vector<Tensor>> inputs = RankInputs(row);
  const absl::StatusOr<Graph> graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto results = Interpret(*graph, inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  const Node& node = graph->nodes().front();
  const std::string kind = SumsGradients(row) ? "sum" : node.attr<std::string>("kind");
  for (size_t i = 0; i < row.operands.size(); ++i) {
    Tensor expected(TensorType{DType::kF64, row.operands[i].type.shape});
    for (int64_t at = 0; at < expected.num_elements(); ++at) {
      double sum = inputs[0][i].At(at);
      for (size_t rank = 1; rank < inputs.size(); ++rank) {
        const double x = inputs[rank][i].At(at);
        sum = kind == "min" ? std::min(sum, x) : kind == "max" ? std::max(sum, x) : kind == "prod" ? sum * x : sum + x;
      }
      if (kind == "mean") sum /= static_cast<double>(row.ranks);
      expected.mutable_data<double>()[static_cast<size_t>(at)] = sum;
    }
    if (IsInteger(row.operands[i].type.dtype)) expected = expected.Converted(DType::kI64);  // a mean is truncated
    for (int64_t rank = 0; rank < row.ranks; ++rank) {
      const Tensor mine = !traits.scatters ? expected : SliceOf(expected, node.attr<int64_t>("dim"), rank, row.ranks);
      const Tensor result = (*results)[static_cast<size_t>(rank)][i].Converted(mine.dtype());
      const bool is_half = SizeOf(row.operands[i].type.dtype) == 2 || row.attributes.contains("wire");
      const double of_int8 = static_cast<double>(row.ranks + 1) / 254;  // half a code for each rank, and for the sum
      const bool is_int8 = row.attributes.contains("wire") && node.attr<std::string>("wire") == "int8";
      EXPECT_LE(RelativeDifference(result, mine), is_int8   ? 2 * of_int8
                                                  : is_half ? 0.01
                                                            : 1e-6)
          << row.ToString() << " on rank " << rank;
    }
  }
}

// The ops that reduce over ranks.
std::vector<const OpDef*> ReducingOps() {
  std::vector<const OpDef*> ops;
  for (const OpDef* op : AllOps()) {
    if (op->collective() && TraitsOf(*op->collective()).reduces) ops.push_back(op);
  }
  return ops;
}

// Sums whose bits show their order: 1e8 absorbs a 1, which is lost when 1e8 is subtracted again.
TEST(CollectivePlacement, SumsAreTakenInRankOrder) {
  const std::vector<float> of_ranks = {1e8F, 1, -1e8F, 1};
  for (const OpDef* op : ReducingOps()) {
    for (const char* kind : {"sum", "mean"}) {
      OpCase row = Case(op->name(), {F32({4})}, {{"axis", kCollectiveAxis}, {"kind", std::string(kind)}}).Ranks(4);
      if (TraitsOfRow(row).scatters) row.attributes.emplace("dim", int64_t{0});
      const Graph graph = *CaseGraph(row);
      // Element i of rank r: every rotation of the four numbers. `sums` has their sums from left to right.
      std::vector<std::vector<Tensor>> inputs;
      for (size_t rank = 0; rank < 4; ++rank) {
        Tensor& x = inputs.emplace_back().emplace_back(TensorType{DType::kF32, {4}});
        for (size_t i = 0; i < 4; ++i) x.mutable_data<float>()[i] = of_ranks[(rank + i) % 4];
      }
      const float sums[4] = {1, 0, 1, 0};
      const auto results = Interpret(graph, inputs);
      ASSERT_TRUE(results.ok()) << results.status();
      for (size_t rank = 0; rank < 4; ++rank) {
        const Tensor& result = (*results)[rank][0];
        for (int64_t at = 0; at < result.num_elements(); ++at) {
          const auto i = static_cast<size_t>(result.num_elements() == 4 ? at : static_cast<int64_t>(rank));
          const float whole = std::string(kind) == "mean" ? sums[i] / 4 : sums[i];
          EXPECT_EQ(result.At(at), whole) << op->name() << " " << kind << ", element " << i << " on rank " << rank;
        }
      }
    }
  }
}

// The elements of a block are multiples of its largest divided by 127. If one is not finite, all of them are NaN.
TEST(CollectivePlacement, AsInt8BlocksHaveScales) {
  constexpr int64_t kBlock = 256, kCount = 2 * kBlock + 2;
  const OpCase row =
      Case("all_reduce", {F32({kCount})}, {{"axis", kCollectiveAxis}, {"kind", "sum"}, {"wire", "int8"}}).Ranks(2);
  std::vector<std::vector<Tensor>> inputs(2);
  for (std::vector<Tensor>& of_rank : inputs) of_rank.emplace_back(row.operands[0].type);
  const std::span<float> first = inputs[0][0].mutable_data<float>(), second = inputs[1][0].mutable_data<float>();
  first[0] = 127, first[1] = 1.5F, first[2] = -0.25F, first[3] = 2.5F;  // halves are rounded to even
  second[0] = 254, second[1] = 1.75F;                                   // the unit is 2
  first[kBlock] = 1, second[kBlock + 7] = INFINITY;
  first[2 * kBlock] = 0.5F, second[2 * kBlock] = -0.5F, first[2 * kBlock + 1] = 0.25F;
  const auto results = Interpret(*CaseGraph(row), inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  for (const std::vector<Tensor>& of_rank : *results) {
    const Tensor& sum = of_rank[0];
    EXPECT_EQ(sum.At(0), 381);  // the unit of the sum is 3
    EXPECT_EQ(sum.At(1), 3);    // from 2 + 2
    EXPECT_EQ(sum.At(2), 0);
    EXPECT_EQ(sum.At(3), 3);  // from 2
    for (int64_t i = 0; i < kBlock; ++i) EXPECT_TRUE(std::isnan(sum.At(kBlock + i))) << i;
    EXPECT_EQ(sum.At(2 * kBlock), 0);
    EXPECT_NEAR(sum.At(2 * kBlock + 1), 0.25, 0.5 / 127);
  }
}

// Along another axis a collective is an elementwise op or a movement of data: on a mesh {batch=2, data=n}, the results
// of the two halves together are the result of the whole.
TEST_P(CollectivePlacementTest, LetsOtherAxesPass) {
  const OpCase row = InDouble(GetParam());
  if (row.operands.empty()) return;
  constexpr int64_t kHalves = 2;
  const std::string other = "batch";
  const std::vector<std::vector<Tensor>> inputs = RankInputs(row);  // whole along `batch`
  const absl::StatusOr<Graph> whole = CaseGraph(row);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto expected = Interpret(*whole, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  int compared = 0;
  for (const Placement& placement : PlacementsOf(row.operands[0], kHalves)) {
    SCOPED_TRACE(row.ToString() + " of " + placement.ToString());
    Graph graph;
    graph.set_mesh(Mesh({{other, kHalves}, {kCollectiveAxis, row.ranks}}));
    NodeSpec spec{&GetOp(row.op), {}, row.attributes, "", {}};
    if (row.op == "parts") std::get<Ints>(spec.attributes["shape"])[0] = row.ranks;  // types are global
    for (size_t i = 0; i < row.operands.size(); ++i) {
      const Placement own = CollectiveOperandPlacement(row), of_operand = i == 0 ? placement : Placement::Replicated();
      const TensorType type = GlobalType(row.operands[i].type, {{kCollectiveAxis, own}}, graph.mesh());
      spec.operands.push_back(
          *graph.AddInput("a" + std::to_string(i), type, false, {{other, of_operand}, {kCollectiveAxis, own}}));
    }
    const absl::StatusOr<Node*> node = graph.Insert(std::move(spec));
    if (!node.ok()) continue;  // the rule requires the operand replicated, or the ranks cannot divide a half evenly
    ++compared;
    std::vector<std::vector<Tensor>> rank_inputs;
    for (int64_t half = 0; half < kHalves; ++half) {
      for (int64_t rank = 0; rank < row.ranks; ++rank) {
        std::vector<Tensor>& of_rank = rank_inputs.emplace_back();
        for (size_t i = 0; i < row.operands.size(); ++i) {
          of_rank.push_back(OnRank(inputs[static_cast<size_t>(rank)][i], i == 0 ? placement : Placement::Replicated(),
                                   half, kHalves));
        }
      }
    }
    for (size_t i = 0; i < (*node)->num_results(); ++i) {
      Value value = (*node)->result(i);
      if (const Placement is = value.placement(other); is.is_partial()) {
        // Reduces the value, so that it can be compared.
        Builder b(graph);
        value = b.AllReduce(value, other, is.reduce());
        ASSERT_TRUE(b.status().ok()) << b.status();
      }
      ASSERT_TRUE(graph.AddResult("r" + std::to_string(i), value, value.placements()).ok());
    }
    const absl::StatusOr<Graph> local = VerifiedLocal(graph);
    ASSERT_TRUE(local.ok()) << local.status() << "\n" << graph.ToString();
    const auto results = Interpret(*local, rank_inputs);
    ASSERT_TRUE(results.ok()) << results.status();
    for (size_t at = 0; at < results->size(); ++at) {
      const int64_t half = static_cast<int64_t>(at) / row.ranks;
      const size_t rank = at % static_cast<size_t>(row.ranks);
      for (size_t i = 0; i < (*node)->num_results(); ++i) {
        const Placement result = graph.results()[i].value.placement(other);
        const Tensor mine =
            result.is_split() ? OnRank((*expected)[rank][i], result, half, kHalves) : (*expected)[rank][i];
        EXPECT_LE(RelativeDifference((*results)[at][i], mine), 1e-9) << "result " << i << " is " << result;
      }
    }
  }
  EXPECT_GE(compared, 1);
}

INSTANTIATE_TEST_SUITE_P(Rows, CollectivePlacementTest, testing::ValuesIn(CollectiveRows()), CollectiveName);

// A partial value with one kind of reduction must not be reduced with another kind.
TEST(CollectivePlacement, WrongKindIsRefused) {
  for (const OpDef* op : ReducingOps()) {
    OpCase row = Case(op->name(), {F32({2})}, {{"axis", kCollectiveAxis}, {"kind", "max"}}).Ranks(2);
    if (TraitsOfRow(row).scatters) row.attributes.emplace("dim", int64_t{0});
    Graph graph = *CaseGraph(row);
    graph.set_input_placements(0, {{kCollectiveAxis, Placement::Partial(ReduceKind::kSum)}});
    const absl::Status status = Verify(graph);
    EXPECT_NE(status.message().find("operand 0 is partial(sum), which kind=max cannot reduce to the whole value"),
              std::string::npos)
        << status;
  }
}

}  // namespace
}  // namespace lockstep
