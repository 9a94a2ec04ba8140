#include "core/local_types.h"

#include "core/op_def.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

enum class Direction { kToLocal, kToGlobal };

// Converts the `extents` of a value with these placements to the other form.
Ints ConvertedExtents(Ints extents, const PlacementMap& placements, const Mesh& mesh, Direction direction) {
  for (const auto& [name, placement] : placements) {
    if (!placement.is_split() || !mesh.has_axis(name)) continue;
    const int64_t ranks = *mesh.axis_size(name);
    int64_t& extent = extents[static_cast<size_t>(placement.dim())];
    extent = direction == Direction::kToLocal ? extent / ranks : extent * ranks;
  }
  return extents;
}

TensorType ConvertedExtents(const TensorType& type, const PlacementMap& placements, const Mesh& mesh,
                            Direction direction) {
  return {type.dtype, Shape(ConvertedExtents(type.shape.dims(), placements, mesh, direction))};
}

// Copies a graph with the types of the other form. `mesh` is the graph's, or for a region that of the enclosing graph.
class TypeConversion {
 public:
  TypeConversion(const Graph& from, const Mesh& mesh, Direction direction)
      : from_(from), mesh_(mesh), direction_(direction), to_(from.name()) {}

  absl::StatusOr<Graph> Run() {
    to_.set_mesh(from_.mesh(), direction_ == Direction::kToLocal);
    for (const Input& input : from_.inputs()) {
      const TensorType type = ConvertedExtents(input.value.type(), input.placements(), mesh_, direction_);
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
    for (const OpDef::AttributeDef& def : node.op().attribute_defs()) {
      Attribute& value = spec.attributes.at(def.name);
      if (def.is_per_dim) value = ConvertedExtents(std::get<Ints>(value), node.placements(), mesh_, direction_);
      if (const Region* region = std::get_if<Region>(&value)) {
        ASSIGN_OR_RETURN(Graph body, TypeConversion(region->graph(), mesh_, direction_).Run());
        value = Region(std::move(body));
      }
    }
    ASSIGN_OR_RETURN(Node* const copy, to_.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) {
      const TensorType expected = ConvertedExtents(node.type(i), node.placements(i), mesh_, direction_);
      if (copy->type(i) != expected) {
        return Internal() << node.Describe() << ": the placement of %" << node.result_name(i) << " converts "
                          << node.type(i) << " to " << expected << ", but the op infers " << copy->type(i);
      }
      map_[const_cast<Node&>(node).result(i)] = copy->result(i);
    }
    return absl::OkStatus();
  }

  const Graph& from_;
  const Mesh& mesh_;
  const Direction direction_;
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

absl::StatusOr<Graph> ToLocalTypes(const Graph& graph) {
  if (!graph.is_placed()) return graph.Clone();
  return TypeConversion(graph, graph.mesh(), Direction::kToLocal).Run();
}

absl::StatusOr<Graph> ToGlobalTypes(const Graph& graph) {
  if (!graph.is_local()) return graph.Clone();
  return TypeConversion(graph, graph.mesh(), Direction::kToGlobal).Run();
}

}  // namespace lockstep
