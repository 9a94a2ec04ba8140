#include "test/op_cases/op_case_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/backpropagate.h"
#include "core/builder.h"

namespace lockstep {

namespace {

int64_t IntOf(const OpCase& row, std::string_view name) { return std::get<int64_t>(row.attributes.find(name)->second); }

// The traits of the row's op; null if it is not a collective.
std::optional<CollectiveTraits> CollectiveTraitsOf(const OpCase& row) {
  const std::optional<CollectiveOp> op = GetOp(row.op).collective();
  return op ? std::optional(TraitsOf(*op)) : std::nullopt;
}

// True if the row moves a split from one dimension to another.
bool MovesSplit(const OpCase& row) {
  const std::optional<CollectiveTraits> traits = CollectiveTraitsOf(row);
  return traits && traits->gathers && traits->scatters && IntOf(row, "split_dim") != IntOf(row, "concat_dim");
}

// The placements of a collective's results along its axis.
PlacementMap ResultPlacements(const OpCase& row) {
  Placement placement = Placement::Replicated();
  if (const std::optional<CollectiveTraits> traits = CollectiveTraitsOf(row)) {
    if (MovesSplit(row)) placement = Placement::Split(IntOf(row, "split_dim"));
    else if (traits->permutes || traits->to_root || (traits->gathers && traits->scatters))
      placement = Placement::Local();
    else if (traits->scatters) placement = Placement::Split(IntOf(row, "dim"));
  }
  if (row.op == "shard") placement = Placement::Split(IntOf(row, "dim"));
  if (row.op == "axis_index" || row.op == "own_part" || row.op == "as_local") placement = Placement::Local();
  if (row.op == "parts") placement = Placement::Split(0);
  return {{std::string(kDataAxis), placement}};
}

}  // namespace

Placement CollectiveOperandPlacement(const OpCase& row) {
  const auto dim = row.attributes.find("dim"), kind = row.attributes.find("kind");
  const bool has_dim = dim != row.attributes.end() && std::holds_alternative<int64_t>(dim->second);
  const std::optional<CollectiveTraits> traits = CollectiveTraitsOf(row);
  if (traits && traits->gathers && !traits->scatters && has_dim)
    return Placement::Split(std::get<int64_t>(dim->second));
  if (MovesSplit(row)) return Placement::Split(IntOf(row, "concat_dim"));
  if (row.op == "shard" || row.op == "exchange_weights") return Placement::Replicated();
  if (row.op == "own_part") return Placement::Split(0);
  if (row.op == "push" || row.op == "exchange") return Placement::Partial(ReduceKind::kSum);
  if (kind == row.attributes.end() || !std::holds_alternative<std::string>(kind->second)) return Placement::Local();
  const std::optional<ReduceKind> reduce = ReduceKindFromName(std::get<std::string>(kind->second));
  return reduce ? Placement::Partial(*reduce) : Placement::Local();
}

absl::StatusOr<Graph> CaseGraph(const OpCase& row) {
  return CaseGraphOn(row, row.ranks > 0 ? Mesh({{std::string(kDataAxis), row.ranks}}) : Mesh());
}

absl::StatusOr<Graph> CaseGraphOn(const OpCase& row, const Mesh& mesh) {
  Graph graph("case");
  graph.set_mesh(mesh, /*is_local=*/true);
  const auto with_other_axes = [&](PlacementMap placements) {
    for (const MeshAxis& axis : mesh.axes()) placements.emplace(axis.name, Placement::Local());
    return placements;
  };
  NodeSpec spec{&GetOp(row.op), {}, row.attributes, "case:/" + row.op, {}};
  for (size_t i = 0; i < row.operands.size(); ++i) {
    PlacementMap placements;
    if (row.ranks > 0) placements = with_other_axes({{std::string(kDataAxis), CollectiveOperandPlacement(row)}});
    ASSIGN_OR_RETURN(const Value input,
                     graph.AddInput("a" + std::to_string(i), row.operands[i].type, false, std::move(placements)));
    spec.operands.push_back(input);
  }
  // Results that do not depend on operands have the same placement along the other axes.
  PlacementMap results = ResultPlacements(row);
  if (!row.operands.empty()) results = with_other_axes(std::move(results));
  if (row.ranks > 0) spec.placements.resize(std::max<size_t>(row.operands.size(), 1), results);
  ASSIGN_OR_RETURN(Node* const node, graph.Insert(std::move(spec)));
  for (size_t i = 0; i < node->num_results(); ++i)
    RETURN_IF_ERROR(graph.AddResult("r" + std::to_string(i), node->result(i), node->placements(i)));
  return graph;
}

OpCase InDouble(const OpCase& row) {
  OpCase result = row;
  if (row.op == "bitcast") return result;  // the row depends on the widths of its dtypes
  for (CaseOperand& operand : result.operands) {
    if (!IsFloat(operand.type.dtype)) continue;
    operand.type.dtype = DType::kF64;
    if (operand.value) operand.value = operand.value->Converted(DType::kF64);
  }
  for (auto& [name, value] : result.attributes) {
    if (std::holds_alternative<DType>(value) && IsFloat(std::get<DType>(value))) value = DType::kF64;
  }
  result.attributes.erase("wire");  // only for f32
  return result;
}

bool GradientIsCompared(const OpCase& row) {
  if (!row.refused.empty() || !row.no_gradient.empty() || !GetOp(row.op).vjp()) return false;
  const bool float_operand = std::any_of(row.operands.begin(), row.operands.end(),
                                         [](const CaseOperand& operand) { return IsFloat(operand.type.dtype); });
  const absl::StatusOr<Graph> graph = CaseGraph(row);
  if (!float_operand || !graph.ok()) return false;
  for (const Result& result : graph->results()) {
    if (IsFloat(result.value.dtype())) return true;
  }
  return false;
}

absl::StatusOr<GradientGraph> MakeGradientGraph(const OpCase& row) {
  ASSIGN_OR_RETURN(Graph graph, CaseGraph(row));
  GradientGraph made;
  Builder b(graph);
  Value loss;
  for (size_t i = 0; !graph.results().empty(); ++i) {
    const Value result = graph.results()[0].value;
    graph.RemoveResult(0);
    const bool named = std::find(row.gradient_of.begin(), row.gradient_of.end(), i) != row.gradient_of.end();
    if (!IsFloat(result.dtype()) || (!row.gradient_of.empty() && !named)) continue;
    ASSIGN_OR_RETURN(const Value cotangent,
                     graph.AddInput("cotangent" + std::to_string(made.cotangents.size()), result.type()));
    made.cotangents.push_back(result.type());
    Ints dims;
    for (int64_t dim = 0; dim < result.shape().rank(); ++dim) dims.push_back(dim);
    const Value term = b.ReduceSum(b.Mul(result, cotangent), dims);
    loss = loss ? b.Add(loss, term) : term;
  }
  RETURN_IF_ERROR(b.status());
  std::vector<Value> wrt;
  for (size_t i = 0; i < row.operands.size(); ++i) {
    if (!IsFloat(row.operands[i].type.dtype)) continue;
    made.operands.push_back(i);
    wrt.push_back(graph.inputs()[i].value);
  }
  ASSIGN_OR_RETURN(const std::vector<Value> gradients, Backpropagate(graph, {{loss, b.SplatLike(1.0, loss)}}, wrt));
  RETURN_IF_ERROR(graph.AddResult("loss", loss));
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Value gradient = gradients[i] ? gradients[i] : b.SplatLike(0.0, wrt[i]);
    RETURN_IF_ERROR(graph.AddResult("gradient" + std::to_string(i), gradient));
  }
  RETURN_IF_ERROR(b.status());
  made.graph = std::move(graph);
  return made;
}

std::vector<std::vector<Tensor>> RankInputs(const OpCase& row) {
  std::vector<std::vector<Tensor>> inputs;
  for (int64_t rank = 0; rank < std::max<int64_t>(row.ranks, 1); ++rank)
    inputs.push_back(CaseInputs(row, static_cast<uint64_t>(rank) + 1));
  return inputs;
}

std::vector<std::string> ElementwiseOpsOfFloats(size_t operands) {
  const std::vector<TensorType> types(operands, TensorType{DType::kF32, {}});
  std::vector<std::string> names;
  for (const OpDef* op : AllOps()) {
    if (op->has_trait(kElementwise) && op->attribute_defs().empty() && op->InferTypes(types, {}, Mesh()).ok())
      names.push_back(op->name());
  }
  return names;
}

double RelativeDifference(const Tensor& a, const Tensor& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.type() != b.type()) return kInfinity;
  double difference = 0, scale = 1;
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    const double x = a.At(i), y = b.At(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return kInfinity;
    difference = std::max(difference, std::fabs(x - y));
  }
  for (int64_t i = 0; i < b.num_elements(); ++i) {
    if (std::isfinite(b.At(i))) scale = std::max(scale, std::fabs(b.At(i)));
  }
  return difference / scale;
}

}  // namespace lockstep
