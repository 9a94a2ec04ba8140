// Every op's placement rule against the N-rank interpreter: for any placement of the operands, the distributed op
// computes what one rank would. Each row of the table runs on 2 and 3 ranks with its operands replicated, split along
// each dimension that divides, and partial with each reduction, in all combinations.

#include <algorithm>
#include <set>

#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "test/meaning/meaning.h"
#include "test/op_cases/op_case_graph.h"
#include "test/op_cases/placed_values.h"

namespace lockstep {
namespace {

const std::string kPlacedAxis(kDataAxis);

constexpr size_t kMostCombinations = 256;

// All combinations; if there are more than `most`, every k-th.
std::vector<std::vector<Placement>> Combinations(const OpCase& row, int64_t ranks, size_t most) {
  std::vector<std::vector<Placement>> all = {{}};
  for (const CaseOperand& operand : row.operands) {
    std::vector<std::vector<Placement>> longer;
    for (const std::vector<Placement>& combination : all) {
      for (const Placement& placement : PlacementsOf(operand, ranks)) {
        longer.push_back(combination);
        longer.back().push_back(placement);
      }
    }
    const size_t stride = (longer.size() + most - 1) / most;
    all.clear();
    for (size_t i = 0; i < longer.size(); i += stride) all.push_back(longer[i]);
  }
  return all;
}

std::string ListOf(const std::vector<Placement>& placements) {
  std::string text;
  for (const Placement& placement : placements) text += (text.empty() ? "" : ", ") + placement.ToString();
  return text;
}

std::vector<OpCase> PlaceableRows() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (row.refused.empty() && row.ranks == 0 && !row.is_large) rows.push_back(row);
  }
  return rows;
}

std::string PlacementName(const testing::TestParamInfo<OpCase>& info) {
  return info.param.op + "_" + std::to_string(info.index);
}

class PlacementTest : public testing::TestWithParam<OpCase> {};

// True if a variable of an optimizer is partial. Only the gradient and the options after it may be.
bool HoldsPartialVariable(const OpCase& row, const std::vector<Placement>& placements) {
  if (!GetOp(row.op).has_trait(kOptimizer)) return false;
  const auto gradient = static_cast<std::ptrdiff_t>(GradientOperand(GetOp(row.op)));
  return std::any_of(placements.begin(), placements.begin() + gradient, [](const auto& p) { return p.is_partial(); });
}

// Distributes the row's graph with these placements of the operands, and compares the ranks' results with the one-rank
// results.
void ExpectOneRankResults(const OpCase& row, const std::vector<Placement>& placements, int64_t ranks) {
  SCOPED_TRACE(row.ToString() + " of " + ListOf(placements) + " on " + std::to_string(ranks) + " ranks");
  absl::StatusOr<Graph> graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<Tensor> inputs = CaseInputs(row);
  const absl::StatusOr<std::vector<Tensor>> expected = InterpretOneRank(*graph, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();

  for (size_t i = 0; i < placements.size(); ++i) graph->set_input_placements(i, {{kPlacedAxis, placements[i]}});
  const absl::StatusOr<Graph> placed = passes::DistributeGraph(*graph, Mesh({{kPlacedAxis, ranks}}));
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
    const auto it = declared.find(kPlacedAxis);
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
  // In f32, terms and their sums are rounded; in f64 only mistakes show.
  const OpCase row = InDouble(GetParam());
  for (int64_t ranks : {2, 3}) {
    for (const std::vector<Placement>& placements :
         Combinations(row, ranks, UnderSanitizer() ? 8 : NumCases(kMostCombinations))) {
      ExpectOneRankResults(row, placements, ranks);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

// A consumer that needs the result split gets each rank's slice, either computed alone or cut from the whole.
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
      graph.set_result_placements(i, {{kPlacedAxis, Placement::Split(dim)}});
      const absl::StatusOr<Graph> placed = passes::DistributeGraph(graph, Mesh({{kPlacedAxis, kRanks}}));
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

INSTANTIATE_TEST_SUITE_P(Rows, PlacementTest, testing::ValuesIn(PlaceableRows()), PlacementName);

// True if the op works on slices after the row's graph is distributed with these placements: if some node of the op has
// a smaller operand or result than the row, or, after decomposition, if a result is smaller.
bool WorksOnSlices(const OpCase& row, const Graph& whole, const Graph& local) {
  const Node& before = whole.nodes().front();
  const bool is_there =
      std::any_of(local.nodes().begin(), local.nodes().end(), [&](const Node& node) { return node.Is(row.op); });
  for (size_t i = 0; i < local.results().size() && !is_there; ++i) {
    if (local.results()[i].value.type() != before.type(i)) return true;
  }
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

// A rule with splits is tested only if the row's extents divide; otherwise the op is computed whole, which hides a
// wrong rule.
TEST(Placement, EveryRuleThatSplitsIsUsedWithASplit) {
  if (UnderSanitizer()) GTEST_SKIP() << "is about the rows, not about memory";
  // Ops without a split of their own. Servers keep whole variables.
  const std::set<std::string> whole = {"constant", "pull"};
  std::set<std::string> ops, used;
  for (const OpCase& row : PlaceableRows()) {
    ops.insert(row.op);
    if (used.contains(row.op)) continue;
    const absl::StatusOr<Graph> graph = CaseGraph(row);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (int64_t ranks : {2, 3}) {
      for (const std::vector<Placement>& placements : Combinations(row, ranks, kMostCombinations)) {
        if (used.contains(row.op)) break;
        if (HoldsPartialVariable(row, placements)) continue;
        Graph distributed = graph->Clone();
        for (size_t i = 0; i < placements.size(); ++i)
          distributed.set_input_placements(i, {{kPlacedAxis, placements[i]}});
        const absl::StatusOr<Graph> placed = passes::DistributeGraph(distributed, Mesh({{kPlacedAxis, ranks}}));
        ASSERT_TRUE(placed.ok()) << placed.status();
        const absl::StatusOr<Graph> local = VerifiedLocal(*placed);
        ASSERT_TRUE(local.ok()) << local.status();
        if (WorksOnSlices(row, *graph, *local)) used.insert(row.op);
      }
      for (size_t i = 0; i < graph->results().size(); ++i) {  // or where a consumer needs a slice: iota
        const Shape& shape = graph->results()[i].value.shape();
        if (shape.rank() == 0 || shape[0] % ranks != 0) continue;
        Graph distributed = graph->Clone();
        distributed.set_result_placements(i, {{kPlacedAxis, Placement::Split(0)}});
        const absl::StatusOr<Graph> placed = passes::DistributeGraph(distributed, Mesh({{kPlacedAxis, ranks}}));
        ASSERT_TRUE(placed.ok()) << placed.status();
        const absl::StatusOr<Graph> local = VerifiedLocal(*placed);
        ASSERT_TRUE(local.ok()) << local.status();
        if (WorksOnSlices(row, *graph, *local)) used.insert(row.op);
      }
    }
  }
  for (const std::string& op : ops) EXPECT_NE(used.contains(op), whole.contains(op)) << op;
}

// With `statistics=rank`, n ranks compute what one rank computes with n groups of the batch.
TEST(BatchNorm, StatisticsOfRanksAreThoseOfGroups) {
  int compared = 0;
  for (const OpCase& row : AllOpCases()) {
    const auto groups = row.attributes.find("groups");
    const bool has_statistics = GetOp(row.op).FindAttribute("statistics") != nullptr;
    if (!row.refused.empty() || !has_statistics || groups == row.attributes.end()) continue;
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
      graph.set_input_placements(i, {{kPlacedAxis, Placement::Split(0)}});
      for (int64_t rank = 0; rank < ranks; ++rank)
        rank_inputs[static_cast<size_t>(rank)][i] = OnRank(inputs[i], Placement::Split(0), rank, ranks);
    }
    const auto placed = passes::DistributeGraph(graph, Mesh({{kPlacedAxis, ranks}}));
    ASSERT_TRUE(placed.ok()) << placed.status();
    const absl::StatusOr<Graph> local = VerifiedLocal(*placed);
    ASSERT_TRUE(local.ok()) << local.status();
    const auto results = Interpret(*local, rank_inputs);
    ASSERT_TRUE(results.ok()) << results.status();
    for (size_t i = 0; i < expected->size(); ++i) {
      const Placement placement = PlacementAlong(local->results()[i].placements, kPlacedAxis);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_LE(RelativeDifference((*results)[static_cast<size_t>(rank)][i],
                                     OnRank((*expected)[i], placement, rank, ranks)),
                  1e-9)
            << row.ToString() << ", result " << i << ", rank " << rank;
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 16);
}

// If an axis splits the planes, statistics are those of whole planes, and the axis that splits the batch still
// determines the groups, in either order of the axes.
TEST(BatchNorm, StatisticsOfRanksDoNotDependOnTheOrderOfAxes) {
  constexpr std::string_view kText = R"(
graph @n(%x: f64[4,2,6] split(0) split(2, model), %scale: f64[2], %bias: f64[2]) -> (y: f64[4,2,6], m: f64[2]) {
  %y, %m, %v = batch_norm_training %x, %scale, %bias {epsilon=1e-3, $} : f64[4,2,6], f64[2], f64[2]
  return %y, %m
})";
  const auto with = [&](const std::string& attribute) {
    std::string text(kText);
    return *ParseGraph(text.replace(text.find('$'), 1, attribute));
  };
  const Graph of_ranks = with("statistics=rank"), of_groups = with("groups=2");
  const std::vector<Tensor> inputs = RandomInputs(of_groups)[0];
  const auto expected = InterpretOneRank(of_groups, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const Mesh& mesh : {Mesh({{"data", 2}, {"model", 3}}), Mesh({{"model", 3}, {"data", 2}})}) {
    const auto placed = passes::DistributeGraph(of_ranks, mesh);
    ASSERT_TRUE(placed.ok()) << placed.status();
    const absl::Status same = CheckAgainstOneRank(*placed, inputs, *expected, 1e-9);
    EXPECT_TRUE(same.ok()) << mesh.ToString() << ": " << same;
  }
}

}  // namespace
}  // namespace lockstep
