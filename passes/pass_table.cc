#include "passes/pass_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "passes/distribute/check_shares.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/fold_virtual_ranks.h"
#include "passes/distribute/form_reduce_scatters.h"
#include "passes/distribute/gather_factors.h"
#include "passes/distribute/localize.h"
#include "passes/distribute/lower_exchanges.h"
#include "passes/distribute/merge_collectives.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/overlap_collectives.h"
#include "passes/distribute/quantize_wire.h"
#include "passes/distribute/reduce_before_scale.h"
#include "passes/distribute/split_inputs.h"
#include "passes/distribute/wire.h"
#include "passes/legalize/legalize.h"
#include "passes/legalize/widen.h"
#include "passes/optimize/cse.h"
#include "passes/optimize/dce.h"
#include "passes/optimize/fold_constants.h"
#include "passes/optimize/fuse_elementwise.h"
#include "passes/optimize/one_pass_statistics.h"
#include "passes/optimize/recognize_attention.h"
#include "passes/optimize/separate_rows.h"
#include "passes/simplify/simplify.h"
#include "passes/stages/cut_into_stages.h"
#include "passes/training/autodiff.h"
#include "passes/training/inference_mode.h"
#include "passes/training/recipe_text.h"
#include "passes/training/training_mode.h"

namespace lockstep::passes {
namespace {

// Returns the entry of a pass whose options are the fields of a struct.
template <typename S>
PassEntry Row(std::string name, std::string doc, const std::function<Pass(S)>& make, std::vector<OptionOf<S>> options,
              const S& defaults = {}) {
  std::string described = DescribeOptions(options, defaults);
  return {std::move(name), std::move(doc), std::move(described),
          [make, defaults, options = std::move(options)](const std::vector<NamedText>& texts) -> absl::StatusOr<Pass> {
            S given = defaults;
            RETURN_IF_ERROR(SetOptions(options, texts, given));
            return make(std::move(given));
          }};
}

struct NoOptions {};

PassEntry Plain(std::string name, std::string doc, Pass (*make)()) {
  return Row<NoOptions>(std::move(name), std::move(doc), [make](NoOptions) { return make(); }, {});
}

// --- Options of passes that have no struct of options ----------------------------------------------------------------

struct Gradients {
  std::string of = "loss";
  std::vector<std::string> wrt;
};

struct Shares {
  Mesh mesh;
  PlacementChoices splits;
  bool replicated = false;
};

struct Ops {
  std::vector<std::string> names;
};

struct Wire {
  std::string dtype = "bf16";
};

std::function<bool(const Node&)> IsOneOf(std::vector<std::string> names) {
  return [names = std::move(names)](const Node& node) {
    return std::find(names.begin(), names.end(), node.op_name()) != names.end();
  };
}

// The option `dropout`, whose values are `on` and `off`.
OptionOf<TrainingModeOptions> Dropout() {
  return {"dropout", "or off", [](const TrainingModeOptions& mode) { return mode.dropout ? "on" : "off"; },
          [](TrainingModeOptions& mode, std::string_view text) -> absl::Status {
            if (text != "on" && text != "off") return InvalidArgument() << " is '" << text << "', expected on or off";
            mode.dropout = text == "on";
            return absl::OkStatus();
          }};
}

// The option `max_bytes`. It also sets first_bytes, unless the option `first_bytes` follows.
OptionOf<MergeOptions> MaxBytes() {
  OptionOf<MergeOptions> option = Bind("max_bytes", &MergeOptions::max_bytes);
  option.set = [set = option.set](MergeOptions& merge, std::string_view text) {
    const absl::Status status = set(merge, text);
    merge.first_bytes = MergeOptions{merge.max_bytes}.first_bytes;
    return status;
  };
  return option;
}

// Makes Distribute. The options are the axes of the mesh and their sizes.
absl::StatusOr<Pass> MakeDistribute(const std::vector<NamedText>& axes) {
  Mesh mesh;
  const absl::Status status = FromText("{" + PrintNamedTexts(axes) + "}", mesh);
  if (!status.ok()) return InvalidArgument() << "mesh" << status.message();
  return Distribute(std::move(mesh));
}

absl::StatusOr<Pass> MakeTrainStepPass(const std::vector<NamedText>& texts) {
  ASSIGN_OR_RETURN(TrainStepSpec spec, TrainStepFromText(texts));
  return TrainStep(std::move(spec));
}

absl::StatusOr<Pass> MakeEvaluationPass(const std::vector<NamedText>& texts) {
  ASSIGN_OR_RETURN(EvaluationSpec spec, EvaluationFromText(texts));
  return Evaluation(std::move(spec));
}

}  // namespace

const std::vector<PassEntry>& PassTable() {
  static const std::vector<PassEntry> table = {
      Row<TrainingModeOptions>("training-mode",
                               "normalises by batch statistics, updates the running statistics, and enables dropout",
                               TrainingMode,
                               {Bind("momentum", &TrainingModeOptions::momentum, "each node's own if empty"),
                                Bind("statistics", &TrainingModeOptions::statistics), Dropout(),
                                Bind("uneven", &TrainingModeOptions::uneven)}),
      Row<Gradients>("autodiff", "adds the gradients of a result, as results grad/<name>",
                     [](const Gradients& gradients) { return Autodiff(gradients.of, gradients.wrt); },
                     {Bind("of", &Gradients::of), Bind("wrt", &Gradients::wrt, "w|b; every float state if empty")}),
      {"evaluation", "replaces the results with the loss and a metric of the rows that do not pad the batch",
       EvaluationOptions(), MakeEvaluationPass},
      {"train-step", "adds the loss, its gradients and the optimizer's updates", TrainStepOptions(), MakeTrainStepPass},
      Row<Shares>("split-inputs", "splits inputs and states between ranks",
                  [](const Shares& shares) { return SplitInputs(shares.splits, shares.mesh); },
                  {Bind("splits", &Shares::splits, "such as {fc*.weight={model=0}}"), Bind("mesh", &Shares::mesh)}),
      Row<Shares>("shard-optimizers", "splits the optimizers' states between the ranks along data",
                  [](const Shares& shares) { return ShardOptimizers(shares.mesh); }, {Bind("mesh", &Shares::mesh)}),
      Row<Shares>("check-shares", "returns an error if no input or state is split between ranks",
                  [](const Shares& shares) { return CheckShares(shares.mesh, shares.replicated); },
                  {Bind("mesh", &Shares::mesh), Bind("replicated", &Shares::replicated)}),
      Plain("inference-mode", "removes ops that matter only in training", InferenceMode),
      Plain("recognize-attention", "replaces attention that is written in simpler ops with the op attention",
            RecognizeAttention),
      Plain("separate-rows", "keeps the dimensions of rows separate in layers that merged them", SeparateRows),
      Plain("one-pass-statistics", "computes statistics of batch normalisations in one pass over memory",
            [] { return OnePassStatistics(true); }),
      Row<Ops>("widen-halves", "computes nodes in f32 that are slow in 16 bits on a target",
               [](const Ops& ops) { return WidenHalves(IsOneOf(ops.names)); }, {Bind("slow", &Ops::names)},
               {{"matmul", "convolution", "convolution_grad_input", "convolution_grad_filter"}}),
      Plain("simplify", "makes the program smaller by local rules", Simplify),
      Row<FoldOptions>("fold-constants", "evaluates nodes that depend only on constants", FoldConstants,
                       {Bind("max_elements", &FoldOptions::max_elements)}),
      Plain("cse", "merges nodes that compute the same", Cse),
      Plain("dce", "removes nodes whose results are unused", Dce),
      Row<ServerOptions>("move-updates-to-servers", "lets parameter servers update the trained states",
                         MoveUpdatesToServers,
                         {Bind("axis", &ServerOptions::axis), Bind("synchronous", &ServerOptions::synchronous),
                          Bind("max_staleness", &ServerOptions::max_staleness),
                          Bind("bigarray_bound", &ServerOptions::bigarray_bound)}),
      {"distribute", "turns the one-rank program into a placed program, with collectives", "data=4 (axes and sizes)",
       MakeDistribute},
      Plain("lower-exchanges", "replaces exchanges by their bodies, or by all_reduces", LowerExchanges),
      Plain("reduce-before-scale", "moves an all_reduce before the scaling of its operand", ReduceBeforeScale),
      Plain("form-reduce-scatters", "replaces collectives of which each rank uses only its slice", FormReduceScatters),
      Row<Wire>("choose-wire", "sets the dtype in which gradients travel",
                [](const Wire& wire) { return ChooseWire(wire.dtype); }, {Bind("dtype", &Wire::dtype)}),
      Row<FactorOptions>(
          "gather-factors", "gathers the factors of sums over ranks, if that is cheaper than reducing the sums",
          GatherFactors,
          {Bind("operations_per_byte", &FactorOptions::operations_per_byte), Bind("axis", &FactorOptions::axis)},
          {.operations_per_byte = kOperationsPerByte}),
      Row<StageOptions>(
          "cut-into-stages", "cuts a training step into the stages of a pipeline", CutIntoStages,
          {Bind("stages", &StageOptions::stages), Bind("operations_per_byte", &StageOptions::operations_per_byte)},
          {.stages = 2}),
      Row<MergeOptions>("merge-collectives", "puts collectives into buckets", MergeCollectives,
                        {MaxBytes(), Bind("first_bytes", &MergeOptions::first_bytes, "an eighth of max_bytes"),
                         Bind("measured", &MergeOptions::measured,
                              "{gradients={g={ready=10,needed=100,update=5}},costs={data={1024=500}}}, in ns")}),
      Plain("quantize-wire", "expands reductions that travel as int8, and keeps the rounding errors", QuantizeWire),
      Row<Ops>("legalize", "decomposes ops for which a target has no kernel",
               [](const Ops& ops) { return Legalize(std::not_fn(IsOneOf(ops.names))); },
               {Bind("without", &Ops::names, "softmax|sgd")}),
      Row<RowShares>("localize", "turns a placed program into the local program of each rank", Localize,
                     {Bind("rows", &RowShares::rows, "such as 5|3; equal numbers if empty"),
                      Bind("rank", &RowShares::rank, "whose program it is, if the numbers differ")}),
      Plain("lower-wire", "converts gradients to and from the dtype in which they travel", LowerWire),
      Row<FusionOptions>(
          "fuse-elementwise", "gathers elementwise ops and reductions into fusions", FuseElementwise,
          {Bind("max_nodes", &FusionOptions::max_nodes), Bind("max_operands", &FusionOptions::max_operands),
           Bind("max_results", &FusionOptions::max_results),
           Bind("min_shared_elements", &FusionOptions::min_shared_elements), Bind("max_row", &FusionOptions::max_row)}),
      Row<VirtualRanks>("fold-virtual-ranks", "lets each rank run several virtual ranks, with the same bits",
                        FoldVirtualRanks,
                        {Bind("ranks", &VirtualRanks::ranks),
                         Bind("counts", &VirtualRanks::counts, "such as 5|3; equal numbers if empty"),
                         Bind("rank", &VirtualRanks::rank, "whose program it is, if the numbers differ"),
                         Bind("min_bytes_of_slices", &VirtualRanks::min_bytes_of_slices)}),
      Plain("overlap-collectives", "moves collectives so that they run while ranks compute", OverlapCollectives),
  };
  return table;
}

}  // namespace lockstep::passes
