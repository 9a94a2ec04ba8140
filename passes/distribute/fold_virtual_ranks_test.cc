// Tests the order of sums, with numbers whose sum depends on it. Other tests are in test/golden/ and
// test/python/test_virtual_ranks.py.

#include "passes/distribute/fold_virtual_ranks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/interpreter.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kLeaves = 8;
using Row = std::array<float, 2>;  // a term of two columns

// Near 1e8 the floats are the multiples of 8, and ties go to the multiple of 16. Added from left to right, on all ranks
// or on each, or from left to right over the ranks' sums, at least one column has another sum.
const std::vector<Row> kTerms = {{1e8F, 4}, {-1e8F, 4}, {1, 4}, {2, -1e8F}, {1e8F, 3}, {4, 2}, {-1e8F, -3}, {8, 1}};

//   ((1e8 - 1e8) + (1 + 2)) + ((1e8 + 4) + (-1e8 + 8)) = 3 + (1e8 - 99999992) = 11
//   ((4 + 4) + (4 - 1e8)) + ((3 + 2) + (-3 + 1)) = (8 - 1e8) + 3 = -99999992
constexpr float kSums[2] = {11, -99999992};

Graph SumOfRows(passes::VirtualRanks options, int64_t leaves = kLeaves) {
  absl::StatusOr<Graph> graph = ParseGraph("mesh {data=" + std::to_string(leaves) + R"(}
local graph @f(%x: f32[1,2] split(0)) -> (s: f32[2], o: f32[2]) {
  %t = reduce_sum %x {dims=[0]} : f32[2] partial(sum)
  %s = all_reduce %t {axis=data, kind=sum} : f32[2]
  %u = neg %t : f32[2] partial(sum)
  %o = all_reduce %u {axis=data, kind=sum} : f32[2]
  return %s, %o
}
)");
  EXPECT_TRUE(graph.ok()) << graph.status();
  const absl::Status status = passes::RunPasses({passes::FoldVirtualRanks(std::move(options))}, *graph);
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(graph);
}

// The sums of `terms`, one for each virtual rank, on each rank of a folded program.
std::vector<Tensor> Sums(const Graph& graph, int64_t ranks, const std::vector<Row>& terms = kTerms) {
  std::vector<std::vector<Tensor>> inputs;
  const int64_t rows = static_cast<int64_t>(terms.size()) / ranks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Tensor x({DType::kF32, Shape({rows, 2})});
    for (int64_t i = 0; i < rows * 2; ++i)
      x.mutable_data<float>()[static_cast<size_t>(i)] =
          terms[static_cast<size_t>(rank * rows + i / 2)][static_cast<size_t>(i % 2)];
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
      const std::vector<Tensor> sums =
          Sums(SumOfRows({.ranks = ranks, .min_bytes_of_slices = min_bytes_of_slices, .supports = {}}), ranks);
      ASSERT_EQ(sums.size(), static_cast<size_t>(ranks));
      for (const Tensor& sum : sums) {
        EXPECT_EQ(sum.data<float>()[0], kSums[0]) << ranks << " ranks";
        EXPECT_EQ(sum.data<float>()[1], kSums[1]) << ranks << " ranks";
      }
    }
  }
}

// The sum of terms[first], …, terms[first + count - 1] along a binary tree, and from left to right.
float AlongTree(const std::vector<Row>& terms, size_t column, size_t first, size_t count) {
  if (count == 1) return terms[first][column];
  return AlongTree(terms, column, first, count / 2) + AlongTree(terms, column, first + count / 2, count / 2);
}
float InOrder(const std::vector<Row>& terms, size_t column) {
  float sum = 0;
  for (const Row& row : terms) sum += row[column];
  return sum;
}

// More terms than a loop adds: a rank adds them in several loops, along the same tree.
TEST(FoldVirtualRanks, ManyVirtualRanksAddAlongOneTree) {
  constexpr size_t kMany = 64;
  std::vector<Row> terms;
  for (size_t i = 0; i < kMany; ++i) {
    const auto number = static_cast<float>(i);
    terms.push_back({std::exp(number / 3) * (i % 2 == 0 ? 1.0F : -1.0F), 1 / (number + 1)});
  }
  for (const int64_t ranks : {1, 2, 4, 64}) {
    for (const int64_t min_bytes_of_slices : {0, 1 << 15}) {
      const Graph graph =
          SumOfRows({.ranks = ranks, .min_bytes_of_slices = min_bytes_of_slices, .supports = {}}, kMany);
      for (const Tensor& sum : Sums(graph, ranks, terms)) {
        for (size_t column : {0, 1}) {
          EXPECT_EQ(sum.data<float>()[column], AlongTree(terms, column, 0, kMany)) << ranks << " ranks";
          EXPECT_NE(sum.data<float>()[column], InOrder(terms, column));
        }
      }
    }
  }
}

int64_t Count(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.Is(op); });
}

TEST(FoldVirtualRanks, LargeSumsTravelInSlices) {
  const Graph slices = SumOfRows({.ranks = 2, .min_bytes_of_slices = 8, .supports = {}}),
              whole = SumOfRows({.ranks = 2, .min_bytes_of_slices = 9, .supports = {}});
  EXPECT_EQ(Count(slices, "all_to_all"), 2);
  EXPECT_EQ(Count(slices, "all_gather"), 2);
  EXPECT_EQ(Count(whole, "all_to_all"), 0);
  EXPECT_EQ(Count(whole, "all_gather"), 2);
}

TEST(FoldVirtualRanks, ATargetWithoutLoopsAddsAlongTheSameTree) {
  for (const int64_t ranks : {1, 2, 8}) {
    int64_t num_asked = 0;
    const Graph graph = SumOfRows({.ranks = ranks, .supports = [&](const Node& node) {
                                     num_asked += node.Is("fusion");
                                     return false;
                                   }});
    EXPECT_GT(num_asked, 0);
    EXPECT_EQ(Count(graph, "fusion"), 0);
    EXPECT_GE(Count(graph, "add"), 2);
    for (const Tensor& sum : Sums(graph, ranks)) {
      EXPECT_EQ(sum.data<float>()[0], kSums[0]) << ranks << " ranks";
      EXPECT_EQ(sum.data<float>()[1], kSums[1]) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace lockstep
