#include "core/local_types.h"

#include <cstring>

#include "core/op_def.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

enum class Direction { kToLocal, kToGlobal };

// `extents` of a value that is placed so, in the other types.
Ints Rescaled(Ints extents, const PlacementMap& placements, const Mesh& mesh, Direction direction) {
  for (const auto& [name, placement] : placements) {
    if (!placement.is_split() || !mesh.has_axis(name)) continue;
    const int64_t ranks = *mesh.axis_size(name);
    int64_t& extent = extents[static_cast<size_t>(placement.dim())];
    extent = direction == Direction::kToLocal ? extent / ranks : extent * ranks;
  }
  return extents;
}

TensorType Rescaled(const TensorType& type, const PlacementMap& placements, const Mesh& mesh, Direction direction) {
  return {type.dtype, Shape(Rescaled(type.shape.dims(), placements, mesh, direction))};
}

// Copies a graph, with the types of the other form. `mesh` is the graph's, or that of the graph in which it is a region.
class Rescaling {
 public:
  Rescaling(const Graph& from, const Mesh& mesh, Direction direction)
      : from_(from), mesh_(mesh), direction_(direction), to_(from.name()) {}

  absl::StatusOr<Graph> Run() {
    to_.set_mesh(from_.mesh(), direction_ == Direction::kToLocal);
    for (const Input& input : from_.inputs()) {
      const TensorType type = Rescaled(input.value.type(), input.placements(), mesh_, direction_);
      ASSIGN_OR_RETURN(map_[input.value], to_.AddInput(input.name(), type, input.is_state, input.placements()));
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
      if (def.is_per_dim) value = Rescaled(std::get<Ints>(value), node.placements(), mesh_, direction_);
      if (const Region* region = std::get_if<Region>(&value)) {
        ASSIGN_OR_RETURN(Graph body, Rescaling(region->graph(), mesh_, direction_).Run());
        value = Region(std::move(body));
      }
    }
    ASSIGN_OR_RETURN(Node* const copy, to_.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) {
      const TensorType expected = Rescaled(node.type(i), node.placements(i), mesh_, direction_);
      if (copy->type(i) != expected) {
        return Internal() << node.Describe() << ": the placement of %" << node.result_name(i) << " makes "
                          << node.type(i) << " to " << expected << " on the other side, but the op infers "
                          << copy->type(i);
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
  return Rescaled(type, placements, mesh, Direction::kToLocal);
}

TensorType GlobalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh) {
  return Rescaled(type, placements, mesh, Direction::kToGlobal);
}

Tensor LocalPart(const Tensor& whole, const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  Tensor part = whole;
  for (const MeshAxis& axis : mesh.axes()) {
    const Placement placement = PlacementAlong(placements, axis.name);
    if (!placement.is_split()) continue;
    const int64_t dim = placement.dim(), extent = part.shape()[dim] / axis.size;
    size_t inner = SizeOf(part.dtype()), outer = 1;
    for (int64_t d = 0; d < dim; ++d) outer *= static_cast<size_t>(part.shape()[d]);
    for (int64_t d = dim + 1; d < part.shape().rank(); ++d) inner *= static_cast<size_t>(part.shape()[d]);
    const size_t run = static_cast<size_t>(extent) * inner, whole_run = run * static_cast<size_t>(axis.size);
    const size_t begin = static_cast<size_t>(mesh.Coordinate(rank, axis.name)) * run;
    Tensor cut({part.dtype(), part.shape().WithDim(dim, extent)});
    std::byte* const to = cut.mutable_bytes();
    for (size_t i = 0; i < outer; ++i) std::memcpy(to + i * run, part.bytes() + i * whole_run + begin, run);
    part = std::move(cut);
  }
  return part;
}

absl::StatusOr<Graph> ToLocalTypes(const Graph& graph) {
  if (!graph.is_placed()) return graph.Clone();
  return Rescaling(graph, graph.mesh(), Direction::kToLocal).Run();
}

absl::StatusOr<Graph> ToGlobalTypes(const Graph& graph) {
  if (!graph.is_local()) return graph.Clone();
  return Rescaling(graph, graph.mesh(), Direction::kToGlobal).Run();
}

}  // namespace lockstep
