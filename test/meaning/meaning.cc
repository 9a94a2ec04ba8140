#include "test/meaning/meaning.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/local_types.h"
#include "core/op_def.h"
#include "core/random_tensor.h"

namespace lockstep {
namespace {

using RankTensors = std::vector<std::vector<Tensor>>;  // [rank][i]

bool IsLocal(const PlacementMap& placements) {
  return std::any_of(placements.begin(), placements.end(), [](const auto& entry) { return entry.second.is_local(); });
}

// Sets every third float of each tensor to a number at which incorrect rules show.
void AddSpecialNumbers(RankTensors& inputs) {
  static constexpr double kNumbers[] = {-0.0, 0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN};
  for (std::vector<Tensor>& tensors : inputs) {
    size_t next = 0;
    for (Tensor& tensor : tensors) {
      DispatchDType(tensor.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        if (!IsFloat(tensor.dtype())) return;
        const std::span<T> data = tensor.mutable_data<T>();
        for (size_t i = 0; i < data.size(); i += 3) data[i] = ConvertElement<T>(kNumbers[next++ % std::size(kNumbers)]);
      });
    }
  }
}

// Labels that are too large for their classes, and zero divisors, are errors. On an error, tries again with all
// integers 0, then 1.
absl::StatusOr<RankTensors> InterpretSomehow(const Graph& graph, RankTensors& inputs) {
  absl::StatusOr<RankTensors> results = Interpret(graph, inputs);
  for (double number : {0.0, 1.0}) {
    if (results.ok()) break;
    for (std::vector<Tensor>& tensors : inputs) {
      for (Tensor& tensor : tensors) {
        if (IsInteger(tensor.dtype())) tensor = Tensor::Full(tensor.type(), number);
      }
    }
    results = Interpret(graph, inputs);
  }
  return results;
}

// True if the graph has only elementwise ops, movements of elements and generators, in which the sign of a zero is
// defined. In a sum it depends on where the addition starts.
bool ZerosHaveSigns(const Graph& graph) {
  return std::all_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
    return node.op().has_trait(kElementwise) || node.op().has_trait(kMovement) || node.op().has_trait(kGenerator);
  });
}

// The inputs of `after`, found by name among those of `before`. A state that a pass added is zero.
RankTensors InputsByName(const Graph& before, const Graph& after, const RankTensors& inputs) {
  RankTensors by_name(inputs.size());
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    for (const Input& wanted : after.inputs()) {
      if (wanted.is_state && !before.FindInput(wanted.name())) by_name[rank].emplace_back(wanted.value.type());
      for (size_t i = 0; i < before.inputs().size(); ++i) {
        if (before.inputs()[i].name() == wanted.name()) by_name[rank].push_back(inputs[rank][i]);
      }
    }
  }
  return by_name;
}

// Compares each result of `before` with that of the same name.
absl::Status CompareByName(const Graph& before, const RankTensors& expected, const Graph& after,
                           const RankTensors& found, bool signed_zeros, int* num_compared) {
  const double tolerance = ToleranceOf(before);
  for (size_t i = 0; i < before.results().size(); ++i) {
    const Result& result = before.results()[i];
    const Result* const same = after.FindResult(result.name, result.is_state);
    if (!same) return Internal() << "result " << result.name << " is gone";
    const size_t at = static_cast<size_t>(same - after.results().data());
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      RETURN_IF_ERROR(Annotate(CheckClose(result.name, expected[rank][i], found[rank][at], tolerance, signed_zeros),
                               "rank " + std::to_string(rank)));
      ++*num_compared;
    }
  }
  return absl::OkStatus();
}

}  // namespace

double ToleranceOf(const Graph& graph) {
  double tolerance = 0;
  const auto see = [&](DType dtype) {
    if (dtype == DType::kBF16 || dtype == DType::kF16) tolerance = std::max(tolerance, 0.1);
    if (dtype == DType::kF32) tolerance = std::max(tolerance, 1e-3);
    if (dtype == DType::kF64) tolerance = std::max(tolerance, 1e-9);
  };
  for (const Input& input : graph.inputs()) see(input.value.dtype());
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i) see(node.type(i).dtype);
    if (node.op().collective() == CollectiveOp::kAllReduce && !node.attr<std::string>("wire").empty())
      see(DType::kBF16);
  }
  return tolerance;
}

absl::Status CheckClose(const std::string& name, const Tensor& expected, const Tensor& found, double tolerance,
                        bool signed_zeros) {
  if (expected.type() != found.type())
    return Internal() << "result " << name << " was " << expected.type() << " and is " << found.type();
  double largest = 1;
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    if (std::isfinite(expected.At(i))) largest = std::max(largest, std::abs(expected.At(i)));
  }
  const double allowed = IsFloat(expected.dtype()) ? tolerance * largest : 0;
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    const double was = expected.At(i), is = found.At(i);
    bool close = was == is || (std::isnan(was) && std::isnan(is)) || std::abs(was - is) <= allowed;
    if (signed_zeros && was == 0 && is == 0) close = std::signbit(was) == std::signbit(is);
    if (!close) {
      return Internal() << "element " << i << " of result " << name << " was " << DoubleToString(was) << " and is "
                        << DoubleToString(is);
    }
  }
  return absl::OkStatus();
}

namespace {

// True if the rank has a part of a value that may be placed at one rank of an axis.
bool IsThere(const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  return std::none_of(placements.begin(), placements.end(), [&](const auto& entry) {
    return entry.second.is_at() && mesh.has_axis(entry.first) &&
           !entry.second.is_at(mesh.Coordinate(rank, entry.first));
  });
}

// The part of a value that a rank has. Of a partial sum or product, the first rank has the whole, and the others zeros
// or ones. Ranks without the value have NaN.
Tensor PartOf(const Tensor& whole, const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  const Tensor part = LocalPart(whole, placements, mesh, rank);
  if (!IsThere(placements, mesh, rank)) {
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    return IsFloat(part.dtype()) ? Tensor::Full(part.type(), nothing) : Tensor(part.type());
  }
  for (const auto& [axis, placement] : placements) {
    if (mesh.Coordinate(rank, axis) == 0) continue;
    if (placement.is_partial(ReduceKind::kSum)) return Tensor(part.type());
    if (placement.is_partial(ReduceKind::kProd)) return Tensor::Full(part.type(), 1);
  }
  return part;
}

// The graph without the results that a pass added at the end.
Graph WithResultsOf(const Graph& before, const Graph& after) {
  Graph graph = after.Clone();
  while (graph.results().size() > before.results().size()) graph.RemoveResult(graph.results().size() - 1);
  return graph;
}

}  // namespace

RankTensors SharesOfInputs(const Graph& graph, const std::vector<Tensor>& inputs) {
  RankTensors shares(static_cast<size_t>(graph.num_ranks()));
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      shares[rank].push_back(
          PartOf(inputs[i], graph.inputs()[i].placements(), graph.mesh(), static_cast<int64_t>(rank)));
    }
  }
  return shares;
}

absl::Status CheckShares(const Graph& graph, const std::vector<Tensor>& expected, const RankTensors& found,
                         double tolerance) {
  if (found.size() != static_cast<size_t>(graph.num_ranks()))
    return Internal() << "results of " << found.size() << " ranks of the mesh " << graph.mesh().ToString();
  for (size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank].size() != expected.size())
      return Internal() << "there were " << expected.size() << " results, now there are " << found[rank].size();
    for (size_t i = 0; i < expected.size(); ++i) {
      const Result& result = graph.results()[i];
      if (IsLocal(result.placements)) continue;
      if (graph.is_local() && !IsThere(result.placements, graph.mesh(), static_cast<int64_t>(rank))) continue;
      const Tensor share = graph.is_local()
                               ? LocalPart(expected[i], result.placements, graph.mesh(), static_cast<int64_t>(rank))
                               : expected[i];
      RETURN_IF_ERROR(Annotate(CheckClose(result.name, share, found[rank][i], tolerance),
                               "rank " + std::to_string(rank) + " of " + std::to_string(found.size())));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAgainstOneRank(const Graph& graph, const std::vector<Tensor>& inputs,
                                 const std::vector<Tensor>& expected, double tolerance) {
  if (!graph.is_local()) {
    ASSIGN_OR_RETURN(const RankTensors found, Interpret(graph, {inputs}));
    RETURN_IF_ERROR(CheckShares(graph, expected, found, tolerance));
    if (!graph.is_placed()) return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Graph local, ToLocalTypes(graph));
  ASSIGN_OR_RETURN(const RankTensors found, Interpret(local, SharesOfInputs(local, inputs)));
  return CheckShares(local, expected, found, tolerance);
}

namespace {

// For a pass that gives the program of some ranks to fewer ranks: both are compared with the program of one rank.
absl::Status CheckOnFewerRanks(const Graph& before, const Graph& after, int* num_compared) {
  ASSIGN_OR_RETURN(const Graph one_rank, ToGlobalTypes(before));
  RankTensors inputs = RandomInputs(one_rank, /*seed=*/3);
  const absl::StatusOr<RankTensors> expected = InterpretSomehow(one_rank, inputs);
  RETURN_IF_ERROR(Annotate(expected.status(), "before the pass"));
  for (const Graph* graph : {&before, &after})
    RETURN_IF_ERROR(CheckAgainstOneRank(*graph, inputs[0], (*expected)[0], ToleranceOf(before)));
  *num_compared +=
      static_cast<int>((before.num_ranks() + after.num_ranks()) * static_cast<int64_t>((*expected)[0].size()));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSameMeaning(const Graph& before, const Graph& after, passes::Keeps keeps, int* num_compared) {
  *num_compared = 0;
  if (keeps == passes::Keeps::kNothing) return absl::OkStatus();
  if (keeps != passes::Keeps::kResults && after.results().size() != before.results().size())
    return Internal() << "there were " << before.results().size() << " results, now there are "
                      << after.results().size();
  if (before.is_local() && after.num_ranks() < before.num_ranks())
    return CheckOnFewerRanks(before, after, num_compared);
  for (const bool special : {false, true}) {
    if (special && keeps != passes::Keeps::kEveryValue) break;
    RankTensors inputs = RandomInputs(before, /*seed=*/3);
    if (special) AddSpecialNumbers(inputs);
    const absl::StatusOr<RankTensors> expected = InterpretSomehow(before, inputs);
    RETURN_IF_ERROR(Annotate(expected.status(), "before the pass"));
    const RankTensors after_inputs = InputsByName(before, after, inputs);
    if (before.num_ranks() == after.num_ranks()) {
      const absl::StatusOr<RankTensors> found = Interpret(after, after_inputs);
      RETURN_IF_ERROR(Annotate(found.status(), "after the pass"));
      RETURN_IF_ERROR(CompareByName(before, *expected, after, *found, special && ZerosHaveSigns(before), num_compared));
    }
    // Infinities are not compared in ranks' parts: those in terms of a sum are not those of the sum.
    if (special || after.mesh().empty() || before.is_local()) continue;
    RETURN_IF_ERROR(Annotate(
        CheckAgainstOneRank(WithResultsOf(before, after), after_inputs[0], (*expected)[0], ToleranceOf(before)),
        "the ranks' parts after the pass"));
    *num_compared += static_cast<int>(after.mesh().num_ranks() * static_cast<int64_t>((*expected)[0].size()));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
