// Every op's placement rule against the N-rank interpreter: wherever the operands are, what the distribute pass makes
// of the op computes what one rank would. Each row of the table runs on 2 and 3 ranks with its operands replicated,
// split along each dimension that divides, and partial in each way, in all combinations.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/local_types.h"
#include "core/verifier.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

const std::string kAxis(kDataAxis);

Tensor SliceOf(const Tensor& whole, int64_t dim, int64_t rank, int64_t ranks) {
  Graph graph;
  Builder b(graph);
  const Value x = *graph.AddInput("x", whole.type());
  Ints start(static_cast<size_t>(whole.shape().rank()), 0), limit = whole.shape().dims();
  const int64_t length = whole.shape()[dim] / ranks;
  start[static_cast<size_t>(dim)] = rank * length;
  limit[static_cast<size_t>(dim)] = (rank + 1) * length;
  EXPECT_TRUE(graph.AddResult("y", b.Slice(x, start, limit)).ok());
  return (*InterpretOneRank(graph, {whole}))[0];
}

// A share of a reduction of floats whose whole is `value`: `mine` on one rank, the other one on those that remain.
double FloatShare(ReduceKind kind, double value, bool mine, double others) {
  switch (kind) {
    case ReduceKind::kSum: return mine ? value - others : 1.0;
    case ReduceKind::kMean: return mine ? value - others : value + 1.0;
    case ReduceKind::kProd: return mine ? value : 1.0;
    case ReduceKind::kMax: return mine ? value : value - 0.5;
    case ReduceKind::kMin: return mine ? value : value + 0.5;
  }
  return 0;
}

// The same of integers. Sums and products wrap around; of a mean the sum has a remainder, which its truncation drops.
template <typename T>
T IntegerShare(ReduceKind kind, T value, bool mine, int64_t others) {
  using Limits = std::numeric_limits<T>;
  const bool is_small = value < Limits::max() / 2 && value > Limits::lowest() / 2;
  const auto moved = [value](int64_t by) {
    return static_cast<T>(static_cast<uint64_t>(value) + static_cast<uint64_t>(by));
  };
  switch (kind) {
    case ReduceKind::kSum: return mine ? moved(-others) : T(1);
    case ReduceKind::kMean: return mine && is_small ? moved(value < 0 ? -others : others) : value;
    case ReduceKind::kProd: return mine ? value : T(1);
    case ReduceKind::kMax: return mine || value == Limits::lowest() ? value : moved(-1);
    case ReduceKind::kMin: return mine || value == Limits::max() ? value : moved(1);
  }
  return value;
}

// What `rank` holds of `whole`. Shares of a reduction are different on all ranks where the dtype allows.
Tensor OnRank(const Tensor& whole, const Placement& placement, int64_t rank, int64_t ranks) {
  if (placement.is_split()) return SliceOf(whole, placement.dim(), rank, ranks);
  if (!placement.is_partial() || whole.num_elements() == 0) return whole;
  Tensor share = whole;
  DispatchDType(whole.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t at = 0;
    for (T& element : share.mutable_data<T>()) {
      const bool mine = at++ % ranks == rank;  // who holds what the others add nothing to
      if constexpr (std::is_same_v<T, bool>) continue;
      else if constexpr (std::is_integral_v<T>) element = IntegerShare(placement.reduce(), element, mine, ranks - 1);
      else
        element = ConvertElement<T>(
            FloatShare(placement.reduce(), static_cast<double>(element), mine, static_cast<double>(ranks - 1)));
    }
  });
  return share;
}

bool AllBelow(const Tensor& tensor, double limit) {
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (!(std::fabs(tensor.At(i)) < limit)) return false;
  }
  return true;
}

bool CanBePartial(const CaseOperand& operand, ReduceKind kind) {
  if (operand.type.dtype == DType::kBool) return false;
  if (!operand.value) return true;
  if (IsFloat(operand.type.dtype)) return AllBelow(*operand.value, std::numeric_limits<double>::infinity());
  // The sum under a mean of 64-bit integers has 64 bits.
  return kind != ReduceKind::kMean || AllBelow(*operand.value, 0x1p60);
}

// The placements that an operand can have along an axis of `ranks`. Infinities and NaN are no sum of shares; bool has
// no sums.
std::vector<Placement> PlacementsOf(const CaseOperand& operand, int64_t ranks) {
  const TensorType& type = operand.type;
  std::vector<Placement> placements = {Placement::Replicated()};
  for (int64_t dim = 0; dim < type.shape.rank(); ++dim) {
    if (type.shape[dim] % ranks == 0) placements.push_back(Placement::Split(dim));
  }
  for (ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMean, ReduceKind::kMax, ReduceKind::kMin, ReduceKind::kProd}) {
    if (CanBePartial(operand, kind)) placements.push_back(Placement::Partial(kind));
  }
  return placements;
}

// All combinations, but no more than a few hundred: then every k-th.
std::vector<std::vector<Placement>> Combinations(const OpCase& row, int64_t ranks) {
  std::vector<std::vector<Placement>> all = {{}};
  for (const CaseOperand& operand : row.operands) {
    std::vector<std::vector<Placement>> longer;
    for (const std::vector<Placement>& combination : all) {
      for (const Placement& placement : PlacementsOf(operand, ranks)) {
        longer.push_back(combination);
        longer.back().push_back(placement);
      }
    }
    constexpr size_t kMost = 256;
    const size_t stride = (longer.size() + kMost - 1) / kMost;
    all.clear();
    for (size_t i = 0; i < longer.size(); i += stride) all.push_back(longer[i]);
  }
  return all;
}

std::string ToString(const std::vector<Placement>& placements) {
  std::string text;
  for (const Placement& placement : placements) text += (text.empty() ? "" : ", ") + placement.ToString();
  return text;
}

std::vector<OpCase> PlaceableRows() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (row.refused.empty() && row.ranks == 0) rows.push_back(row);
  }
  return rows;
}

std::vector<OpCase> CollectiveRows() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (row.refused.empty() && row.ranks > 0) rows.push_back(row);
  }
  return rows;
}

std::string RowName(const testing::TestParamInfo<OpCase>& info) {
  return info.param.op + "_" + std::to_string(info.index);
}

// --- Ops on one rank -------------------------------------------------------------------------------------------------

class PlacementTest : public testing::TestWithParam<OpCase> {};

// Of an optimizer only the gradient, its last operand, may be partial: the others are variables.
bool HoldsPartialVariable(const OpCase& row, const std::vector<Placement>& placements) {
  if (!GetOp(row.op).has_trait(kOptimizer)) return false;
  return std::any_of(placements.begin(), placements.end() - 1, [](const Placement& p) { return p.is_partial(); });
}

// The local form of a placed graph, if both are valid and the one gives the other back.
absl::StatusOr<Graph> VerifiedLocal(const Graph& placed) {
  RETURN_IF_ERROR(Verify(placed));
  ASSIGN_OR_RETURN(Graph local, ToLocalTypes(placed));
  RETURN_IF_ERROR(Verify(local));
  ASSIGN_OR_RETURN(const Graph back, ToGlobalTypes(local));
  if (back.ToString() != placed.ToString()) return Internal() << "global types come back as\n" << back.ToString();
  return local;
}

// Distributes the row's graph with its operands placed so, and compares what the ranks hold with the one-rank results.
void ExpectOneRankResults(const OpCase& row, const std::vector<Placement>& placements, int64_t ranks) {
  SCOPED_TRACE(row.ToString() + " of " + ToString(placements) + " on " + std::to_string(ranks) + " ranks");
  absl::StatusOr<Graph> graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<Tensor> inputs = CaseInputs(row);
  const absl::StatusOr<std::vector<Tensor>> expected = InterpretOneRank(*graph, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();

  for (size_t i = 0; i < placements.size(); ++i) graph->set_input_placements(i, {{kAxis, placements[i]}});
  const absl::StatusOr<Graph> placed = passes::DistributeGraph(*graph, Mesh({{kAxis, ranks}}));
  if (HoldsPartialVariable(row, placements)) {
    EXPECT_NE(placed.status().message().find("would diverge"), std::string::npos) << placed.status();
    return;
  }
  ASSERT_TRUE(placed.ok()) << placed.status();
  const absl::StatusOr<Graph> local = VerifiedLocal(*placed);
  ASSERT_TRUE(local.ok()) << local.status() << "\n" << placed->ToString();

  std::vector<std::vector<Tensor>> rank_inputs(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < inputs.size(); ++i)
      rank_inputs[static_cast<size_t>(rank)].push_back(OnRank(inputs[i], placements[i], rank, ranks));
  }
  const auto results = Interpret(*local, rank_inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->size(), static_cast<size_t>(ranks));
  for (size_t i = 0; i < expected->size(); ++i) {
    const PlacementMap& declared = local->results()[i].placements;
    const auto it = declared.find(kAxis);
    const Placement placement = it == declared.end() ? Placement::Replicated() : it->second;
    ASSERT_TRUE(placement.is_replicated() || placement.is_split()) << placement;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      EXPECT_LE(
          RelativeDifference((*results)[static_cast<size_t>(rank)][i], OnRank((*expected)[i], placement, rank, ranks)),
          row.placement_tolerance)
          << "result " << i << ", " << placement << ", on rank " << rank << "\n"
          << local->ToString();
    }
  }
}

TEST_P(PlacementTest, RanksComputeWhatOneRankDoes) {
  // Shares and their sums are rounded: in f64 only mistakes show.
  const OpCase row = InDouble(GetParam());
  for (int64_t ranks : {2, 3}) {
    for (const std::vector<Placement>& placements : Combinations(row, ranks)) {
      ExpectOneRankResults(row, placements, ranks);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

// A consumer that wants the result split gets each rank's slice, computed alone or cut out of the whole.
TEST_P(PlacementTest, ResultsCanBeHadSplit) {
  const OpCase row = InDouble(GetParam());
  const absl::StatusOr<Graph> one_rank = CaseGraph(row);
  ASSERT_TRUE(one_rank.ok()) << one_rank.status();
  const std::vector<Tensor> inputs = CaseInputs(row);
  const absl::StatusOr<std::vector<Tensor>> expected = InterpretOneRank(*one_rank, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  constexpr int64_t kRanks = 2;
  for (size_t i = 0; i < expected->size(); ++i) {
    for (int64_t dim = 0; dim < (*expected)[i].shape().rank(); ++dim) {
      if ((*expected)[i].shape()[dim] % kRanks != 0) continue;
      SCOPED_TRACE(row.ToString() + ", result " + std::to_string(i) + " split along " + std::to_string(dim));
      Graph graph = one_rank->Clone();
      graph.set_result_placements(i, {{kAxis, Placement::Split(dim)}});
      const absl::StatusOr<Graph> placed = passes::DistributeGraph(graph, Mesh({{kAxis, kRanks}}));
      ASSERT_TRUE(placed.ok()) << placed.status();
      const absl::StatusOr<Graph> local = VerifiedLocal(*placed);
      ASSERT_TRUE(local.ok()) << local.status() << "\n" << placed->ToString();
      const auto results = Interpret(*local, {inputs, inputs});
      ASSERT_TRUE(results.ok()) << results.status();
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_LE(
            RelativeDifference((*results)[static_cast<size_t>(rank)][i], SliceOf((*expected)[i], dim, rank, kRanks)),
            row.placement_tolerance)
            << local->ToString();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, PlacementTest, testing::ValuesIn(PlaceableRows()), RowName);

// Whether the op works on slices once the row's graph is distributed with its operands placed so: whether some node of
// the op has a smaller operand or result than the row.
bool WorksOnSlices(const OpCase& row, const Graph& whole, const Graph& local) {
  const Node& before = whole.nodes().front();
  for (const Node& node : local.nodes()) {
    if (!node.Is(row.op)) continue;
    for (size_t i = 0; i < node.operands().size(); ++i) {
      if (node.operand(i).type() != before.operand(i).type()) return true;
    }
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (node.type(i) != before.type(i)) return true;
    }
  }
  return false;
}

// A rule that splits is tested only where its row's sizes can be shared: otherwise the op is computed whole, which
// hides a wrong rule.
TEST(Placement, EveryRuleThatSplitsIsUsedWithASplit) {
  // What has no split of its own.
  const std::set<std::string> whole = {"constant", "fusion"};
  std::set<std::string> ops, used;
  for (const OpCase& row : PlaceableRows()) {
    ops.insert(row.op);
    if (used.contains(row.op)) continue;
    const absl::StatusOr<Graph> graph = CaseGraph(row);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (int64_t ranks : {2, 3}) {
      for (const std::vector<Placement>& placements : Combinations(row, ranks)) {
        if (HoldsPartialVariable(row, placements)) continue;
        Graph distributed = graph->Clone();
        for (size_t i = 0; i < placements.size(); ++i) distributed.set_input_placements(i, {{kAxis, placements[i]}});
        const absl::StatusOr<Graph> placed = passes::DistributeGraph(distributed, Mesh({{kAxis, ranks}}));
        ASSERT_TRUE(placed.ok()) << placed.status();
        const absl::StatusOr<Graph> local = VerifiedLocal(*placed);
        ASSERT_TRUE(local.ok()) << local.status();
        if (WorksOnSlices(row, *graph, *local)) used.insert(row.op);
      }
      for (size_t i = 0; i < graph->results().size(); ++i) {  // or where a consumer wants a slice: iota
        const Shape& shape = graph->results()[i].value.shape();
        if (shape.rank() == 0 || shape[0] % ranks != 0) continue;
        Graph distributed = graph->Clone();
        distributed.set_result_placements(i, {{kAxis, Placement::Split(0)}});
        const absl::StatusOr<Graph> placed = passes::DistributeGraph(distributed, Mesh({{kAxis, ranks}}));
        ASSERT_TRUE(placed.ok()) << placed.status();
        const absl::StatusOr<Graph> local = VerifiedLocal(*placed);
        ASSERT_TRUE(local.ok()) << local.status();
        if (WorksOnSlices(row, *graph, *local)) used.insert(row.op);
      }
    }
  }
  for (const std::string& op : ops) EXPECT_NE(used.contains(op), whole.contains(op)) << op;
}

// With `statistics=rank`, n ranks compute what one rank does with n groups of the batch.
TEST(BatchNorm, StatisticsOfRanksAreThoseOfGroups) {
  int compared = 0;
  for (const OpCase& row : AllOpCases()) {
    const auto groups = row.attributes.find("groups");
    if (!row.refused.empty() || !row.op.starts_with("batch_norm") || groups == row.attributes.end()) continue;
    const int64_t ranks = std::get<int64_t>(groups->second);
    OpCase of_ranks = InDouble(row), of_groups = of_ranks;
    of_ranks.attributes.erase("groups");
    of_ranks.attributes["statistics"] = std::string("rank");
    const std::vector<Tensor> inputs = CaseInputs(of_groups);
    const auto expected = InterpretOneRank(*CaseGraph(of_groups), inputs);
    ASSERT_TRUE(expected.ok()) << expected.status();
    Graph graph = *CaseGraph(of_ranks);
    std::vector<std::vector<Tensor>> rank_inputs(static_cast<size_t>(ranks), inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].type() != inputs[0].type()) continue;  // a value per channel
      graph.set_input_placements(i, {{kAxis, Placement::Split(0)}});
      for (int64_t rank = 0; rank < ranks; ++rank)
        rank_inputs[static_cast<size_t>(rank)][i] = OnRank(inputs[i], Placement::Split(0), rank, ranks);
    }
    const auto placed = passes::DistributeGraph(graph, Mesh({{kAxis, ranks}}));
    ASSERT_TRUE(placed.ok()) << placed.status();
    const absl::StatusOr<Graph> local = VerifiedLocal(*placed);
    ASSERT_TRUE(local.ok()) << local.status();
    const auto results = Interpret(*local, rank_inputs);
    ASSERT_TRUE(results.ok()) << results.status();
    for (size_t i = 0; i < expected->size(); ++i) {
      const Placement placement = PlacementAlong(local->results()[i].placements, kAxis);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_LE(RelativeDifference((*results)[static_cast<size_t>(rank)][i],
                                     OnRank((*expected)[i], placement, rank, ranks)),
                  1e-9)
            << row.ToString() << ", result " << i << ", rank " << rank;
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 12);
}

// --- Collectives -----------------------------------------------------------------------------------------------------

class CollectivePlacementTest : public testing::TestWithParam<OpCase> {};

// Along its own axis: where the rule says replicated, all ranks hold the same bits; and a collective that brings a
// value from one placement to another changes where it is, not what it is.
TEST_P(CollectivePlacementTest, MovesAValueWithoutChangingIt) {
  const OpCase& row = GetParam();
  absl::StatusOr<Graph> graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Node& node = graph->nodes().front();
  ASSERT_TRUE(Verify(*graph).ok()) << Verify(*graph);
  const std::vector<std::vector<Tensor>> inputs = RankInputs(row);
  const auto results = Interpret(*graph, inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  for (size_t i = 0; i < graph->results().size(); ++i) {
    const Placement placement = graph->results()[i].value.placement(kAxis);
    for (int64_t rank = 0; rank < row.ranks; ++rank) {
      const Tensor& result = (*results)[static_cast<size_t>(rank)][i];
      if (row.op == "axis_index") {
        EXPECT_TRUE(placement.is_local());
        EXPECT_EQ(result.At(0), static_cast<double>(rank));
      } else if (row.op == "all_reduce" || row.op == "all_gather" || row.op == "collective_broadcast") {
        EXPECT_TRUE(placement.is_replicated()) << placement;
        EXPECT_EQ(result, (*results)[0][i]) << "rank " << rank;
        if (row.op == "all_gather") {
          EXPECT_EQ(OnRank(result, CollectiveOperandPlacement(row), rank, row.ranks),
                    inputs[static_cast<size_t>(rank)][0]);
        } else if (row.op == "collective_broadcast") {
          EXPECT_EQ(result, inputs[static_cast<size_t>(node.attr<int64_t>("root"))][0]);
        }
      } else {
        const int64_t dim = node.attr<int64_t>("dim");
        EXPECT_EQ(placement, Placement::Split(dim));
        if (row.op == "shard") {
          EXPECT_EQ(result, SliceOf(inputs[static_cast<size_t>(rank)][0], dim, rank, row.ranks));
        }
      }
    }
  }
}

// The reductions compute what the one-rank reduction of the ranks' tensors would, and reduce_scatter is the slice of
// all_reduce.
TEST_P(CollectivePlacementTest, ReducesInRankOrder) {
  const OpCase& row = GetParam();
  if (row.op != "all_reduce" && row.op != "reduce_scatter") return;
  const std::vector<std::vector<Tensor>> inputs = RankInputs(row);
  const absl::StatusOr<Graph> graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto results = Interpret(*graph, inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  const Node& node = graph->nodes().front();
  const std::string kind = node.attr<std::string>("kind");
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
      const Tensor mine =
          row.op == "all_reduce" ? expected : SliceOf(expected, node.attr<int64_t>("dim"), rank, row.ranks);
      const Tensor result = (*results)[static_cast<size_t>(rank)][i].Converted(mine.dtype());
      EXPECT_LE(RelativeDifference(result, mine), SizeOf(row.operands[i].type.dtype) == 2 ? 0.01 : 1e-6)
          << row.ToString() << " on rank " << rank;
    }
  }
}

// Sums whose order shows in their bits: 1e8 takes a 1 in, of which nothing is left when it is taken out again.
TEST(CollectivePlacement, SumsAreTakenInRankOrder) {
  const std::vector<float> of_ranks = {1e8F, 1, -1e8F, 1};
  for (const char* op : {"all_reduce", "reduce_scatter"}) {
    for (const char* kind : {"sum", "mean"}) {
      OpCase row = Case(op, {F32({4})}, {{"axis", kAxis}, {"kind", std::string(kind)}}).Ranks(4);
      if (row.op == "reduce_scatter") row.attributes.emplace("dim", int64_t{0});
      const Graph graph = *CaseGraph(row);
      // Element i of rank r: every rotation of the four numbers, with its sum from left to right.
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
          EXPECT_EQ(result.At(at), whole) << op << " " << kind << ", element " << i << " on rank " << rank;
        }
      }
    }
  }
}

// Along another axis a collective is an elementwise op or a movement of data: on a mesh {batch=2, data=n} the two
// halves, put together, are what the collective makes of the whole.
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
    graph.set_mesh(Mesh({{other, kHalves}, {kAxis, row.ranks}}));
    NodeSpec spec{&GetOp(row.op), {}, row.attributes, "", {}};
    for (size_t i = 0; i < row.operands.size(); ++i) {
      const Placement own = CollectiveOperandPlacement(row), of_operand = i == 0 ? placement : Placement::Replicated();
      const TensorType type = GlobalType(row.operands[i].type, {{kAxis, own}}, graph.mesh());
      spec.operands.push_back(
          *graph.AddInput("a" + std::to_string(i), type, false, {{other, of_operand}, {kAxis, own}}));
    }
    const absl::StatusOr<Node*> node = graph.Insert(std::move(spec));
    if (!node.ok()) continue;  // the rule requires the operand replicated, or the ranks cannot share a half evenly
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
        // Made whole, so that it can be compared.
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

INSTANTIATE_TEST_SUITE_P(Rows, CollectivePlacementTest, testing::ValuesIn(CollectiveRows()), RowName);

// Shares of a sum may not be reduced as if they were something else.
TEST(CollectivePlacement, WrongKindIsRefused) {
  for (const char* op : {"all_reduce", "reduce_scatter"}) {
    OpCase row = Case(op, {F32({2})}, {{"axis", kAxis}, {"kind", "max"}}).Ranks(2);
    if (row.op == "reduce_scatter") row.attributes.emplace("dim", int64_t{0});
    Graph graph = *CaseGraph(row);
    graph.set_input_placements(0, {{kAxis, Placement::Partial(ReduceKind::kSum)}});
    const absl::Status status = Verify(graph);
    EXPECT_NE(status.message().find("operand 0 is partial(sum), which kind=max does not make whole"), std::string::npos)
        << status;
  }
}

}  // namespace
}  // namespace lockstep
