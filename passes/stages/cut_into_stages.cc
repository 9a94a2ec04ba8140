#include "passes/stages/cut_into_stages.h"

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/ops/scan.h"
#include "passes/stages/names.h"
#include "passes/stages/turns.h"

namespace lockstep::passes {
namespace {

using Part = StagePlan::Part;

constexpr int64_t kEach = -1;        // no micro-batch: a value that is the same for all
constexpr int64_t kEveryStage = -1;  // no stage: a value that is on all stages

class StageCutter {
 public:
  StageCutter(const Graph& step, StagePlan plan, const StageOptions& options)
      : step_(step), plan_(std::move(plan)), stages_(options.stages), to_(step.name()), b_(to_) {
    std::vector<MeshAxis> axes = step.mesh().axes();
    axes.push_back({std::string(kStageAxis), options.stages});
    to_.set_mesh(options.mesh.empty() ? Mesh(std::move(axes)) : options.mesh);
  }

  absl::StatusOr<Graph> Run() {
    RETURN_IF_ERROR(AddInputs());
    if (plan_.loop() == nullptr) {
      for (const StagePlan::Item& item : plan_.items()) RETURN_IF_ERROR(AddAndMove(item));
    } else {
      RETURN_IF_ERROR(AddAround(Part::kBefore));
      for (const TurnOfStage& turn : TurnsOfAllStages(stages_, plan_.micro_batches())) RETURN_IF_ERROR(AddTurn(turn));
      RETURN_IF_ERROR(AddResultsOfLoop());
      RETURN_IF_ERROR(AddAround(Part::kAfter));
    }
    RETURN_IF_ERROR(AddResults());
    RETURN_IF_ERROR(b_.status());
    return std::move(to_);
  }

 private:
  // A value of the step, for a micro-batch, on a stage.
  using Key = std::tuple<const Node*, int, int64_t, int64_t>;
  static Key KeyOf(Value value, int64_t micro_batch, int64_t stage) {
    return {value.node, value.index, micro_batch, stage};
  }

  // Returns `placements` with the placement on the stage, and without axes that the mesh does not have: these have one
  // rank.
  PlacementMap At(PlacementMap placements, int64_t stage) const {
    std::erase_if(placements, [this](const auto& each) { return !to_.mesh().has_axis(each.first); });
    if (stage != kEveryStage) placements.insert_or_assign(std::string(kStageAxis), Placement::At(stage));
    return placements;
  }

  absl::Status AddInputs() {
    for (const Input& input : step_.inputs()) {
      const int64_t stage = plan_.StageOf(input.value);
      ASSIGN_OR_RETURN(made_[KeyOf(input.value, kEach, stage)],
                       to_.AddInputLike(input, input.value.type(), At(input.placements(), stage)));
    }
    for (const Input& input : step_.inputs()) {
      if (input.is_state) MoveToReaders(input.value, kEach);
    }
    return b_.status();
  }

  // --- Values --------------------------------------------------------------------------------------------------------

  // Returns the copy of `value` for a micro-batch on a stage. Adds it if it is computed where it is read. Returns an
  // error if the stage does not have it.
  absl::StatusOr<Value> Get(Value value, int64_t micro_batch, int64_t stage) {
    value = plan_.Resolve(value);
    const StagePlan::Item* const item = plan_.ItemOf(value);
    if (plan_.IsScanned(value)) return Slice(value, micro_batch, stage);
    const int64_t of = item != nullptr && item->differs_by_micro_batch ? micro_batch : kEach;
    const bool is_everywhere =
        item == nullptr ? plan_.StageOf(value) < 0 : item->where == StagePlan::Where::kEverywhere;
    const int64_t at = is_everywhere ? kEveryStage : stage;
    if (const auto found = made_.find(KeyOf(value, of, at)); found != made_.end()) return found->second;
    if (item == nullptr || item->where == StagePlan::Where::kStage) {
      return InvalidArgument() << "graph @" << step_.name() << " cannot be cut into stages: %" << value.name()
                               << " is needed on a stage that does not have it"
                               << (item == nullptr ? "" : ", made by " + item->node->Describe());
    }
    RETURN_IF_ERROR(Add(*item, of, at));
    return made_.at(KeyOf(value, of, at));
  }

  // Returns a micro-batch's slice of a scanned operand.
  absl::StatusOr<Value> Slice(Value input, int64_t micro_batch, int64_t stage) {
    const int64_t at = plan_.Roots(input).empty() ? kEveryStage : stage;
    Value& slice = made_[KeyOf(input, micro_batch, at)];
    if (slice) return slice;
    ASSIGN_OR_RETURN(const Value stack, Get(plan_.Stack(input), kEach, stage));
    std::vector<int64_t> start(static_cast<size_t>(stack.shape().rank())), limit = stack.shape().dims();
    start[0] = micro_batch;
    limit[0] = micro_batch + 1;
    b_.set_source(plan_.loop()->source());
    slice = b_.Reshape(b_.Slice(stack, std::move(start), std::move(limit)), input.shape());
    RETURN_IF_ERROR(b_.status());
    to_.SetName(slice, input.name());
    return slice;
  }

  absl::Status Add(const StagePlan::Item& item, int64_t micro_batch, int64_t stage) {
    const Node& node = *item.node;
    ValueMap map;
    for (Value operand : node.operands()) {
      ASSIGN_OR_RETURN(map[operand], Get(operand, micro_batch, stage));
    }
    NodeSpec spec = CopyOf(node, map);
    spec.placements.resize(node.num_results());
    for (size_t i = 0; i < node.num_results(); ++i) spec.placements[i] = At(node.placements(i), stage);
    ASSIGN_OR_RETURN(Node* const copy, to_.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) {
      const Value result = const_cast<Node&>(node).result(i);
      made_[KeyOf(result, micro_batch, stage)] = copy->result(i);
      const std::string name = node.op().has_trait(kCollective) ? ReductionName(step_, result) : "";
      if (!name.empty()) to_.SetName(copy->result(i), name);
    }
    return absl::OkStatus();
  }

  // --- Transfers -----------------------------------------------------------------------------------------------------

  void Move(Value value, int64_t micro_batch, int64_t to) {
    const int64_t from = plan_.StageOf(value);
    const Value here = made_.at(KeyOf(value, micro_batch, from));
    const bool is_sum = plan_.loop() != nullptr && value.node == plan_.loop();
    std::string what = TransferName(step_, is_sum ? plan_.OfOneMicroBatch(value) : value);
    if (micro_batch != kEach)
      what += ", micro-batch " + std::to_string(micro_batch + 1) + " of " + std::to_string(plan_.micro_batches());
    b_.set_source(std::move(what));
    const Value there = b_.Op("collective_permute", {here},
                              {{"axis", std::string(kStageAxis)},
                               {"sources", std::vector<int64_t>{from}},
                               {"targets", std::vector<int64_t>{to}}});
    if (there) to_.SetName(there, value.name());
    made_[KeyOf(value, micro_batch, to)] = there;
  }

  void MoveToReaders(Value value, int64_t micro_batch) {
    for (int64_t stage : plan_.Readers(value)) Move(value, micro_batch, stage);
  }

  // --- Around the loop -----------------------------------------------------------------------------------------------

  absl::Status AddAndMove(const StagePlan::Item& item) {
    if (item.where != StagePlan::Where::kStage) return absl::OkStatus();  // added where it is read
    RETURN_IF_ERROR(Add(item, kEach, item.stage));
    for (size_t i = 0; i < item.node->num_results(); ++i) MoveToReaders(const_cast<Node&>(*item.node).result(i), kEach);
    return b_.status();
  }

  absl::Status AddAround(Part part) {
    for (const StagePlan::Item& item : plan_.items()) {
      if (item.part == part) RETURN_IF_ERROR(AddAndMove(item));
    }
    return absl::OkStatus();
  }

  // --- The loop ------------------------------------------------------------------------------------------------------

  absl::Status AddTurn(const TurnOfStage& turn) {
    const int64_t micro_batch = turn.turn.micro_batch;
    const bool is_backward = turn.turn.is_backward;
    for (const StagePlan::Item& item : plan_.items()) {
      if (item.part != Part::kMicroBatch || item.where != StagePlan::Where::kStage || item.stage != turn.stage)
        continue;
      const int64_t of = item.differs_by_micro_batch ? micro_batch : kEach;
      const bool is_due = item.is_forward != is_backward && (item.differs_by_micro_batch || micro_batch == 0);
      if (is_due) RETURN_IF_ERROR(Add(item, of, turn.stage));
    }
    // A forward turn sends values to later stages, a backward turn to earlier ones.
    for (const StagePlan::Item& item : plan_.items()) {
      if (item.part != Part::kMicroBatch || item.where != StagePlan::Where::kStage || item.stage != turn.stage)
        continue;
      if (!item.differs_by_micro_batch && micro_batch > 0) continue;
      for (size_t i = 0; i < item.node->num_results(); ++i) {
        const Value value = const_cast<Node&>(*item.node).result(i);
        for (int64_t reader : plan_.Readers(value)) {
          if (!item.is_forward && reader > turn.stage) {
            return InvalidArgument() << "graph @" << step_.name() << " cannot be cut into stages: %" << value.name()
                                     << " is a gradient of stage " << turn.stage << ", and the later stage " << reader
                                     << " needs it, made by " << item.node->Describe();
          }
          if ((reader < turn.stage) == is_backward)
            Move(value, item.differs_by_micro_batch ? micro_batch : kEach, reader);
        }
      }
    }
    RETURN_IF_ERROR(b_.status());
    return is_backward ? AddToSums(turn.stage, micro_batch) : absl::OkStatus();
  }

  // Adds the terms of a micro-batch to the sums of a stage. Turns come in the order of the micro-batches, so do terms.
  absl::Status AddToSums(int64_t stage, int64_t micro_batch) {
    const ScanForm form(plan_.loop()->attributes());
    b_.set_source(plan_.loop()->source());
    for (size_t i = 0; i < form.num_results(); ++i) {
      const Value whole = const_cast<Node&>(*plan_.loop()).result(i);
      const int64_t at = plan_.StageOf(whole);
      if (at != stage && !(at == kEveryStage && stage + 1 == stages_)) continue;
      ASSIGN_OR_RETURN(Value part, Get(plan_.OfOneMicroBatch(whole), micro_batch, stage));
      if (form.is_stacked(i)) {
        std::vector<int64_t> dims = part.shape().dims();
        dims.insert(dims.begin(), 1);
        stacks_[i].push_back(b_.Reshape(part, Shape(std::move(dims))));
        continue;
      }
      Value& sum = sums_[i];
      sum = sum ? b_.Add(sum, part) : part;
    }
    return b_.status();
  }

  absl::Status AddResultsOfLoop() {
    const ScanForm form(plan_.loop()->attributes());
    for (size_t i = 0; i < form.num_results(); ++i) {
      const Value whole = const_cast<Node&>(*plan_.loop()).result(i);
      b_.set_source(plan_.loop()->source());
      const Value made = form.is_stacked(i) ? b_.Concat(stacks_[i], 0) : sums_[i];
      RETURN_IF_ERROR(b_.status());
      made_[KeyOf(whole, kEach, plan_.StageOf(whole))] = made;
      if (!form.is_stacked(i) && !made.node->is_input()) to_.SetName(made, whole.name());
      MoveToReaders(whole, kEach);
    }
    return b_.status();
  }

  // --- Results -------------------------------------------------------------------------------------------------------

  absl::Status AddResults() {
    for (const Result& result : step_.results()) {
      const int64_t stage = plan_.StageOf(result);
      ASSIGN_OR_RETURN(Value value, Get(result.value, kEach, stage));
      if (result.is_state) {
        RETURN_IF_ERROR(to_.AddStateResult(result.name, value, At(result.placements, stage)));
        continue;
      }
      if (value.placement(kStageAxis).is_at()) {
        b_.set_source("result " + result.name);
        value = b_.Op("collective_broadcast", {value}, {{"axis", std::string(kStageAxis)}, {"root", stage}});
        RETURN_IF_ERROR(b_.status());
      }
      RETURN_IF_ERROR(to_.AddResult(result.name, value, At(result.placements, kEveryStage)));
    }
    return absl::OkStatus();
  }

  const Graph& step_;
  const StagePlan plan_;
  const int64_t stages_;
  Graph to_;
  Builder b_;
  std::map<Key, Value> made_;
  std::map<size_t, Value> sums_;                 // by index of the loop's result
  std::map<size_t, std::vector<Value>> stacks_;  // by index of the loop's result
};

}  // namespace

absl::StatusOr<Graph> CutGraphIntoStages(const Graph& step, const StageOptions& options) {
  if (step.mesh().has_axis(kStageAxis) || step.is_local()) {
    return InvalidArgument() << "graph @" << step.name() << " is to be cut into stages, and is distributed over "
                             << step.mesh().ToString() << " already";
  }
  ASSIGN_OR_RETURN(StagePlan plan, StagePlan::Make(step, options));
  return StageCutter(step, std::move(plan), options).Run();
}

Pass CutIntoStages(StageOptions options) {
  return {"cut-into-stages",
          [options](Graph& graph) -> absl::StatusOr<bool> {
            if (options.stages == 1) return false;
            ASSIGN_OR_RETURN(graph, CutGraphIntoStages(graph, options));
            return true;
          },
          Keeps::kMeaning, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
