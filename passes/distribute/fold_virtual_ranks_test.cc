// Tests the order of sums, with numbers whose sum depends on it. Other tests are in test/golden/ and
// test/python/test_virtual_ranks.py.

#include "passes/distribute/fold_virtual_ranks.h"

#include <algorithm>

#include "core/interpreter.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kLeaves = 8;

// Near 1e8 the floats are the multiples of 8, and ties go to the multiple of 16. Added from left to right, on all ranks
// or on each, or from left to right over the ranks' sums, at least one column has another sum.
constexpr float kTerms[kLeaves][2] = {{1e8F, 4}, {-1e8F, 4}, {1, 4},      {2, -1e8F},
                                      {1e8F, 3}, {4, 2},     {-1e8F, -3}, {8, 1}};

//   ((1e8 - 1e8) + (1 + 2)) + ((1e8 + 4) + (-1e8 + 8)) = 3 + (1e8 - 99999992) = 11
//   ((4 + 4) + (4 - 1e8)) + ((3 + 2) + (-3 + 1)) = (8 - 1e8) + 3 = -99999992
constexpr float kSums[2] = {11, -99999992};

Graph SumOfRows(int64_t ranks, int64_t min_bytes_of_slices) {
  absl::StatusOr<Graph> graph = ParseGraph(R"(mesh {data=8}
local graph @f(%x: f32[1,2] split(0)) -> (s: f32[2], o: f32[2]) {
  %t = reduce_sum %x {dims=[0]} : f32[2] partial(sum)
  %s = all_reduce %t {axis=data, kind=sum} : f32[2]
  %u = neg %t : f32[2] partial(sum)
  %o = all_reduce %u {axis=data, kind=sum} : f32[2]
  return %s, %o
}
)");
  EXPECT_TRUE(graph.ok()) << graph.status();
  const passes::Pass pass =
      passes::FoldVirtualRanks({.ranks = ranks, .min_bytes_of_slices = min_bytes_of_slices, .supports = {}});
  const absl::Status status = passes::RunPasses({pass}, *graph);
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(graph);
}

// The sums on each rank of a folded program.
std::vector<Tensor> Sums(const Graph& graph, int64_t ranks) {
  std::vector<std::vector<Tensor>> inputs;
  const int64_t rows = kLeaves / ranks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Tensor x({DType::kF32, Shape({rows, 2})});
    for (int64_t i = 0; i < rows * 2; ++i)
      x.mutable_data<float>()[static_cast<size_t>(i)] = kTerms[rank * rows + i / 2][i % 2];
    inputs.push_back({x});
  }
  const auto results = Interpret(graph, inputs);
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<Tensor> sums;
  for (const std::vector<Tensor>& of_rank : *results) sums.push_back(of_rank[0]);
  return sums;
}

TEST(FoldVirtualRanks, EveryNumberOfRanksAddsAlongOneTree) {
  for (const int64_t ranks : {1, 2, 4, 8}) {
    for (const int64_t min_bytes_of_slices : {0, 1 << 15}) {
      const std::vector<Tensor> sums = Sums(SumOfRows(ranks, min_bytes_of_slices), ranks);
      ASSERT_EQ(sums.size(), static_cast<size_t>(ranks));
      for (const Tensor& sum : sums) {
        EXPECT_EQ(sum.data<float>()[0], kSums[0]) << ranks << " ranks";
        EXPECT_EQ(sum.data<float>()[1], kSums[1]) << ranks << " ranks";
      }
    }
  }
}

TEST(FoldVirtualRanks, LargeSumsTravelInSlices) {
  const auto count = [](const Graph& graph, std::string_view op) {
    return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.Is(op); });
  };
  const Graph slices = SumOfRows(2, 8), whole = SumOfRows(2, 9);
  EXPECT_EQ(count(slices, "all_to_all"), 2);
  EXPECT_EQ(count(slices, "all_gather"), 2);
  EXPECT_EQ(count(whole, "all_to_all"), 0);
  EXPECT_EQ(count(whole, "all_gather"), 2);
}

}  // namespace
}  // namespace lockstep
