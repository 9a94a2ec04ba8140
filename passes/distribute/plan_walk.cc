#include "passes/distribute/plan_walk.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/op_def.h"
#include "core/placement_rules.h"
#include "passes/distribute/distribute.h"

namespace lockstep::passes {
namespace {

constexpr PlaceCode kLocalCode = 1, kFirstPartial = 2, kFirstSplit = 8;

bool IsPartial(PlaceCode code) { return code >= kFirstPartial && code < kFirstSplit; }

std::vector<TensorType> ResultTypesOf(const Node& node) {
  std::vector<TensorType> types;
  for (size_t i = 0; i < node.num_results(); ++i) types.push_back(node.type(i));
  return types;
}

}  // namespace

PlaceCode CodeOf(const Placement& placement) {
  if (placement.is_replicated()) return kReplicatedCode;
  if (placement.is_local()) return kLocalCode;
  if (placement.is_partial()) return static_cast<PlaceCode>(kFirstPartial + static_cast<int>(placement.reduce()));
  LOCKSTEP_CHECK(placement.dim() < 32 - kFirstSplit) << placement;
  return static_cast<PlaceCode>(kFirstSplit + placement.dim());
}

Placement PlacementOf(PlaceCode code) {
  if (code == kReplicatedCode) return Placement::Replicated();
  if (code == kLocalCode) return Placement::Local();
  if (IsPartial(code)) return Placement::Partial(static_cast<ReduceKind>(code - kFirstPartial));
  return Placement::Split(code - kFirstSplit);
}

PlanWalk::PlanWalk(const Graph& graph, const PlanProgram& program, const Mesh& mesh, const PlanMachine& machine)
    : graph_(graph), program_(program), mesh_(mesh), axis_(mesh.axes().back()), machine_(machine) {
  for (const Value& value : program.values) is_reduced_once_.push_back(IsReducedOnce(value));
}

int64_t PlanWalk::BytesOf(int value, PlaceCode code) const {
  const Value v = program_.values[At(value)];
  return LocalBytes(v.type(), With(v.placements(), code), mesh_);
}

PlacementMap PlanWalk::With(const PlacementMap& others, PlaceCode code) const {
  PlacementMap placements = others;
  placements.insert_or_assign(axis_.name, PlacementOf(code));
  return placements;
}

double PlanWalk::Run(const std::vector<PlanItem>& items, std::vector<ValuePlacements>& where) {
  double seconds = 0;
  for (const PlanItem& item : items) {
    seconds += item.node == nullptr ? End(item, where) : Run(item, where);
    if (seconds == kImpossible) break;
  }
  return seconds;
}

double PlanWalk::End(const PlanItem& item, std::vector<ValuePlacements>& where) {
  if (item.state >= 0) return Move(item.operands[0], where[At(item.state)].is, where);
  return IsPartial(where[At(item.operands[0])].is) ? Move(item.operands[0], kReplicatedCode, where) : 0;
}

double PlanWalk::Run(const PlanItem& item, std::vector<ValuePlacements>& where) {
  std::vector<PlaceCode> operands;
  for (const int operand : item.operands)
    operands.push_back(HasNoDimension(operand) ? kReplicatedCode : where[At(operand)].is);
  const Ruling* ruling = &CachedRule(item, operands);
  double seconds = 0;
  bool is_reduced = false;
  for (size_t i = 0; i < operands.size(); ++i) {  // like AxisPlacer::ReduceOnce
    if (PlacementOf(operands[i]).is_partial(ReduceKind::kSum) && ruling->required[i] == operands[i] &&
        is_reduced_once_[At(item.operands[i])]) {
      seconds += Move(item.operands[i], kReplicatedCode, where);
      operands[i] = kReplicatedCode;
      is_reduced = true;
    }
  }
  if (is_reduced) ruling = &CachedRule(item, operands);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!HasNoDimension(item.operands[i])) seconds += Move(item.operands[i], ruling->required[i], where);
  }
  for (size_t i = 0; i < item.results.size(); ++i) {
    const int result = item.results[i];
    PlaceCode code = ruling->results[i];
    if (HasNoDimension(result)) {
      if (IsPartial(code)) seconds += CollectiveSeconds(true, BytesOf(result, code), axis_.name, machine_);
      code = kReplicatedCode;
    }
    where[At(result)] = {code, 0};
  }
  return seconds + ruling->seconds;
}

double PlanWalk::Move(int value, PlaceCode to, std::vector<ValuePlacements>& where) {
  ValuePlacements& place = where[At(value)];
  if (place.is == to || (place.also >> to & 1) != 0) return 0;
  if (place.is == kLocalCode || to == kLocalCode || IsPartial(to)) return kImpossible;
  if (place.is == kReplicatedCode) {  // the rank computes or copies its slice
    return IsStored(program_.values[At(value)]) ? static_cast<double>(BytesOf(value, to)) / machine_.bandwidth : 0;
  }
  const int64_t bytes = BytesOf(value, kReplicatedCode);
  if (IsPartial(place.is)) {
    if (to == kReplicatedCode) {
      place = {kReplicatedCode, 0};  // later items use the reduced value
      return CollectiveSeconds(true, bytes, axis_.name, machine_);
    }
    place.also |= 1u << to;
    return CollectiveSeconds(false, bytes, axis_.name, machine_);
  }
  if ((place.also & 1u << kReplicatedCode) != 0) return 0;
  place.also |= 1u << kReplicatedCode;  // a split along another dimension is a slice of the gathered value
  return CollectiveSeconds(false, bytes, axis_.name, machine_);
}

const PlanWalk::Ruling& PlanWalk::CachedRule(const PlanItem& item, const std::vector<PlaceCode>& operands) {
  std::map<std::vector<PlaceCode>, Ruling>& known = rulings_[item.node];
  const auto found = known.find(operands);
  if (found != known.end()) return found->second;
  return known.emplace(operands, ApplyRule(item, operands)).first->second;
}

bool PlanWalk::CanBePlaced(const Node& node, const std::vector<PlaceCode>& operands,
                           const std::vector<Placement>& required, const std::vector<Placement>& results) const {
  const auto splits = [&](const PlacementMap& others, const Placement& placement) {
    return placement.is_split() && std::any_of(others.begin(), others.end(), [&](const auto& each) {
             return each.first != axis_.name && each.second.is_split(placement.dim());
           });
  };
  for (size_t i = 0; i < operands.size(); ++i) {
    const PlacementMap& others = node.operand(i).placements();
    if (!SplitsEvenly(node.operand(i).shape(), With(others, CodeOf(required[i])), mesh_)) return false;
    const Placement is = PlacementOf(operands[i]);
    if (required[i].is_split() && is != required[i] && (splits(others, required[i]) || splits(others, is)))
      return false;
  }
  for (size_t i = 0; i < node.num_results(); ++i) {
    if (!SplitsEvenly(node.type(i).shape, With(node.placements(i), CodeOf(results[i])), mesh_)) return false;
  }
  return true;
}

PlanWalk::Ruling PlanWalk::ApplyRule(const PlanItem& item, const std::vector<PlaceCode>& operands) {
  const Node& node = *item.node;
  if (node.op().has_trait(kLoop)) return DistributeAlone(item, operands);
  const std::vector<TensorType> types = ResultTypesOf(node);
  const NodeToPlace to_place{node.op(), node.attributes(), node.operands(), types};
  std::vector<Placement> places;
  for (const PlaceCode code : operands) places.push_back(PlacementOf(code));
  PlacementRuleResult ruling = AskPlacementRule(to_place, axis_, std::nullopt, places);
  if (ruling.decompose) return DistributeAlone(item, operands);
  if (ruling.failure.empty() && !CanBePlaced(node, operands, ruling.required, ruling.results))
    ruling = AskPlacementRule(to_place, axis_, std::nullopt, std::vector<Placement>(operands.size()));
  Ruling result;
  std::vector<PlacementMap> of_operands, of_results;
  for (size_t i = 0; i < operands.size(); ++i) {
    result.required.push_back(CodeOf(ruling.required[i]));
    of_operands.push_back(With(node.operand(i).placements(), result.required.back()));
  }
  for (size_t i = 0; i < node.num_results(); ++i) {
    result.results.push_back(CodeOf(ruling.results[i]));
    of_results.push_back(With(node.placements(i), result.results.back()));
  }
  result.seconds = ruling.failure.empty() && !ruling.decompose
                       ? NodeSeconds(node, of_operands, of_results, mesh_, machine_)
                       : kImpossible;
  return result;
}

PlanWalk::Ruling PlanWalk::DistributeAlone(const PlanItem& item, const std::vector<PlaceCode>& operands) {
  const Node& node = *item.node;
  Ruling ruling{operands, std::vector<PlaceCode>(node.num_results(), kReplicatedCode), kImpossible};
  const auto make = [&]() -> absl::StatusOr<Graph> {
    Graph alone(graph_.name());
    if (!graph_.mesh().empty()) alone.set_mesh(graph_.mesh());
    ValueMap map;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Value operand = node.operand(i);
      if (map.contains(operand)) continue;
      ASSIGN_OR_RETURN(map[operand], alone.AddInput("operand" + std::to_string(i), operand.type(), false,
                                                    With(operand.placements(), operands[i])));
    }
    NodeSpec spec = CopyOf(node, map);
    if (graph_.mesh().empty()) spec.placements.clear();
    ASSIGN_OR_RETURN(Node* const inserted, alone.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i)
      RETURN_IF_ERROR(alone.AddResult("result" + std::to_string(i), inserted->result(i), node.placements(i)));
    return DistributeAlong(std::move(alone), axis_);
  };
  const absl::StatusOr<Graph> placed = make();
  if (!placed.ok()) return ruling;
  for (size_t i = 0; i < node.num_results(); ++i)
    ruling.results[i] = CodeOf(PlacementAlong(placed->results()[i].placements, axis_.name));
  ruling.seconds = CostsOf(*placed, machine_).seconds();
  return ruling;
}

}  // namespace lockstep::passes
