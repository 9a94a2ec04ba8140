#include "core/local_types.h"

#include <numeric>
#include <string>
#include <string_view>

#include "core/op_def.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

enum class Direction { kToLocal, kToGlobal };

int64_t Total(const RowShares& shares) { return std::accumulate(shares.rows.begin(), shares.rows.end(), int64_t{0}); }

int64_t OwnRows(const RowShares& shares) { return shares.rows[static_cast<size_t>(shares.rank)]; }

// The rows of the ranks before this one.
int64_t RowsBefore(const RowShares& shares) {
  return std::accumulate(shares.rows.begin(), shares.rows.begin() + shares.rank, int64_t{0});
}

// True if the dimension is cut by shares, not evenly.
bool IsCutByShares(std::string_view axis, const RowShares& shares) { return axis == kDataAxis && !shares.rows.empty(); }

// Converts the `extents` of a value with these placements to the other form.
Ints ConvertedExtents(Ints extents, const PlacementMap& placements, const Mesh& mesh, Direction direction,
                      const RowShares& shares = {}) {
  for (const auto& [name, placement] : placements) {
    if (!placement.is_split() || !mesh.has_axis(name)) continue;
    const int64_t ranks = *mesh.axis_size(name);
    int64_t& extent = extents[static_cast<size_t>(placement.dim())];
    if (IsCutByShares(name, shares)) extent = extent * OwnRows(shares) / Total(shares);
    else extent = direction == Direction::kToLocal ? extent / ranks : extent * ranks;
  }
  return extents;
}

TensorType ConvertedExtents(const TensorType& type, const PlacementMap& placements, const Mesh& mesh,
                            Direction direction, const RowShares& shares = {}) {
  return {type.dtype, Shape(ConvertedExtents(type.shape.dims(), placements, mesh, direction, shares))};
}

// Returns an error if no whole number of entries of the dimension that is split along `data` belongs to the shares.
// `who` describes the value.
template <typename Who>
absl::Status CheckCanCut(const TensorType& type, const PlacementMap& placements, const RowShares& shares, Who who) {
  const auto along = placements.find(std::string(kDataAxis));
  if (shares.rows.empty() || along == placements.end() || !along->second.is_split()) return absl::OkStatus();
  const int64_t extent = type.shape[along->second.dim()];
  for (const int64_t rows : shares.rows) {
    if (extent * rows % Total(shares) == 0) continue;
    return InvalidArgument() << "shares: " << who() << " has " << extent << " entries for the " << Total(shares)
                             << " rows of the batch, of which " << rows << " rows have no whole number; with "
                             << "accumulate=k, shares are multiples of k";
  }
  return absl::OkStatus();
}

// Returns an error if the node needs equal shares: it moves rows between ranks, or weighs ranks equally.
absl::Status CheckAllowsShares(const Node& node) {
  const auto found = node.attributes().find("axis");
  const std::string* const axis = found == node.attributes().end() ? nullptr : std::get_if<std::string>(&found->second);
  const bool is_along_data = axis != nullptr && *axis == kDataAxis;
  if (!is_along_data || node.Is("shard")) return absl::OkStatus();
  const bool reduces = node.op().collective() == CollectiveOp::kAllReduce && node.attr<std::string>("kind") != "mean";
  if (reduces) return absl::OkStatus();
  return InvalidArgument() << "shares: " << node.Describe() << " needs the same number of rows on all ranks";
}

// Copies a graph with the types of the other form. `mesh` is the graph's, or for a region that of the enclosing graph.
class TypeConversion {
 public:
  TypeConversion(const Graph& from, const Mesh& mesh, Direction direction, const RowShares& shares = {})
      : from_(from), mesh_(mesh), direction_(direction), shares_(shares), to_(from.name()) {}

  absl::StatusOr<Graph> Run() {
    to_.set_mesh(from_.mesh(), direction_ == Direction::kToLocal);
    for (const Input& input : from_.inputs()) {
      const auto who = [&] { return "input %" + input.name(); };
      RETURN_IF_ERROR(CheckCanCut(input.value.type(), input.placements(), shares_, who));
      const TensorType type = ConvertedExtents(input.value.type(), input.placements(), mesh_, direction_, shares_);
      ASSIGN_OR_RETURN(map_[input.value], to_.AddInputLike(input, type, input.placements()));
    }
    for (const Node& node : from_.nodes()) RETURN_IF_ERROR(Copy(node));
    for (const Result& result : from_.results()) {
      const Value value = map_.at(result.value);
      RETURN_IF_ERROR(result.is_state ? to_.AddStateResult(result.name, value, result.placements)
                                      : to_.AddResult(result.name, value, result.placements));
    }
    return std::move(to_);
  }

 private:
  absl::Status Copy(const Node& node) {
    NodeSpec spec = CopyOf(node, map_);
    if (!shares_.rows.empty()) {
      RETURN_IF_ERROR(CheckAllowsShares(node));
      for (size_t i = 0; i < node.num_results(); ++i)
        RETURN_IF_ERROR(CheckCanCut(node.type(i), node.placements(i), shares_, [&] { return node.Describe(); }));
      if (node.Is("shard") && node.attr<std::string>("axis") == kDataAxis) {
        ASSIGN_OR_RETURN(spec.operands[0], WithOwnPartForEachRank(spec.operands[0], node.attr<int64_t>("dim"), spec));
      }
    }
    for (const OpDef::AttributeDef& def : node.op().attribute_defs()) {
      Attribute& value = spec.attributes.at(def.name);
      if (def.is_per_dim)
        value = ConvertedExtents(std::get<Ints>(value), node.placements(), mesh_, direction_, shares_);
      if (const Region* region = std::get_if<Region>(&value)) {
        ASSIGN_OR_RETURN(Graph body, TypeConversion(region->graph(), mesh_, direction_, shares_).Run());
        value = Region(std::move(body));
      }
    }
    ASSIGN_OR_RETURN(Node* const copy, to_.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) {
      const TensorType expected = ConvertedExtents(node.type(i), node.placements(i), mesh_, direction_, shares_);
      if (copy->type(i) != expected) {
        return Internal() << node.Describe() << ": the placement of %" << node.result_name(i) << " converts "
                          << node.type(i) << " to " << expected << ", but the op infers " << copy->type(i);
      }
      map_[const_cast<Node&>(node).result(i)] = copy->result(i);
    }
    return absl::OkStatus();
  }

  // Returns this rank's part of `whole`, as often as there are ranks: `shard`, which cuts evenly, takes that part on
  // any rank.
  absl::StatusOr<Value> WithOwnPartForEachRank(Value whole, int64_t dim, const NodeSpec& like) {
    const auto at = static_cast<size_t>(dim);
    const int64_t extent = whole.shape()[dim], ranks = *mesh_.axis_size(std::string(kDataAxis));
    Ints start(static_cast<size_t>(whole.shape().rank())), limit = whole.shape().dims();
    start[at] = extent * RowsBefore(shares_) / Total(shares_);
    limit[at] = start[at] + extent * OwnRows(shares_) / Total(shares_);
    const Ints stride(start.size(), 1);
    ASSIGN_OR_RETURN(const Value own,
                     Add("slice", whole, {{"start", start}, {"limit", limit}, {"stride", stride}}, like));
    Ints repeated = own.shape().dims(), dims, extents = own.shape().dims();
    repeated.insert(repeated.begin() + dim, ranks);
    for (int64_t d = 0; d < own.shape().rank(); ++d) dims.push_back(d < dim ? d : d + 1);
    extents[at] *= ranks;
    ASSIGN_OR_RETURN(const Value copies, Add("broadcast", own, {{"shape", repeated}, {"dims", dims}}, like));
    return Add("reshape", copies, {{"shape", extents}}, like);
  }

  absl::StatusOr<Value> Add(std::string_view op, Value operand, AttributeMap attributes, const NodeSpec& like) {
    NodeSpec spec;
    spec.op = FindOp(op);
    spec.operands = {operand};
    spec.attributes = std::move(attributes);
    spec.source = like.source;
    ASSIGN_OR_RETURN(Node* const node, to_.Insert(std::move(spec)));
    return node->result();
  }

  const Graph& from_;
  const Mesh& mesh_;
  const Direction direction_;
  const RowShares shares_;
  Graph to_;
  ValueMap map_;
};

}  // namespace

TensorType LocalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh) {
  return ConvertedExtents(type, placements, mesh, Direction::kToLocal);
}

TensorType GlobalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh) {
  return ConvertedExtents(type, placements, mesh, Direction::kToGlobal);
}

absl::StatusOr<Graph> ToLocalTypes(const Graph& graph, const RowShares& shares) {
  if (!graph.is_placed()) return graph.Clone();
  return TypeConversion(graph, graph.mesh(), Direction::kToLocal, shares).Run();
}

absl::StatusOr<Graph> ToGlobalTypes(const Graph& graph) {
  if (!graph.is_local()) return graph.Clone();
  return TypeConversion(graph, graph.mesh(), Direction::kToGlobal).Run();
}

}  // namespace lockstep
