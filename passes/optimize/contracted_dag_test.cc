#include "passes/optimize/contracted_dag.h"

#include <random>

#include "gtest/gtest.h"

namespace lockstep::passes {
namespace {

using Edges = std::vector<std::pair<size_t, size_t>>;

// Returns true if a path leads from a to b through a third merged vertex. Checks all edges each time.
bool LeadsThroughThird(const Edges& edges, const ContractedDag& dag, size_t num_vertices, size_t a, size_t b) {
  std::vector<bool> reached(num_vertices, false);
  for (bool grows = true; grows;) {
    grows = false;
    for (const auto& [from, to] : edges) {
      const size_t u = dag.Find(from), v = dag.Find(to);
      if (u == a && v == b) continue;
      if ((u != a && !reached[u]) || v == a || reached[v]) continue;
      reached[v] = true;
      grows = true;
    }
  }
  return reached[b];
}

TEST(ContractedDag, MergesWhateverClosesNoCycle) {
  std::mt19937 random(7);
  int64_t merged = 0, refused = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const size_t n = 5 + random() % 40;
    ContractedDag dag(n);
    Edges edges;
    for (size_t i = 0; i < n + n / 2; ++i) {
      const size_t from = random() % n, to = random() % n;
      if (from >= to || to - from > 8) continue;
      edges.emplace_back(from, to);
      dag.AddEdge(from, to);
    }
    for (size_t i = 0; i < 2 * n; ++i) {
      const size_t a = dag.Find(random() % n), b = dag.Find(random() % n);
      if (a == b) continue;
      const bool closes_cycle = LeadsThroughThird(edges, dag, n, a, b) || LeadsThroughThird(edges, dag, n, b, a);
      ASSERT_EQ(dag.Merge(a, b), !closes_cycle) << "of " << n << " vertices, " << a << " and " << b;
      ASSERT_EQ(dag.Find(b), closes_cycle ? b : a);
      (closes_cycle ? refused : merged)++;
    }
  }
  EXPECT_GT(merged, 2000);
  EXPECT_GT(refused, 1000);
}

// A chain 0 -> 1 -> ... -> n-1, and i -> n+i for each: a search forward from i is long, but one back from n+i is short.
TEST(ContractedDag, FarAwayVerticesAreMergedWhereOneSideIsShort) {
  constexpr size_t kLength = 5000;
  ContractedDag dag(2 * kLength);
  for (size_t i = 0; i + 1 < kLength; ++i) dag.AddEdge(i, i + 1);
  for (size_t i = 0; i < kLength; ++i) dag.AddEdge(i, kLength + i);
  for (size_t i = 0; i < kLength; ++i) ASSERT_TRUE(dag.Merge(i, kLength + i)) << i;
  EXPECT_FALSE(dag.Merge(0, kLength - 1));
}

}  // namespace
}  // namespace lockstep::passes
