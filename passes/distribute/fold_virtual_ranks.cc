#include "passes/distribute/fold_virtual_ranks.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/op_def.h"
#include "passes/distribute/local_emitter.h"
#include "passes/distribute/sum_tree.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;
using Values = std::vector<Value>;

const std::string kAxis(kDataAxis);
constexpr char kOption[] = "virtual_ranks", kCannot[] = " cannot run on several virtual ranks of one rank";

bool IsAlong(const Node& node) {
  const auto axis = node.attributes().find("axis");
  const std::string* const name = axis == node.attributes().end() ? nullptr : std::get_if<std::string>(&axis->second);
  return name != nullptr && *name == kAxis;
}

// Returns an error if a node in a region of `node` communicates or depends on the rank.
absl::Status CheckRegions(const Node& node) {
  for (const auto& [name, value] : node.attributes()) {
    const Region* const region = std::get_if<Region>(&value);
    if (region == nullptr) continue;
    for (const Node& inner : region->graph().nodes()) {
      if (IsAlong(inner))
        return InvalidArgument() << inner.Describe() << " in the body of " << node.Describe() << kCannot;
      RETURN_IF_ERROR(CheckRegions(inner));
    }
  }
  return absl::OkStatus();
}

int64_t CopiesOf(const VirtualRanks& options, int64_t virtual_ranks) {
  return options.counts.empty() ? virtual_ranks / options.ranks : options.counts[static_cast<size_t>(options.rank)];
}

class Folding {
 public:
  Folding(const Graph& from, const VirtualRanks& options)
      : from_(from),
        options_(options),
        copies_(CopiesOf(options, *from.mesh().axis_size(kAxis))),
        to_(from.name()),
        emit_(to_, options.ranks),
        tree_(emit_, options) {}

  absl::StatusOr<Graph> Run() {
    if (emit_.ranks() > 1) to_.set_mesh(Mesh({{kAxis, emit_.ranks()}}), /*is_local=*/true);
    for (const Input& input : from_.inputs()) RETURN_IF_ERROR(AddInput(input));
    for (const Node& node : from_.nodes()) RETURN_IF_ERROR(Annotate(Fold(node), kOption));
    for (const Result& result : from_.results()) RETURN_IF_ERROR(AddResult(result));
    RETURN_IF_ERROR(emit_.status());
    return std::move(to_);
  }

 private:
  bool has_counts() const { return !options_.counts.empty() && emit_.ranks() > 1; }
  Placement Along(Value value) const { return value.placement(kAxis); }
  bool Varies(Value value) const { return !Along(value).is_replicated(); }

  // The value of `original` for copy i.
  Value At(Value original, int64_t i) const {
    const Values& values = values_.at(original);
    return values[values.size() == 1 ? 0 : static_cast<size_t>(i)];
  }
  Values Copies(Value original) const {
    Values copies;
    for (int64_t i = 0; i < copies_; ++i) copies.push_back(At(original, i));
    return copies;
  }

  std::string NameOfCopy(const std::string& name, int64_t i) const {
    return copies_ == 1 ? name : name + "/" + std::to_string(i);
  }

  absl::Status AddInput(const Input& input) {
    const Placement placement = Along(input.value);
    if (!placement.is_replicated() && !placement.is_split())
      return InvalidArgument() << kOption << ": input %" << input.name() << " is " << placement;
    TensorType type = input.value.type();
    if (placement.is_split()) type.shape = type.shape.WithDim(placement.dim(), type.shape[placement.dim()] * copies_);
    ASSIGN_OR_RETURN(const Value value, to_.AddInputLike(input, type, input.placements()));
    inputs_[input.value] = value;
    return absl::OkStatus();
  }

  // Cuts the inputs before their first use, because inputs precede all nodes.
  void CutInput(Value original) {
    const auto input = inputs_.find(original);
    if (input == inputs_.end() || values_.contains(original)) return;
    if (!Varies(original)) values_[original] = {input->second};
    else CutInto(original, input->second);
  }

  void CutInto(Value original, Value whole) {
    Values& copies = values_[original];
    for (int64_t i = 0; i < copies_; ++i)
      copies.push_back(
          emit_.Named(emit_.Cut(whole, Along(original).dim(), i, copies_), NameOfCopy(original.name(), i)));
  }

  absl::Status Fold(const Node& node) {
    emit_.set_source(node.source());
    for (Value operand : node.operands()) CutInput(operand);
    RETURN_IF_ERROR(CheckRegions(node));
    if (IsAlong(node)) RETURN_IF_ERROR(FoldAlong(const_cast<Node&>(node)));
    else RETURN_IF_ERROR(CopyNode(const_cast<Node&>(node)));
    return emit_.status();
  }

  absl::Status CopyNode(Node& node) {
    bool varies = false;
    for (Value operand : node.operands()) varies = varies || Varies(operand);
    for (size_t i = 0; i < node.num_results(); ++i) {
      varies = varies || Varies(node.result(i));
      if (Along(node.result(i)).is_at()) return InvalidArgument() << node.Describe() << " is at one rank";
    }
    for (int64_t i = 0; i < (varies ? copies_ : 1); ++i) {
      ValueMap map;
      for (Value operand : node.operands()) map[operand] = At(operand, i);
      NodeSpec spec = CopyOf(node, map);
      if (varies) {
        for (std::string& name : spec.names) name = NameOfCopy(name, i);
      }
      if (emit_.ranks() == 1) spec.placements = {};
      ASSIGN_OR_RETURN(Node* const copy, to_.Insert(std::move(spec)));
      for (size_t k = 0; k < node.num_results(); ++k) values_[node.result(k)].push_back(copy->result(k));
    }
    return absl::OkStatus();
  }

  absl::Status FoldAlong(Node& node) {
    const std::optional<CollectiveOp> op = node.op().collective();
    if (op == CollectiveOp::kAllReduce) return Reduce(node, /*scatters=*/false);
    if (op == CollectiveOp::kReduceScatter) return Reduce(node, /*scatters=*/true);
    if (op == CollectiveOp::kAllGather) return Gather(node);
    if (node.Is("shard")) return Shard(node.result(), At(node.operand(0), 0));
    if (node.Is("axis_index")) return NumberCopies(node);
    return InvalidArgument() << node.Describe() << kCannot;
  }

  // Each copy takes its slice of a value that all ranks have.
  absl::Status Shard(Value original, Value whole) {
    const int64_t dim = Along(original).dim(), extent = original.shape()[dim], first = FirstOf(options_, options_.rank);
    if (has_counts()) whole = emit_.Own(whole, dim, first * extent, (first + copies_) * extent);
    else if (emit_.ranks() > 1) whole = emit_.Shard(whole, dim);
    CutInto(original, whole);
    return absl::OkStatus();
  }

  absl::Status NumberCopies(Node& node) {
    const int64_t more = FirstOf(options_, options_.rank) - options_.rank;
    for (int64_t i = 0; i < copies_; ++i) {
      const Value number = has_counts() ? emit_.RankPlus(more + i) : emit_.VirtualRank(i, copies_);
      values_[node.result()].push_back(emit_.Named(number, NameOfCopy(node.result_name(), i)));
    }
    return absl::OkStatus();
  }

  absl::Status Gather(Node& node) {
    if (has_counts())
      return InvalidArgument() << node.Describe()
                               << " gathers equal parts, but ranks have different numbers of virtual "
                               << "ranks";
    const int64_t dim = node.attr<int64_t>("dim");
    Values joined;
    for (Value operand : node.operands()) joined.push_back(emit_.Join(Copies(operand), dim));
    if (emit_.ranks() > 1) joined = emit_.Gather(joined, dim, node.attr<int64_t>("bucket"));
    for (size_t i = 0; i < node.num_results(); ++i)
      values_[node.result(i)] = {emit_.Named(joined[i], node.result_name(i))};
    return absl::OkStatus();
  }

  // Makes `whole`, or the copies' slices of it, the value of `original`.
  absl::Status Keep(Value original, Value whole, bool scatters) {
    if (scatters) return Shard(original, whole);
    values_[original] = {whole};
    return absl::OkStatus();
  }

  // Operands of one dtype travel together, as in the bucket of the original.
  absl::Status Reduce(Node& node, bool scatters) {
    if (node.attributes().contains("wire") && !node.attr<std::string>("wire").empty())
      return InvalidArgument() << node.Describe() << " with a wire";
    const ReduceKind kind = *ReduceKindFromName(node.attr<std::string>("kind"));
    std::map<DType, std::vector<size_t>> by_dtype;
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (Varies(node.operand(i))) by_dtype[node.operand(i).dtype()].push_back(i);
      else RETURN_IF_ERROR(Keep(node.result(i), At(node.operand(i), 0), scatters));  // the minimum, maximum or mean
    }
    for (const auto& [dtype, operands] : by_dtype) {
      std::vector<Values> terms;
      for (size_t i : operands) terms.push_back(Copies(node.operand(i)));
      ASSIGN_OR_RETURN(const Values sums, tree_.Reduce(kind, terms, node.result_name(operands[0])));
      for (size_t k = 0; k < operands.size(); ++k) {
        const Value original = node.result(operands[k]);
        RETURN_IF_ERROR(Keep(original, scatters ? sums[k] : emit_.Named(sums[k], original.name()), scatters));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddResult(const Result& result) {
    emit_.set_source(result.value.node->source());
    CutInput(result.value);
    const Placement placement = Along(result.value);
    if (!placement.is_replicated() && !placement.is_split())
      return InvalidArgument() << kOption << ": result " << result.name << " is " << placement
                               << ", and a rank has several virtual ranks' values";
    const Value value = placement.is_split() ? emit_.Join(Copies(result.value), placement.dim()) : At(result.value, 0);
    RETURN_IF_ERROR(emit_.status());
    const PlacementMap placements = emit_.ranks() == 1 ? PlacementMap() : result.placements;
    return result.is_state ? to_.AddStateResult(result.name, value, placements)
                           : to_.AddResult(result.name, value, placements);
  }

  const Graph& from_;
  const VirtualRanks options_;
  const int64_t copies_;
  Graph to_;
  LocalEmitter emit_;
  SumTree tree_;
  ValueMap inputs_;
  std::unordered_map<Value, Values, ValueHash> values_;
};

absl::Status Check(const Graph& graph, const VirtualRanks& options) {
  for (const MeshAxis& axis : graph.mesh().axes()) {
    if (axis.name != kAxis)
      return InvalidArgument() << kOption << ": the mesh " << graph.mesh().ToString() << " has the axis " << axis.name;
  }
  const int64_t ranks = *graph.mesh().axis_size(kAxis);
  const std::vector<int64_t>& counts = options.counts;
  const bool has_all = static_cast<int64_t>(counts.size()) == options.ranks &&
                       FirstOf(options, options.ranks) == ranks &&
                       std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count >= 1; });
  const bool fits = counts.empty() ? options.ranks >= 1 && ranks % options.ranks == 0 : has_all;
  if (!fits || (ranks & (ranks - 1)) != 0) {
    return InvalidArgument() << kOption << ": " << options.ranks << " ranks cannot run the " << ranks
                             << " virtual ranks, a power of two that the number of ranks divides";
  }
  return absl::OkStatus();
}

}  // namespace

Pass FoldVirtualRanks(VirtualRanks options) {
  return {"fold-virtual-ranks",
          [options](Graph& graph) -> absl::StatusOr<bool> {
            if (!graph.is_local()) return false;
            RETURN_IF_ERROR(Check(graph, options));
            ASSIGN_OR_RETURN(graph, Folding(graph, options).Run());
            return true;
          },
          options.counts.empty() ? Keeps::kMeaning : Keeps::kNothing, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
