#include "core/interpreter.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "core/op_def.h"

namespace lockstep {
namespace {

// The tensors of one value, one per rank.
using RankTensors = std::vector<Tensor>;
using Environment = std::unordered_map<Value, RankTensors, ValueHash>;

absl::Status AtSource(const Node& node, const absl::Status& status) {
  if (status.ok() || node.source().empty()) return status;
  return absl::Status(status.code(), std::string(status.message()) + ", at " + node.source());
}

std::vector<Tensor> AllocateResults(const Node& node) {
  std::vector<Tensor> results;
  for (size_t i = 0; i < node.num_results(); ++i) results.emplace_back(node.type(i));
  return results;
}

// True if the node is placed at a rank other than `rank`.
bool IsOnOtherRank(const Node& node, const Mesh& mesh, int64_t rank) {
  return std::any_of(node.placements().begin(), node.placements().end(), [&](const auto& along) {
    return along.second.is_at() && !along.second.is_at(mesh.Coordinate(rank, along.first));
  });
}

// The results on a rank that does not compute the node: NaN for floats, else zeros.
std::vector<Tensor> Nothing(const Node& node) {
  std::vector<Tensor> results = AllocateResults(node);
  for (Tensor& result : results) {
    if (IsFloat(result.dtype())) result = Tensor::Full(result.type(), std::numeric_limits<double>::quiet_NaN());
  }
  return results;
}

// The groups of ranks along `axis`. Without such an axis, which only the op push allows, the one rank is a group.
std::vector<std::vector<int64_t>> GroupsAlong(const Mesh& mesh, const std::string& axis) {
  if (mesh.has_axis(axis)) return mesh.Groups(axis);
  return {{0}};
}

absl::Status EvaluateAcrossRanks(const Node& node, const Mesh& mesh, std::vector<std::vector<const Tensor*>>& operands,
                                 std::vector<std::vector<Tensor>>& results) {
  for (const std::vector<int64_t>& group : GroupsAlong(mesh, node.attr<std::string>("axis"))) {
    std::vector<std::vector<const Tensor*>> group_operands;
    std::vector<std::vector<Tensor>> group_results;
    for (int64_t rank : group) {
      group_operands.push_back(operands[static_cast<size_t>(rank)]);
      group_results.push_back(AllocateResults(node));
    }
    RanksEvalContext context(node.op(), node.attributes(), group_operands, group_results);
    RETURN_IF_ERROR(AtSource(node, node.op().ranks_eval()(context)));
    for (size_t i = 0; i < group.size(); ++i) results[static_cast<size_t>(group[i])] = std::move(group_results[i]);
  }
  return absl::OkStatus();
}

absl::Status CheckInputs(const Graph& graph, const std::vector<std::vector<Tensor>>& inputs) {
  const size_t ranks = static_cast<size_t>(graph.num_ranks());
  if (inputs.size() != ranks) {
    return InvalidArgument() << "inputs of " << inputs.size() << " ranks for @" << graph.name() << ", a program of "
                             << ranks;
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (inputs[rank].size() != graph.inputs().size()) {
      return InvalidArgument() << inputs[rank].size() << " inputs on rank " << rank << ", expected "
                               << graph.inputs().size();
    }
    for (size_t i = 0; i < inputs[rank].size(); ++i) {
      const Input& input = graph.inputs()[i];
      if (inputs[rank][i].type() == input.value.type()) continue;
      return InvalidArgument() << "input %" << input.name() << " on rank " << rank << " is " << inputs[rank][i].type()
                               << ", expected " << input.value.type();
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> EvaluateNode(const Node& node, const std::vector<const Tensor*>& operands) {
  std::vector<Tensor> results = AllocateResults(node);
  EvalContext context(node.op(), node.attributes(), operands, results);
  RETURN_IF_ERROR(AtSource(node, node.op().eval()(context)));
  return results;
}

absl::StatusOr<std::vector<std::vector<Tensor>>> Interpret(const Graph& graph,
                                                           const std::vector<std::vector<Tensor>>& inputs) {
  RETURN_IF_ERROR(CheckInputs(graph, inputs));
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i)
      RETURN_IF_ERROR(CheckFitsInMemory(node.type(i), "the result of " + node.Describe()));
  }
  const size_t ranks = inputs.size();
  Environment environment;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    RankTensors& tensors = environment[graph.inputs()[i].value];
    for (size_t rank = 0; rank < ranks; ++rank) tensors.push_back(inputs[rank][i]);
  }
  for (const Node& node : graph.nodes()) {
    std::vector<std::vector<const Tensor*>> operands(ranks);
    std::vector<std::vector<Tensor>> results(ranks);
    for (Value operand : node.operands()) {
      const RankTensors& tensors = environment.at(operand);
      for (size_t rank = 0; rank < ranks; ++rank) operands[rank].push_back(&tensors[rank]);
    }
    if (node.op().ranks_eval()) {
      RETURN_IF_ERROR(EvaluateAcrossRanks(node, graph.type_mesh(), operands, results));
    } else {
      for (size_t rank = 0; rank < ranks; ++rank) {
        if (graph.is_local() && IsOnOtherRank(node, graph.mesh(), static_cast<int64_t>(rank))) {
          results[rank] = Nothing(node);
          continue;
        }
        ASSIGN_OR_RETURN(results[rank], EvaluateNode(node, operands[rank]));
      }
    }
    for (size_t i = 0; i < node.num_results(); ++i) {
      RankTensors& tensors = environment[const_cast<Node&>(node).result(i)];
      for (size_t rank = 0; rank < ranks; ++rank) tensors.push_back(std::move(results[rank][i]));
    }
  }
  std::vector<std::vector<Tensor>> results(ranks);
  for (const Result& result : graph.results()) {
    for (size_t rank = 0; rank < ranks; ++rank) results[rank].push_back(environment.at(result.value)[rank]);
  }
  return results;
}

absl::StatusOr<std::vector<Tensor>> InterpretOneRank(const Graph& graph, const std::vector<Tensor>& inputs) {
  ASSIGN_OR_RETURN(std::vector<std::vector<Tensor>> results, Interpret(graph, {inputs}));
  return std::move(results[0]);
}

}  // namespace lockstep
