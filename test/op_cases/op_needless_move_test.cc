// No placement rule makes ranks communicate without need. A rule that requires replicated operands everywhere is
// correct, and no test of meanings sees its cost. Where a rule moves an operand, each rank here evaluates the op on its
// own part; if the results are parts of the one-rank results, the move was needless.

#include <algorithm>
#include <cmath>

#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/local_types.h"
#include "core/ops/combine.h"
#include "core/placement_rules.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

constexpr int64_t kRanks = 2;
const std::string kAxis(kDataAxis);

Mesh TwoRanks() { return Mesh({{kAxis, kRanks}}); }

// The part of operand i, `whole`, on `rank`. Terms of a sum are unrelated numbers, so that nothing fits by chance.
Tensor PartOnRank(const Tensor& whole, size_t i, const Placement& placement, int64_t rank) {
  if (!placement.is_partial()) return LocalPart(whole, {{kAxis, placement}}, TwoRanks(), rank);
  Tensor share = whole;
  double at = 1 + 0.37 * static_cast<double>(i);
  for (double& element : share.mutable_data<double>()) {
    const double other = 1.5 + std::sin(at++);
    element = rank == 0 ? element - other : other;
  }
  return share;
}

// True if `of_ranks`, with this placement, together are `whole`.
bool Are(const std::vector<Tensor>& of_ranks, const Placement& placement, const Tensor& whole) {
  constexpr double kClose = 1e-9;
  if (!placement.is_partial()) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const Tensor expected = LocalPart(whole, {{kAxis, placement}}, TwoRanks(), rank);
      if (RelativeDifference(of_ranks[static_cast<size_t>(rank)], expected) > kClose) return false;
    }
    return true;
  }
  if (of_ranks[0].type() != whole.type() || whole.dtype() != DType::kF64) return false;
  Tensor reduced = of_ranks[0];
  int64_t at = 0;
  for (double& element : reduced.mutable_data<double>())
    element = ops::Combine(placement.reduce(), element, of_ranks[1].At(at++));
  return RelativeDifference(reduced, whole) <= kClose;
}

std::vector<Placement> SplitsOf(const TensorType& type) {
  std::vector<Placement> splits;
  for (int64_t dim = 0; dim < type.shape.rank(); ++dim) {
    if (type.shape[dim] % kRanks == 0) splits.push_back(Placement::Split(dim));
  }
  return splits;
}

// A row with the results of one rank.
struct Whole {
  OpCase row;
  Graph graph;
  std::vector<Tensor> inputs, results;
};

// The results of the op on the ranks' parts of the operands, [rank][result], with the attributes of a result with
// placement `result`; empty if the op refuses them.
std::vector<std::vector<Tensor>> OfParts(const Whole& whole, const std::vector<Placement>& operands,
                                         const Placement& result) {
  AttributeMap attributes = whole.row.attributes;
  for (const OpDef::AttributeDef& def : GetOp(whole.row.op).attribute_defs()) {
    const auto it = attributes.find(def.name);
    if (!def.is_per_dim || it == attributes.end()) continue;
    it->second =
        LocalType({DType::kF64, Shape(std::get<Ints>(it->second))}, {{kAxis, result}}, TwoRanks()).shape.dims();
  }
  std::vector<std::vector<Tensor>> results;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    OpCase part = whole.row;
    part.attributes = attributes;
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < operands.size(); ++i) {
      inputs.push_back(PartOnRank(whole.inputs[i], i, operands[i], rank));
      part.operands[i] = inputs.back();
    }
    const absl::StatusOr<Graph> graph = CaseGraph(part);
    if (!graph.ok()) return {};
    absl::StatusOr<std::vector<Tensor>> of_rank = InterpretOneRank(*graph, inputs);
    if (!of_rank.ok()) return {};
    results.push_back(*std::move(of_rank));
  }
  return results;
}

// The placements of the op's results if each rank evaluates it on its own part, as text; "" if they are not parts of
// the whole. Results that are equal on both ranks do not depend on the parts, so they are not considered.
std::string ResultsOfParts(const Whole& whole, const std::vector<Placement>& operands) {
  std::vector<std::vector<Placement>> candidates;
  for (const Tensor& result : whole.results) {
    std::vector<Placement>& of_result = candidates.emplace_back(SplitsOf(result.type()));
    of_result.push_back(Placement::Partial(GetOp(whole.row.op).reduction().value_or(ReduceKind::kSum)));
    of_result.push_back(Placement::Partial(ReduceKind::kSum));
  }
  for (const Placement& first : candidates[0]) {
    const std::vector<std::vector<Tensor>> parts = OfParts(whole, operands, first);
    if (parts.empty()) continue;
    std::string found;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const auto fits = [&](const Placement& p) { return Are({parts[0][i], parts[1][i]}, p, whole.results[i]); };
      const auto it = std::find_if(candidates[i].begin(), candidates[i].end(), fits);
      if (it == candidates[i].end()) break;
      found += (i ? ", " : "") + it->ToString();
      if (i + 1 == candidates.size()) return found;
    }
  }
  return "";
}

// All combinations that choose one option for each operand.
std::vector<std::vector<Placement>> Products(const std::vector<std::vector<Placement>>& options) {
  std::vector<std::vector<Placement>> all = {{}};
  for (const std::vector<Placement>& of_one : options) {
    std::vector<std::vector<Placement>> longer;
    for (const std::vector<Placement>& begun : all) {
      for (const Placement& placement : of_one) longer.push_back(begun), longer.back().push_back(placement);
    }
    all = std::move(longer);
  }
  return all;
}

std::string ToString(const std::vector<Placement>& placements) {
  std::string text;
  for (const Placement& placement : placements) text += (text.empty() ? "" : ", ") + placement.ToString();
  return text;
}

// True for the moves that rules make without need.
bool MayMove(const OpCase& row, size_t operand, const Placement& placement) {
  const std::string& op = row.op;
  const bool has_windows = op.starts_with("convolution") || op.find("_pool") != std::string::npos;
  // The op is linear in the gradient; its rule does not use this.
  if (op == "max_pool_grad" && placement.is_partial()) return operand == 1;
  // In these rows windows happen not to overlap. If they did, elements of neighbours would be needed.
  if (has_windows) return placement.is_split() && placement.dim() >= 2;
  // A stride reaches equally many elements on each rank only by chance.
  if (op == "slice") return placement.is_split();
  // Values per channel are small, and so are the sums to which terms of a gradient are later reduced.
  if (op.starts_with("batch_norm")) return placement.is_partial() || (placement.is_split(0) && operand > 0);
  // With one operand there is nothing to concatenate, and over no dimension nothing to reduce.
  if (op == "concat") return row.operands.size() == 1;
  if (GetOp(op).reduction()) return std::get<Ints>(row.attributes.at("dims")).empty();
  // A partial value is reduced while it is small.
  if (op == "broadcast") return placement.is_partial();
  // Linear between these dtypes, but not where it rounds.
  if (op == "convert") return placement.is_partial();
  // To its own dtype it does nothing and is simplified away.
  if (op == "bitcast") return placement.is_partial();
  // The identity before training mode. In training it drops elements of the sum, not of terms.
  if (op == "dropout") return placement.is_partial();
  // The rule checks the body's placements, and this body's are all replicated; distribute decides about better ones.
  if (op == "scan") return true;
  return false;
}

// Returns "split(0), replicated: ..." if the rule moves operands with these placements without need; else "".
std::string NeedlessMove(const Whole& whole, const std::vector<Placement>& placements) {
  const Node& node = whole.graph.nodes().front();
  std::vector<TensorType> types;
  for (const Tensor& result : whole.results) types.push_back(result.type());
  const Mesh mesh = TwoRanks();
  const PlacementRuleResult ruling = AskPlacementRule({node.op(), node.attributes(), node.operands(), types},
                                                      mesh.axes()[0], std::nullopt, placements);
  bool moves = false;
  std::vector<std::vector<Placement>> options;  // placements of each operand that need no communication
  for (size_t i = 0; i < placements.size(); ++i) {
    const Placement& is = placements[i];
    moves |= !is.is_replicated() && ruling.required[i] != is && !MayMove(whole.row, i, is);
    options.push_back({is});
    if (!is.is_replicated()) continue;
    for (const Placement& split : SplitsOf(whole.row.operands[i].type)) options.back().push_back(split);
  }
  if (!moves || ruling.decompose || !ruling.failure.empty()) return "";
  for (const std::vector<Placement>& as : Products(options)) {
    const std::string results = ResultsOfParts(whole, as);
    if (results.empty()) continue;
    return ToString(placements) + ": the rule requires " + ToString(ruling.required) + ", but from " + ToString(as) +
           " each rank computes its part of " + results;
  }
  return "";
}

// All placements of the operands. An optimizer's variables are placed like the first one, and not partial.
std::vector<std::vector<Placement>> PlacementsOf(const OpCase& row) {
  const bool is_optimizer = GetOp(row.op).has_trait(kOptimizer);
  std::vector<std::vector<Placement>> options;
  for (size_t i = 0; i < row.operands.size(); ++i) {
    const TensorType& type = row.operands[i].type;
    std::vector<Placement>& of_operand = options.emplace_back(SplitsOf(type));
    const bool is_variable = is_optimizer && i != GradientOperand(GetOp(row.op));
    if (!is_optimizer || type.shape.rank() == 0) of_operand.push_back(Placement::Replicated());
    if (type.dtype == DType::kF64 && !is_variable) of_operand.push_back(Placement::Partial(ReduceKind::kSum));
  }
  std::vector<std::vector<Placement>> all = Products(options);
  if (is_optimizer) {
    std::erase_if(all, [&](const std::vector<Placement>& placements) {
      for (size_t i = 1; i < GradientOperand(GetOp(row.op)); ++i) {
        if (row.operands[i].type == row.operands[0].type && placements[i] != placements[0]) return true;
      }
      return false;
    });
  }
  return all;
}

// Without elements, or with a single one, everything is a part by chance.
bool HasElements(const OpCase& row) {
  const auto is_whole = [&](const CaseOperand& operand) {
    if (operand.type.shape.rank() == 0) return GetOp(row.op).has_trait(kOptimizer);  // number of steps
    const std::vector<int64_t> dims = operand.type.shape.dims();
    return std::none_of(dims.begin(), dims.end(), [](int64_t extent) { return extent <= 1; });
  };
  return std::all_of(row.operands.begin(), row.operands.end(), is_whole);
}

std::vector<OpCase> Rows() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (row.refused.empty() && row.ranks == 0 && !row.is_large && !row.operands.empty() && HasElements(row))
      rows.push_back(InDouble(row));
  }
  return rows;
}

class NeedlessMoveTest : public testing::TestWithParam<OpCase> {};

TEST_P(NeedlessMoveTest, WhatEachRankCanDoAloneIsNotMoved) {
  const OpCase& row = GetParam();
  absl::StatusOr<Graph> graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<Tensor> inputs = CaseInputs(row);
  absl::StatusOr<std::vector<Tensor>> results = InterpretOneRank(*graph, inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  const Whole whole{row, *std::move(graph), inputs, *std::move(results)};
  const size_t most = NumCases(size_t{300});
  const std::vector<std::vector<Placement>> all = PlacementsOf(row);
  for (size_t at = 0; at < all.size(); at += (all.size() + most - 1) / most)
    EXPECT_EQ(NeedlessMove(whole, all[at]), "") << row;
}

INSTANTIATE_TEST_SUITE_P(Rows, NeedlessMoveTest, testing::ValuesIn(Rows()),
                         [](const auto& info) { return info.param.op + "_" + std::to_string(info.index); });

}  // namespace
}  // namespace lockstep
