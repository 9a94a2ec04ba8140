#include "passes/distribute/place_bodies.h"

#include <algorithm>
#include <optional>

#include "core/op_def.h"
#include "core/ops/scan.h"

namespace lockstep::passes {
namespace {

class BodyPlacer {
 public:
  BodyPlacer(const ScanForm& form, const std::string& axis, const PlaceBodyFn& place)
      : form_(form), axis_(axis), place_(place) {}

  // The body with its inputs placed so, or where carried values settle; nothing if ranks would have to meet.
  std::optional<Graph> Place(std::vector<Placement> inputs) const {
    for (size_t round = 0; round <= 2 * form_.carried; ++round) {
      Graph body = form_.body->Clone();
      for (size_t i = 0; i < inputs.size(); ++i) {
        PlacementMap placements = body.inputs()[i].placements();
        placements.insert_or_assign(axis_, inputs[i]);
        body.set_input_placements(i, std::move(placements));
      }
      absl::StatusOr<Graph> placed = place_(std::move(body));
      if (!placed.ok()) return std::nullopt;
      bool settled = true;
      for (size_t i = 0; i < form_.carried; ++i) {
        const Placement next = placed->results()[i].value.placement(axis_);
        if (next == inputs[i]) continue;
        if (!next.is_split() && !next.is_replicated()) return std::nullopt;
        inputs[i] = next;
        settled = false;
      }
      // Not before: a first value that is whole may have been cut in the body, and is then cut before it.
      if (settled && !IsLoop(*placed)) return std::nullopt;
      if (settled) return *std::move(placed);
    }
    return std::nullopt;
  }

 private:
  // Whether the ranks compute it alone, and can add up what is summed after the loop.
  bool IsLoop(const Graph& placed) const {
    for (const Node& node : placed.nodes()) {
      if (node.op().ranks_eval() || node.op().has_trait(kCollective)) return false;
    }
    for (size_t i = 0; i < form_.num_results(); ++i) {
      const Placement is = placed.results()[i].value.placement(axis_);
      const bool may_be_partial = i >= form_.carried && is.is_partial(ReduceKind::kSum);
      if (is.is_partial() && !may_be_partial) return false;
    }
    return true;
  }

  const ScanForm& form_;
  const std::string& axis_;
  const PlaceBodyFn& place_;
};

// Where an operand's part is that an iteration gets. What is partial is made whole before the loop.
Placement InLoop(const Placement& operand, bool is_scanned) {
  if (!operand.is_split()) return Placement::Replicated();
  if (!is_scanned) return operand;
  return operand.dim() == 0 ? Placement::Replicated() : Placement::Split(operand.dim() - 1);
}

}  // namespace

absl::Status PlaceScanBody(Graph& graph, Node& scan, const std::vector<Placement>& operands, const std::string& axis,
                           const PlaceBodyFn& place) {
  const auto is_local = [](const Placement& placement) { return placement.is_local(); };
  if (std::any_of(operands.begin(), operands.end(), is_local)) return absl::OkStatus();  // each rank has its own loop
  const ScanForm form(scan);
  const BodyPlacer placer(form, axis, place);
  std::vector<Placement> as_they_are, without_constants;
  for (size_t i = 0; i < operands.size(); ++i) {
    as_they_are.push_back(InLoop(operands[i], form.is_scanned(i)));
    without_constants.push_back(i < form.first_constant() ? as_they_are[i] : Placement::Replicated());
  }
  for (const auto& inputs : {as_they_are, without_constants, std::vector<Placement>(operands.size())}) {
    std::optional<Graph> placed = placer.Place(inputs);
    if (!placed) continue;
    placed->set_mesh(Mesh());
    return graph.SetAttribute(&scan, "body", Region(*std::move(placed)));
  }
  return Internal() << scan.Describe() << ": its body cannot be placed whole along axis " << axis;
}

}  // namespace lockstep::passes
