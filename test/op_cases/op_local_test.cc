// Local values: on each rank, a local value has the shape of the whole. For any placement of the other operands, an op
// of a local value computes on each rank what one rank would with that rank's own value.

#include <algorithm>

#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/local_types.h"
#include "core/verifier.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

constexpr int64_t kLocalRanks = 2;
const std::string kLocalAxis(kDataAxis);

Mesh TwoLocalRanks() { return Mesh({{kLocalAxis, kLocalRanks}}); }

// The value of a local operand on `rank`: on rank 0 that of the row, on the other rank its elements in reverse order.
Tensor OwnOf(const Tensor& whole, int64_t rank) {
  Tensor own = whole;
  if (rank == 0) return own;
  DispatchDType(whole.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::span<T> elements = own.mutable_data<T>();
    std::reverse(elements.begin(), elements.end());
  });
  return own;
}

// The part of an operand on `rank`. Of a partial sum, rank 0 has everything.
Tensor OnRank(const Tensor& whole, const Placement& placement, int64_t rank) {
  if (placement.is_local()) return OwnOf(whole, rank);
  if (placement.is_partial()) return rank == 0 ? whole : Tensor(whole.type());
  return LocalPart(whole, {{kLocalAxis, placement}}, TwoLocalRanks(), rank);
}

std::vector<Placement> PlacementsBeside(const TensorType& type) {
  std::vector<Placement> placements = {Placement::Replicated()};
  for (int64_t dim = 0; dim < type.shape.rank(); ++dim) {
    if (type.shape[dim] % kLocalRanks == 0) placements.push_back(Placement::Split(dim));
  }
  if (IsFloat(type.dtype)) placements.push_back(Placement::Partial(ReduceKind::kSum));
  return placements;
}

// One operand is local; at most one of the others is not replicated.
std::vector<std::vector<Placement>> PlacementsWithALocal(const OpCase& row) {
  std::vector<std::vector<Placement>> all;
  for (size_t local = 0; local < row.operands.size(); ++local) {
    std::vector<Placement> placements(row.operands.size());
    placements[local] = Placement::Local();
    all.push_back(placements);
    for (size_t other = 0; other < row.operands.size(); ++other) {
      if (other == local) continue;
      for (const Placement& beside : PlacementsBeside(row.operands[other].type)) {
        all.push_back(placements);
        all.back()[other] = beside;
      }
    }
  }
  return all;
}

void ExpectEachRanksOwn(const OpCase& row, const std::vector<Placement>& placements) {
  Graph graph = *CaseGraph(row);
  const std::vector<Tensor> inputs = CaseInputs(row);
  for (size_t i = 0; i < placements.size(); ++i) graph.set_input_placements(i, {{kLocalAxis, placements[i]}});
  const absl::StatusOr<Graph> placed = passes::DistributeGraph(graph, TwoLocalRanks());
  ASSERT_TRUE(placed.ok()) << placed.status();
  ASSERT_TRUE(Verify(*placed).ok()) << Verify(*placed) << "\n" << placed->ToString();
  const absl::StatusOr<Graph> local = ToLocalTypes(*placed);
  ASSERT_TRUE(local.ok()) << local.status() << "\n" << placed->ToString();
  ASSERT_TRUE(Verify(*local).ok()) << Verify(*local);

  std::vector<std::vector<Tensor>> rank_inputs(kLocalRanks), own_inputs(kLocalRanks, inputs);
  for (int64_t rank = 0; rank < kLocalRanks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    for (size_t i = 0; i < inputs.size(); ++i) {
      rank_inputs[r].push_back(OnRank(inputs[i], placements[i], rank));
      if (placements[i].is_local()) own_inputs[r][i] = OwnOf(inputs[i], rank);
    }
  }
  const auto results = Interpret(*local, rank_inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  for (int64_t rank = 0; rank < kLocalRanks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const auto expected = InterpretOneRank(*CaseGraph(row), own_inputs[r]);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (size_t i = 0; i < expected->size(); ++i) {
      const Placement placement = PlacementAlong(local->results()[i].placements, kLocalAxis);
      // The results of a fusion need not depend on all operands.
      EXPECT_TRUE(placement.is_local() || row.op == "fusion") << local->ToString();
      const Tensor& whole = (*expected)[i];
      const Tensor own =
          placement.is_local() ? whole : LocalPart(whole, {{kLocalAxis, placement}}, TwoLocalRanks(), rank);
      EXPECT_LE(RelativeDifference((*results)[r][i], own), 1e-9) << "result " << i << " on rank " << r;
    }
  }
}

std::vector<OpCase> RowsWithOperands() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    const bool placeable = row.refused.empty() && row.ranks == 0 && !row.is_large && !row.operands.empty();
    if (placeable && !GetOp(row.op).has_trait(kOptimizer)) rows.push_back(InDouble(row));
  }
  return rows;
}

class LocalOperandTest : public testing::TestWithParam<OpCase> {};

TEST_P(LocalOperandTest, EachRankComputesWithItsOwn) {
  const std::vector<std::vector<Placement>> all = PlacementsWithALocal(GetParam());
  const size_t num = std::max<size_t>(NumCases(all.size()), 2);
  for (size_t at = 0; at < all.size(); at += (all.size() + num - 1) / num) {
    const std::vector<Placement>& placements = all[at];
    std::string places;
    for (const Placement& placement : placements) places += (places.empty() ? "" : ", ") + placement.ToString();
    SCOPED_TRACE(GetParam().ToString() + " of " + places);
    ExpectEachRanksOwn(GetParam(), placements);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, LocalOperandTest, testing::ValuesIn(RowsWithOperands()),
                         [](const auto& info) { return info.param.op + "_" + std::to_string(info.index); });

}  // namespace
}  // namespace lockstep
