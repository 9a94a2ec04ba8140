#include "passes/pass_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "passes/distribute/check_shares.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/form_reduce_scatters.h"
#include "passes/distribute/gather_factors.h"
#include "passes/distribute/localize.h"
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

// A row of a pass whose options are a struct: one of its options is a field.
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

// --- Options of passes that take no struct of them -------------------------------------------------------------------

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

// `on` or `off`.
OptionOf<TrainingModeOptions> Dropout() {
  return {"dropout", "or off", [](const TrainingModeOptions& mode) { return mode.dropout ? "on" : "off"; },
          [](TrainingModeOptions& mode, std::string_view text) -> absl::Status {
            if (text != "on" && text != "off") return InvalidArgument() << " is '" << text << "', expected on or off";
            mode.dropout = text == "on";
            return absl::OkStatus();
          }};
}

// The size of the first bucket follows from that of the others, unless it is given.
OptionOf<MergeOptions> MaxBytes() {
  OptionOf<MergeOptions> option = Bind("max_bytes", &MergeOptions::max_bytes);
  option.set = [set = option.set](MergeOptions& merge, std::string_view text) {
    const absl::Status status = set(merge, text);
    merge.first_bytes = MergeOptions{merge.max_bytes}.first_bytes;
    return status;
  };
  return option;
}

// Options that are the axes of a mesh.
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
      Row<Gradients>("autodiff", "adds gradients of a result as results grad/<name>",
                     [](const Gradients& gradients) { return Autodiff(gradients.of, gradients.wrt); },
                     {Bind("of", &Gradients::of), Bind("wrt", &Gradients::wrt, "w|b; every float state if empty")}),
      Row<TrainingModeOptions>("training-mode",
                               "normalises by the batch's statistics and updates the running ones; drops at random",
                               TrainingMode,
                               {Bind("momentum", &TrainingModeOptions::momentum, "each node's own if empty"),
                                Bind("statistics", &TrainingModeOptions::statistics), Dropout(),
                                Bind("uneven", &TrainingModeOptions::uneven)}),
      Plain("inference-mode", "takes out what does something in training alone", InferenceMode),
      {"evaluation", "adds the loss, and a metric, of the rows that are there", EvaluationOptions(),
       MakeEvaluationPass},
      {"train-step", "adds the loss, its gradients and the optimizer's updates", TrainStepOptions(), MakeTrainStepPass},
      Row<Shares>("split-inputs", "says of inputs and states which dimension ranks share",
                  [](const Shares& shares) { return SplitInputs(shares.splits, shares.mesh); },
                  {Bind("splits", &Shares::splits, "such as {fc*.weight={model=0}}"), Bind("mesh", &Shares::mesh)}),
      Row<Shares>("shard-optimizers", "lets ranks along data share what optimizers keep",
                  [](const Shares& shares) { return ShardOptimizers(shares.mesh); }, {Bind("mesh", &Shares::mesh)}),
      Row<Shares>("check-shares", "refuses a program of which ranks share nothing",
                  [](const Shares& shares) { return CheckShares(shares.mesh, shares.replicated); },
                  {Bind("mesh", &Shares::mesh), Bind("replicated", &Shares::replicated)}),
      Plain("recognize-attention", "makes one attention of the written-out form", RecognizeAttention),
      Plain("separate-rows", "takes apart the rows of several dimensions that layers have merged", SeparateRows),
      Plain("simplify", "rewrites to a smaller program by local rules", Simplify),
      Row<FoldOptions>("fold-constants", "evaluates what depends on constants alone", FoldConstants,
                       {Bind("max_elements", &FoldOptions::max_elements)}),
      Plain("cse", "merges nodes that compute the same", Cse),
      Plain("dce", "removes nodes whose results nobody uses", Dce),
      Row<ServerOptions>("move-updates-to-servers", "lets parameter servers update what is trained",
                         MoveUpdatesToServers,
                         {Bind("axis", &ServerOptions::axis), Bind("synchronous", &ServerOptions::synchronous),
                          Bind("max_staleness", &ServerOptions::max_staleness),
                          Bind("bigarray_bound", &ServerOptions::bigarray_bound)}),
      {"distribute", "turns the one-rank program into that of each rank of a mesh", "data=4 (axes and sizes)",
       MakeDistribute},
      Row<StageOptions>(
          "cut-into-stages", "cuts a training step into the stages of a pipeline", CutIntoStages,
          {Bind("stages", &StageOptions::stages), Bind("operations_per_byte", &StageOptions::operations_per_byte)},
          {.stages = 2}),
      Plain("reduce-before-scale", "reduces what was computed before a scale that waits for ranks", ReduceBeforeScale),
      Plain("form-reduce-scatters", "reduces to slices what is wanted in slices alone", FormReduceScatters),
      Row<Wire>("choose-wire", "says as what dtype gradients travel",
                [](const Wire& wire) { return ChooseWire(wire.dtype); }, {Bind("dtype", &Wire::dtype)}),
      Row<FactorOptions>(
          "gather-factors", "gathers what sums over ranks are computed from, where that is less", GatherFactors,
          {Bind("operations_per_byte", &FactorOptions::operations_per_byte), Bind("axis", &FactorOptions::axis)},
          {.operations_per_byte = kOperationsPerByte}),
      Row<MergeOptions>("merge-collectives", "puts collectives into buckets", MergeCollectives,
                        {MaxBytes(), Bind("first_bytes", &MergeOptions::first_bytes, "an eighth of max_bytes"),
                         Bind("measured", &MergeOptions::measured,
                              "{gradients={g={ready=10,needed=100,update=5}},costs={data={1024=500}}}, in ns")}),
      Plain("quantize-wire", "writes out what travels as 8-bit integers, and keeps what that loses", QuantizeWire),
      Row<Ops>("legalize", "decomposes ops that a target has no kernels for",
               [](const Ops& ops) { return Legalize(std::not_fn(IsOneOf(ops.names))); },
               {Bind("without", &Ops::names, "softmax|sgd")}),
      Row<Ops>("widen-halves", "computes in f32 what a target is slow at in 16 bits",
               [](const Ops& ops) { return WidenHalves(IsOneOf(ops.names)); }, {Bind("slow", &Ops::names)},
               {{"matmul", "convolution", "convolution_grad_input", "convolution_grad_filter"}}),
      Plain("localize", "gives a placed program the types of what each rank holds", Localize),
      Plain("lower-wire", "converts what travels as another dtype", LowerWire),
      Row<FusionOptions>(
          "fuse-elementwise", "gathers elementwise ops and reductions into fusions", FuseElementwise,
          {Bind("max_nodes", &FusionOptions::max_nodes), Bind("max_operands", &FusionOptions::max_operands),
           Bind("max_results", &FusionOptions::max_results),
           Bind("min_shared_elements", &FusionOptions::min_shared_elements), Bind("max_row", &FusionOptions::max_row)}),
      Plain("overlap-collectives", "moves collectives so that they run while ranks compute", OverlapCollectives),
  };
  return table;
}

}  // namespace lockstep::passes
