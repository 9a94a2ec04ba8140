#include "passes/distribute/distribute.h"

#include <map>
#include <unordered_map>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/decompose.h"

namespace lockstep::passes {
namespace {

// Distributes a graph along one axis, which is the last of the mesh that `local` gets.
class AxisDistributor {
 public:
  AxisDistributor(Graph global, const MeshAxis& axis, Mesh mesh)
      : global_(std::move(global)), axis_(axis), local_(global_.name()), builder_(local_) {
    local_.set_mesh(std::move(mesh));
  }

  absl::StatusOr<Graph> Run() {
    for (const Input& input : global_.inputs()) RETURN_IF_ERROR(AddInput(input));
    for (auto it = global_.nodes().begin(); it != global_.nodes().end();) {
      ASSIGN_OR_RETURN(const bool placed, PlaceNode(*it));
      if (placed) {
        ++it;
      } else {
        ASSIGN_OR_RETURN(it, ReplaceByDecomposition(global_, it));
      }
    }
    for (const Result& result : global_.results()) RETURN_IF_ERROR(AddResult(result));
    return std::move(local_);
  }

 private:
  // A value of the global graph in the local one. `canonical` is where its producer left it; conversions are kept, so
  // that two consumers share one collective.
  struct Placed {
    Placement canonical;
    std::vector<std::pair<Placement, Value>> versions;
  };

  bool Divides(const Shape& shape, const Placement& placement) const {
    return !placement.is_split() || shape[placement.dim()] % axis_.size == 0;
  }
  TensorType LocalType(TensorType type, const Placement& placement) const {
    if (placement.is_split())
      type.shape = type.shape.WithDim(placement.dim(), type.shape[placement.dim()] / axis_.size);
    return type;
  }
  const Placement& CanonicalPlacement(Value global) const { return placed_.at(global).canonical; }
  PlacementContext Ask(const Node& node, const std::vector<Placement>& operands,
                       std::optional<Placement> wanted) const {
    PlacementContext rule(node, operands, axis_.name, axis_.size, wanted);
    node.op().place()(rule);
    return rule;
  }
  bool AllDivide(const Node& node, const PlacementContext& rule) const;

  absl::Status AddInput(const Input& input);
  absl::Status AddResult(const Result& result);
  absl::StatusOr<bool> PlaceNode(Node& node);  // false: it must be decomposed
  absl::Status PlaceByRule(Node& node, const PlacementContext& rule);
  // The node with its operands where `rule` requires them.
  absl::StatusOr<Node*> CloneLocal(Node& node, const PlacementContext& rule);
  // `global` in the local graph, placed as `wanted`; `consumer` is for messages.
  absl::StatusOr<Value> Get(Value global, const Placement& wanted, const std::string& consumer);
  absl::StatusOr<Value> Convert(Value global, const Placement& from, const Placement& to, const std::string& consumer);
  // The slice of a replicated value computed by its producer alone, or null if the producer cannot.
  absl::StatusOr<Value> ComputeSlice(Value global, const Placement& to);

  Graph global_;
  MeshAxis axis_;
  Graph local_;
  Builder builder_;
  std::unordered_map<Value, Placed, ValueHash> placed_;
};

absl::Status AxisDistributor::AddInput(const Input& input) {
  const Placement placement = PlacementAlong(input.placements, axis_.name);
  const TensorType& type = input.value.type();
  if (placement.is_split()) {
    if (!type.shape.has_dim(placement.dim())) {
      return InvalidArgument() << "input %" << input.name() << " is split along dimension " << placement.dim() << " of "
                               << type;
    }
    if (!Divides(type.shape, placement)) {
      return InvalidArgument() << "dimension " << placement.dim() << " of input %" << input.name() << " (" << type
                               << ") cannot be shared evenly by the " << axis_.size << " ranks of axis " << axis_.name
                               << ": " << type.shape[placement.dim()] << " is not a multiple of " << axis_.size;
    }
  }
  ASSIGN_OR_RETURN(const Value local,
                   local_.AddInput(input.name(), LocalType(type, placement), input.is_state, input.placements));
  placed_[input.value] = {placement, {{placement, local}}};
  return absl::OkStatus();
}

bool AxisDistributor::AllDivide(const Node& node, const PlacementContext& rule) const {
  for (size_t i = 0; i < node.operands().size(); ++i) {
    if (!Divides(node.operand(i).shape(), rule.required()[i])) return false;
  }
  for (size_t i = 0; i < node.num_results(); ++i) {
    if (!Divides(node.type(i).shape, rule.results()[i])) return false;
  }
  return true;
}

absl::StatusOr<bool> AxisDistributor::PlaceNode(Node& node) {
  std::vector<Placement> operands;
  for (Value operand : node.operands()) operands.push_back(CanonicalPlacement(operand));
  const PlacementContext rule = Ask(node, operands, std::nullopt);
  if (rule.decompose()) {
    if (!node.op().decompose())
      return Internal() << node.Describe() << " cannot be distributed along axis " << axis_.name
                        << " and has no decomposition";
    return false;
  }
  if (rule.failure().empty() && !AllDivide(node, rule)) {
    // A dimension that the ranks cannot share, such as a batch merged with something odd: compute the whole on every rank.
    operands.assign(operands.size(), Placement::Replicated());
    RETURN_IF_ERROR(PlaceByRule(node, Ask(node, operands, std::nullopt)));
  } else {
    RETURN_IF_ERROR(PlaceByRule(node, rule));
  }
  return true;
}

absl::Status AxisDistributor::PlaceByRule(Node& node, const PlacementContext& rule) {
  if (!rule.failure().empty()) {
    return InvalidArgument() << node.Describe() << " cannot be placed along axis " << axis_.name << ": "
                             << rule.failure();
  }
  ASSIGN_OR_RETURN(Node* const local, CloneLocal(node, rule));
  for (size_t i = 0; i < node.num_results(); ++i) {
    const Placement& placement = rule.results()[i];
    placed_[node.result(i)] = {placement, {{placement, local->result(i)}}};
  }
  return absl::OkStatus();
}

absl::StatusOr<Node*> AxisDistributor::CloneLocal(Node& node, const PlacementContext& rule) {
  NodeSpec spec{&node.op(), {}, node.attributes(), node.source(), {}};
  for (size_t i = 0; i < node.operands().size(); ++i) {
    ASSIGN_OR_RETURN(const Value operand, Get(node.operand(i), rule.required()[i], node.Describe()));
    spec.operands.push_back(operand);
  }
  for (const auto& [name, value] : rule.local_attributes()) spec.attributes.insert_or_assign(name, value);
  for (size_t i = 0; i < node.num_results(); ++i) spec.names.push_back(node.result_name(i));
  ASSIGN_OR_RETURN(Node* const local, local_.Insert(std::move(spec)));
  for (size_t i = 0; i < node.num_results(); ++i) {
    const TensorType expected = LocalType(node.type(i), rule.results()[i]);
    if (local->type(i) != expected) {
      return Internal() << "placement rule of " << node.Describe() << ": %" << node.result_name(i) << " is "
                        << rule.results()[i] << " along axis " << axis_.name << ", which makes " << expected
                        << ", but its local type is " << local->type(i);
    }
  }
  return local;
}

absl::StatusOr<Value> AxisDistributor::Get(Value global, const Placement& wanted, const std::string& consumer) {
  for (const auto& [placement, value] : placed_.at(global).versions) {
    if (placement == wanted) return value;
  }
  builder_.set_source(global.node->source());
  ASSIGN_OR_RETURN(const Value converted, Convert(global, CanonicalPlacement(global), wanted, consumer));
  RETURN_IF_ERROR(builder_.status());
  if (converted.name() != global.name()) local_.SetName(converted, global.name());
  placed_.at(global).versions.push_back({wanted, converted});
  return converted;
}

absl::StatusOr<Value> AxisDistributor::Convert(Value global, const Placement& from, const Placement& to,
                                               const std::string& consumer) {
  if (from.is_local()) {
    return InvalidArgument()
           << consumer << " needs %" << global.name() << " " << to << " along axis " << axis_.name
           << ", but its values differ between ranks and have no global meaning (it is local), made by "
           << global.node->Describe();
  }
  if (to.is_partial() || to.is_local()) {
    return Internal() << consumer << " needs %" << global.name() << " " << to << " along axis " << axis_.name
                      << ", but it is " << from;
  }
  if (to.is_split() && from.is_partial()) {
    ASSIGN_OR_RETURN(const Value value, Get(global, from, consumer));
    return builder_.ReduceScatter(value, axis_.name, to.dim(), from.reduce());
  }
  if (to.is_split()) {
    if (from.is_replicated()) {
      ASSIGN_OR_RETURN(const Value slice, ComputeSlice(global, to));
      if (slice) return slice;
    }
    ASSIGN_OR_RETURN(const Value whole, Get(global, Placement::Replicated(), consumer));
    return builder_.Shard(whole, axis_.name, to.dim());
  }
  ASSIGN_OR_RETURN(const Value value, Get(global, from, consumer));
  if (from.is_partial()) return builder_.AllReduce(value, axis_.name, from.reduce());
  return builder_.AllGather(value, axis_.name, from.dim());
}

absl::StatusOr<Value> AxisDistributor::ComputeSlice(Value global, const Placement& to) {
  Node& node = *global.node;
  if (node.Is("input") || node.op().has_trait(kCollective) || node.op().has_trait(kOptimizer) ||
      node.num_results() != 1)
    return Value();
  // The value is replicated, so replicated versions of its operands are at hand, whatever they were at first.
  const std::vector<Placement> operands(node.operands().size());
  const PlacementContext rule = Ask(node, operands, to);
  if (rule.decompose() || !rule.failure().empty() || rule.results()[0] != to || !AllDivide(node, rule)) return Value();
  ASSIGN_OR_RETURN(Node* const local, CloneLocal(node, rule));
  return local->result();
}

absl::Status AxisDistributor::AddResult(const Result& result) {
  const Placement is = CanonicalPlacement(result.value);
  PlacementMap placements = result.placements;
  if (result.is_state) {
    const Placement state = PlacementAlong(global_.FindInput(result.name)->placements, axis_.name);
    ASSIGN_OR_RETURN(const Value value, Get(result.value, state, "state %" + result.name));
    placements[axis_.name] = state;
    return local_.AddStateResult(result.name, value, std::move(placements));
  }
  const auto declared = placements.find(axis_.name);
  Placement wanted = is.is_partial() ? Placement::Replicated() : is;
  if (declared != placements.end()) wanted = declared->second;
  if (is.is_local()) wanted = Placement::Local();
  if (!Divides(result.value.shape(), wanted)) wanted = Placement::Replicated();
  ASSIGN_OR_RETURN(const Value value, Get(result.value, wanted, "result " + result.name));
  placements[axis_.name] = wanted;
  return local_.AddResult(result.name, value, std::move(placements));
}

}  // namespace

absl::StatusOr<Graph> DistributeGraph(const Graph& graph, const Mesh& mesh) {
  if (mesh.empty()) return graph.Clone();
  if (!graph.mesh().empty())
    return InvalidArgument() << "graph @" << graph.name() << " is distributed already, over "
                             << graph.mesh().ToString();
  Graph result = graph.Clone();
  std::vector<MeshAxis> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size < 1)
      return InvalidArgument() << "mesh axis " << axis.name << " has size " << axis.size << ", expected at least 1";
    if (axis.size == 1) continue;
    axes.push_back(axis);
    ASSIGN_OR_RETURN(result, AxisDistributor(std::move(result), axis, Mesh(axes)).Run());
  }
  return result;
}

Pass Distribute(Mesh mesh) {
  return {"distribute", [mesh = std::move(mesh)](Graph& graph) -> absl::StatusOr<bool> {
            ASSIGN_OR_RETURN(Graph distributed, DistributeGraph(graph, mesh));
            const bool changed = !(distributed.mesh() == graph.mesh());
            if (changed) graph = std::move(distributed);
            return changed;
          }};
}

}  // namespace lockstep::passes
