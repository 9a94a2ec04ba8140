#include "verify/exact_interpreter.h"

#include <algorithm>
#include <optional>

#include "core/interpreter.h"
#include "core/op_def.h"
#include "verify/axioms.h"

namespace lockstep::verify {
namespace {

bool IsOnOtherRank(const Node& node, const Mesh& mesh, int64_t rank) {
  return std::any_of(node.placements().begin(), node.placements().end(), [&](const auto& along) {
    return along.second.is_at() && !along.second.is_at(mesh.Coordinate(rank, along.first));
  });
}

std::vector<ExactTensor> Nothing(const Node& node) {
  std::vector<ExactTensor> results;
  for (size_t i = 0; i < node.num_results(); ++i) {
    ExactTensor& result = results.emplace_back(node.type(i));
    std::fill(result.numbers().begin(), result.numbers().end(), Exact::NaN());
  }
  return results;
}

using Operands = std::vector<std::vector<const ExactTensor*>>;  // of each rank
using Results = std::vector<std::vector<ExactTensor>>;

absl::StatusOr<Results> RunCollective(const Node& node, const Mesh& mesh, const Operands& operands,
                                      Assumptions& assumptions) {
  Results results(operands.size());
  const std::string& axis = node.attr<std::string>("axis");
  const auto groups = mesh.has_axis(axis) ? mesh.Groups(axis) : std::vector<std::vector<int64_t>>{{0}};
  for (const std::vector<int64_t>& group : groups) {
    Operands of_group;
    for (int64_t rank : group) of_group.push_back(operands[static_cast<size_t>(rank)]);
    ASSIGN_OR_RETURN(Results found, EvaluateExactlyAcrossRanks(node, of_group, assumptions));
    for (size_t i = 0; i < group.size(); ++i) results[static_cast<size_t>(group[i])] = std::move(found[i]);
  }
  return results;
}

// A rank before `rank` with the same operands, if there is one. What it computes is computed once.
std::optional<size_t> RankWithSameOperands(const Operands& operands, size_t rank) {
  const auto same = [](const ExactTensor* a, const ExactTensor* b) { return a->SharesElements(*b); };
  for (size_t other = 0; other < rank; ++other) {
    if (std::equal(operands[rank].begin(), operands[rank].end(), operands[other].begin(), same)) return other;
  }
  return std::nullopt;
}

absl::StatusOr<Results> RunOnEachRank(const Graph& graph, const Node& node, const Operands& operands,
                                      Assumptions& assumptions) {
  Results results;
  const auto is_elsewhere = [&](size_t rank) {
    return graph.is_local() && IsOnOtherRank(node, graph.mesh(), static_cast<int64_t>(rank));
  };
  for (size_t rank = 0; rank < operands.size(); ++rank) {
    if (is_elsewhere(rank)) {
      results.push_back(Nothing(node));
      continue;
    }
    if (const auto other = RankWithSameOperands(operands, rank); other && !is_elsewhere(*other)) {
      results.push_back(results[*other]);
      continue;
    }
    ASSIGN_OR_RETURN(results.emplace_back(), EvaluateExactly(node, operands[rank], assumptions));
  }
  return results;
}

// The node's results if they follow from constants alone, which a compiler computes in floats; else nothing.
std::vector<Tensor> ResultsOfConstants(const Node& node, const std::vector<const ExactTensor*>& operands) {
  if (node.Is("constant")) return {node.attr<Tensor>("value")};
  if (operands.empty() || node.op().ranks_eval() || !node.op().eval() || node.Is("fusion")) return {};
  std::vector<const Tensor*> constants;
  for (const ExactTensor* operand : operands) {
    if (operand->constant() == nullptr) return {};
    constants.push_back(operand->constant());
  }
  absl::StatusOr<std::vector<Tensor>> results = EvaluateNode(node, constants);
  return results.ok() ? *std::move(results) : std::vector<Tensor>();
}

}  // namespace

absl::StatusOr<ExactValues> RunExactly(const Graph& graph, const std::vector<RankTensors>& inputs,
                                       Assumptions& assumptions) {
  ExactValues values;
  for (size_t i = 0; i < graph.inputs().size(); ++i) values[graph.inputs()[i].value] = inputs[i];
  for (const Node& node : graph.nodes()) {
    if (const Value origin = StandsFor(node)) {
      values[const_cast<Node&>(node).result()] = values.at(origin);
      continue;
    }
    Operands operands(static_cast<size_t>(graph.num_ranks()));
    for (Value operand : node.operands()) {
      const RankTensors& tensors = values.at(operand);
      for (size_t rank = 0; rank < operands.size(); ++rank) operands[rank].push_back(&tensors[rank]);
    }
    if (std::vector<Tensor> constants = ResultsOfConstants(node, operands[0]); !constants.empty()) {
      for (size_t i = 0; i < constants.size(); ++i)
        values[const_cast<Node&>(node).result(i)] =
            RankTensors(operands.size(), ExactTensor::OfConstant(std::move(constants[i])));
      continue;
    }
    auto found = node.op().ranks_eval() ? RunCollective(node, graph.type_mesh(), operands, assumptions)
                                        : RunOnEachRank(graph, node, operands, assumptions);
    RETURN_IF_ERROR(Annotate(found.status(), node.Describe()));
    for (size_t i = 0; i < node.num_results(); ++i) {
      RankTensors& tensors = values[const_cast<Node&>(node).result(i)];
      for (std::vector<ExactTensor>& of_rank : *found) tensors.push_back(std::move(of_rank[i]));
    }
  }
  return values;
}

absl::StatusOr<std::vector<ExactTensor>> RunExactlyOnOneRank(const Graph& graph, const std::vector<ExactTensor>& inputs,
                                                             Assumptions& assumptions) {
  std::vector<RankTensors> of_rank;
  for (const ExactTensor& input : inputs) of_rank.push_back({input});
  ASSIGN_OR_RETURN(const ExactValues values, RunExactly(graph, of_rank, assumptions));
  std::vector<ExactTensor> results;
  for (const Result& result : graph.results()) results.push_back(values.at(result.value)[0]);
  return results;
}

}  // namespace lockstep::verify
