#include "passes/distribute/place_bodies.h"

#include <algorithm>

#include "core/op_def.h"
#include "core/ops/scan.h"

namespace lockstep::passes {
namespace {

class BodyPlacer {
 public:
  BodyPlacer(const ScanForm& form, const std::string& axis, const PlaceBodyFn& place)
      : form_(form), axis_(axis), place_(place) {}

  // Returns the body placed with these placements of its inputs, or with others: those in which carried values no
  // longer change, and slices of whole inputs of which the body uses only a slice. Returns an error with the reason if
  // ranks would have to communicate.
  absl::StatusOr<Graph> Place(std::vector<Placement> inputs) const {
    for (size_t round = 0; round <= form_.carried + inputs.size(); ++round) {
      Graph body = form_.body->Clone();
      for (size_t i = 0; i < inputs.size(); ++i) {
        PlacementMap placements = body.inputs()[i].placements();
        placements.insert_or_assign(axis_, inputs[i]);
        body.set_input_placements(i, std::move(placements));
      }
      absl::StatusOr<Graph> placed = place_(std::move(body));
      if (!placed.ok()) return placed;
      bool settled = true;
      for (size_t i = 0; i < form_.carried; ++i) {
        const Placement next = placed->results()[i].value.placement(axis_);
        if (next == inputs[i]) continue;
        if (!next.is_split() && !next.is_replicated()) return IsAt(placed->results()[i], "a carried value", next);
        inputs[i] = next;
        settled = false;
      }
      // Inputs are cut only once carried values have settled, as a carried value that was whole may be cut in the body.
      if (!settled || CutInputs(*placed, inputs)) continue;
      RETURN_IF_ERROR(CheckLoop(*placed));
      return placed;
    }
    return InvalidArgument() << "the placements of its carried values do not converge";
  }

 private:
  // Changes the placement of whole inputs of which the body takes a slice to that slice. Returns true if there were
  // any.
  bool CutInputs(const Graph& placed, std::vector<Placement>& inputs) const {
    bool any = false;
    for (size_t i = form_.carried; i < inputs.size(); ++i) {
      if (!inputs[i].is_replicated()) continue;
      for (const Node* user : placed.inputs()[i].value.node->users()) {
        if (!user->Is("shard") || user->attr<std::string>("axis") != axis_) continue;
        inputs[i] = Placement::Split(user->attr<int64_t>("dim"));
        any = true;
        break;
      }
    }
    return any;
  }

  static absl::Status IsAt(const Result& result, std::string_view what, const Placement& is) {
    return InvalidArgument() << "%" << result.value.name() << ", which is " << what << ", is " << is;
  }

  // Checks that no node needs other ranks, and that only sums are partial: ranks add these up after the loop.
  absl::Status CheckLoop(const Graph& placed) const {
    for (const Node& node : placed.nodes()) {
      if (node.op().ranks_eval() || node.op().has_trait(kCollective))
        return InvalidArgument() << node.Describe() << " depends on the rank";
    }
    for (size_t i = 0; i < form_.num_results(); ++i) {
      const Placement is = placed.results()[i].value.placement(axis_);
      const bool may_be_partial = i >= form_.carried && is.is_partial(ReduceKind::kSum);
      if (is.is_partial() && !may_be_partial) return IsAt(placed.results()[i], "a result", is);
    }
    return absl::OkStatus();
  }

  const ScanForm& form_;
  const std::string& axis_;
  const PlaceBodyFn& place_;
};

// Returns the placement of the part of an operand that one iteration gets. Partial operands are made whole before the
// loop.
Placement InLoop(const Placement& operand, bool is_scanned) {
  if (!operand.is_split()) return Placement::Replicated();
  if (!is_scanned) return operand;
  return operand.dim() == 0 ? Placement::Replicated() : Placement::Split(operand.dim() - 1);
}

// Returns an error that names an input whose rows the ranks cannot share evenly in each micro-batch.
absl::Status CheckRowsOfRanks(const Graph& graph, const ScanForm& form, const std::string& axis, const Mesh& mesh) {
  for (const Input& input : graph.inputs()) {
    const Placement placement = input.value.placement(axis);
    const bool is_batch = input.is_data() && placement.is_split() && input.value.placement(kDataAxis) == placement;
    if (!is_batch) continue;
    int64_t ranks = 1;
    for (const MeshAxis& each : mesh.axes()) ranks *= input.value.placement(each.name) == placement ? each.size : 1;
    const int64_t rows = input.value.shape()[placement.dim()];
    if (rows % (ranks * form.length) == 0) continue;
    return InvalidArgument() << "accumulate: each of " << ranks << " ranks has " << rows / ranks << " of the " << rows
                             << " rows of input %" << input.name() << " (" << input.value.type()
                             << "), which cannot be cut into " << form.length
                             << " equal micro-batches; the batch has to be a multiple of " << ranks << " * "
                             << form.length << " = " << ranks * form.length;
  }
  return absl::OkStatus();
}

absl::Status NotByMicroBatches(const Node& scan, const ScanForm& form, const std::string& axis,
                               const absl::Status& why) {
  ErrorStream error = InvalidArgument() << "accumulate: the ranks of axis " << axis << " would have to communicate "
                                        << "within the loop over micro-batches " << scan.Describe();
  for (const Node& node : form.body->nodes()) {
    if (node.Is("batch_norm_training") && node.attr<std::string>("statistics") == "global") {
      return error << ": " << node.Describe() << " normalises by the statistics of all ranks; use those of each rank's "
                   << "share, by batch_statistics=\"rank\" of train_step or statistics=rank of the pass training-mode";
    }
  }
  return error
         << ": " << why.message()
         << "; a loss that compares the samples of a batch is computed in micro-batches on one rank only: leave out "
         << "accumulate, or use one rank";
}

}  // namespace

absl::Status PlaceScanBody(Graph& graph, Node& scan, const std::vector<Placement>& operands, const std::string& axis,
                           const Mesh& mesh, const PlaceBodyFn& place) {
  const auto is_local = [](const Placement& placement) { return placement.is_local(); };
  if (std::any_of(operands.begin(), operands.end(), is_local)) return absl::OkStatus();  // each rank runs its own loop
  const ScanForm form(scan);
  const BodyPlacer placer(form, axis, place);
  std::vector<Placement> as_they_are, without_constants;
  for (size_t i = 0; i < operands.size(); ++i) {
    as_they_are.push_back(InLoop(operands[i], form.is_scanned(i)));
    without_constants.push_back(i < form.first_constant() ? as_they_are[i] : Placement::Replicated());
  }
  const bool by_micro_batches = scan.attr<bool>("one_at_a_time");
  if (by_micro_batches) RETURN_IF_ERROR(CheckRowsOfRanks(graph, form, axis, mesh));
  const bool is_shared =
      std::any_of(as_they_are.begin(), as_they_are.begin() + static_cast<std::ptrdiff_t>(form.first_constant()),
                  [](const Placement& placement) { return placement.is_split(); });
  std::vector<std::vector<Placement>> ways = {as_they_are, without_constants};
  if (!by_micro_batches || !is_shared) ways.emplace_back(operands.size());
  absl::Status why;  // the error of the last way
  for (const std::vector<Placement>& inputs : ways) {
    absl::StatusOr<Graph> placed = placer.Place(inputs);
    why = placed.status();
    if (!placed.ok()) continue;
    placed->set_mesh(Mesh());
    return graph.SetAttribute(&scan, "body", Region(*std::move(placed)));
  }
  if (by_micro_batches) return NotByMicroBatches(scan, form, axis, why);
  return Internal() << scan.Describe() << ": its body cannot be placed whole along axis " << axis << ": "
                    << why.message();
}

}  // namespace lockstep::passes
