#include "passes/pass_table.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "passes/distribute/distribute.h"
#include "passes/distribute/form_reduce_scatters.h"
#include "passes/distribute/gather_factors.h"
#include "passes/distribute/localize.h"
#include "passes/distribute/merge_collectives.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/overlap_collectives.h"
#include "passes/distribute/quantize_wire.h"
#include "passes/distribute/reduce_before_scale.h"
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
#include "passes/training/evaluation.h"
#include "passes/training/inference_mode.h"
#include "passes/training/train_step.h"
#include "passes/training/training_mode.h"

namespace lockstep::passes {
namespace {

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// Splits `text` at the separators outside of braces.
std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (Trimmed(text).empty()) return parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}') --depth;
    if (text[i] != separator || depth > 0) continue;
    parts.push_back(Trimmed(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  parts.push_back(Trimmed(text.substr(begin)));
  return parts;
}

template <typename T>
absl::StatusOr<T> ParseNumber(const std::string& name, const std::string& text, std::string_view what) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument() << "option " << name << " is '" << text << "', expected " << what;
  }
  return value;
}

absl::StatusOr<PassOptions> ParseOptions(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> values;
  for (std::string_view option : Split(text, ',')) {
    const size_t equals = option.find('=');
    if (equals == std::string_view::npos)
      return InvalidArgument() << "option '" << option << "' is not of the form name=value";
    const std::string name(Trimmed(option.substr(0, equals)));
    for (const auto& [given, value] : values) {
      if (given == name) return InvalidArgument() << "option " << name << " is given twice";
    }
    values.emplace_back(name, Trimmed(option.substr(equals + 1)));
  }
  return PassOptions(std::move(values));
}

absl::StatusOr<Pass> PassFromText(std::string_view text) {
  const size_t brace = text.find('{');
  const std::string_view name = Trimmed(text.substr(0, brace));
  std::string_view option_text;
  if (brace != std::string_view::npos) {
    if (text.back() != '}') return InvalidArgument() << "pass '" << text << "' has no closing brace";
    option_text = text.substr(brace + 1, text.size() - brace - 2);
  }
  for (const PassEntry& entry : PassTable()) {
    if (entry.name != name) continue;
    const auto named = [&](const absl::Status& status) { return Annotate(status, "pass " + entry.name); };
    absl::StatusOr<PassOptions> options = ParseOptions(option_text);
    if (!options.ok()) return named(options.status());
    absl::StatusOr<Pass> pass = entry.make(*options);
    if (!pass.ok()) return named(pass.status());
    if (const absl::Status status = options->CheckAllRead(); !status.ok()) return named(status);
    return pass;
  }
  std::string known;
  for (const PassEntry& entry : PassTable()) known += (known.empty() ? "" : ", ") + entry.name;
  return NotFound() << "there is no pass '" << name << "'; there are " << known;
}

// Returns an entry for a pass without options.
PassEntry Plain(std::string name, std::string doc, Pass (*make)()) {
  return {std::move(name), std::move(doc), "", [make](PassOptions&) { return make(); }};
}

absl::StatusOr<Pass> MakeChooseWire(PassOptions& options) {
  std::string dtype = options.GetString("dtype", "bf16");
  return ChooseWire(std::move(dtype));
}

absl::StatusOr<Pass> MakeAutodiff(PassOptions& options) {
  std::string of = options.GetString("of", "loss");
  return Autodiff(std::move(of), options.GetList("wrt"));
}

// Returns the given options of an optimizer or a loss.
absl::StatusOr<AttributeMap> TakeOptions(PassOptions& options, const std::vector<OptionDef>& defs) {
  AttributeMap given;
  for (const OptionDef& def : defs) {
    if (!options.Has(def.name)) continue;
    if (std::holds_alternative<bool>(def.example)) {
      ASSIGN_OR_RETURN(given[def.name], options.GetBool(def.name, false));
    } else if (std::holds_alternative<int64_t>(def.example)) {
      ASSIGN_OR_RETURN(given[def.name], options.GetInt(def.name, 0));
    } else if (std::holds_alternative<std::string>(def.example)) {
      given[def.name] = options.GetString(def.name, "");
    } else if (def.is_list()) {
      std::vector<double> numbers;
      for (const std::string& text : options.GetList(def.name)) {
        ASSIGN_OR_RETURN(numbers.emplace_back(), ParseNumber<double>(def.name, text, "numbers such as 1|0.5"));
      }
      given[def.name] = Tensor::Of(Shape({static_cast<int64_t>(numbers.size())}), numbers);
    } else {
      ASSIGN_OR_RETURN(given[def.name], options.GetDouble(def.name, 0));
    }
  }
  return given;
}

// Reads the predictions, the inputs and the options of a loss.
absl::Status TakeLoss(PassOptions& options, LossSpec& spec) {
  ASSIGN_OR_RETURN(const Loss* const loss, FindLoss(spec.name));
  ASSIGN_OR_RETURN(spec.options, TakeOptions(options, loss->options));
  if (std::vector<std::string> names = options.GetList("prediction"); !names.empty()) spec.predictions = names;
  if (std::vector<std::string> names = options.GetList("target"); !names.empty()) spec.inputs = names;
  return absl::OkStatus();
}

// Parses `0.5*huber{prediction=y, delta=2}`. A loss without braces takes its options from `of_pass`, if not null.
absl::StatusOr<LossSpec> LossFromText(std::string_view text, PassOptions* of_pass) {
  LossSpec spec;
  const size_t brace = text.find('{'), star = text.substr(0, brace).find('*');
  if (star != std::string_view::npos) {
    ASSIGN_OR_RETURN(spec.factor,
                     ParseNumber<double>("loss", std::string(Trimmed(text.substr(0, star))), "a number before the *"));
  }
  const size_t begin = star == std::string_view::npos ? 0 : star + 1;
  spec.name = Trimmed(text.substr(begin, brace == std::string_view::npos ? brace : brace - begin));
  if (brace == std::string_view::npos && of_pass) {
    RETURN_IF_ERROR(TakeLoss(*of_pass, spec));
    return spec;
  }
  PassOptions options;
  if (brace != std::string_view::npos) {
    if (text.back() != '}') return InvalidArgument() << "loss '" << text << "' has no closing brace at its end";
    ASSIGN_OR_RETURN(options, ParseOptions(text.substr(brace + 1, text.size() - brace - 2)));
  }
  RETURN_IF_ERROR(TakeLoss(options, spec));
  RETURN_IF_ERROR(Annotate(options.CheckAllRead(), "loss " + spec.name));
  return spec;
}

// Parses `l1{prediction=a} + 0.5*huber{prediction=b}`.
absl::StatusOr<std::vector<LossSpec>> LossesFromText(const std::string& text, PassOptions& of_pass) {
  std::vector<LossSpec> specs;
  const std::vector<std::string_view> parts = Split(text, '+');
  for (std::string_view part : parts) {
    ASSIGN_OR_RETURN(specs.emplace_back(), LossFromText(part, parts.size() == 1 ? &of_pass : nullptr));
  }
  return specs;
}

// Reads the options of an optimizer. If its learning rate has no default, it takes that of OptimizerSpec.
absl::StatusOr<OptimizerSpec> TakeOptimizer(PassOptions& options, std::string_view name) {
  ASSIGN_OR_RETURN(const Optimizer* const optimizer, FindOptimizer(name));
  ASSIGN_OR_RETURN(AttributeMap given, TakeOptions(options, optimizer->options));
  const AttributeMap defaults = OptimizerSpec().options;
  for (const OptionDef& option : optimizer->options) {
    const auto it = defaults.find(option.name);
    if (option.given == OptionDef::Given::kMust && it != defaults.end()) given.insert(*it);
  }
  return OptimizerSpec{optimizer->name->name, std::move(given)};
}

// Parses the entries of `*.bias:SGD{learning_rate=0.1}|norm*:AdamW{}`.
absl::StatusOr<std::vector<OptimizerGroup>> GroupsFromText(const std::vector<std::string>& texts) {
  std::vector<OptimizerGroup> groups;
  for (const std::string_view text : texts) {
    const size_t colon = text.find(':'), brace = text.find('{');
    if (colon == std::string_view::npos || brace == std::string_view::npos || brace < colon || text.back() != '}')
      return InvalidArgument() << "group '" << text << "' is not of the form pattern:optimizer{options}";
    ASSIGN_OR_RETURN(PassOptions options, ParseOptions(text.substr(brace + 1, text.size() - brace - 2)));
    OptimizerGroup group{std::string(Trimmed(text.substr(0, colon))), {}};
    ASSIGN_OR_RETURN(group.optimizer, TakeOptimizer(options, Trimmed(text.substr(colon + 1, brace - colon - 1))));
    RETURN_IF_ERROR(Annotate(options.CheckAllRead(), "group '" + group.states + "'"));
    groups.push_back(std::move(group));
  }
  return groups;
}

absl::StatusOr<Pass> MakeTrainStepPass(PassOptions& options) {
  TrainStepSpec spec;
  ASSIGN_OR_RETURN(spec.optimizer, TakeOptimizer(options, options.GetString("optimizer", spec.optimizer.name)));
  ASSIGN_OR_RETURN(spec.groups, GroupsFromText(options.GetList("groups")));
  ASSIGN_OR_RETURN(spec.losses, LossesFromText(options.GetString("loss", LossSpec().name), options));
  spec.clipping.by = options.GetString("clipping", "");
  ASSIGN_OR_RETURN(spec.clipping.limit, options.GetDouble("clip_limit", spec.clipping.limit));
  ASSIGN_OR_RETURN(spec.average, options.GetBool("average", false));
  spec.trained = options.GetList("trained");
  spec.frozen = options.GetList("frozen");
  ASSIGN_OR_RETURN(spec.accumulate, options.GetInt("accumulate", spec.accumulate));
  ASSIGN_OR_RETURN(spec.uneven, options.GetBool("uneven", spec.uneven));
  const std::string precision = options.GetString("precision", "f32");
  const std::optional<DType> dtype = DTypeFromName(precision);
  if (!dtype) return InvalidArgument() << "precision is '" << precision << "', expected f32, bf16 or f16";
  spec.precision = *dtype;
  return TrainStep(std::move(spec));
}

// Returns the options of train-step for a help text: the optimizers and losses, and the options of each.
std::string TrainStepOptions() {
  const auto names_of = [](const std::vector<OptionDef>& options, const std::string& name, std::string& text) {
    std::string names;
    for (const OptionDef& option : options) names += (names.empty() ? "" : ", ") + option.name;
    text += (text.empty() ? "" : " | ") + name + (names.empty() ? "" : " (" + names + ")");
  };
  std::string optimizers, losses;
  for (const Optimizer& optimizer : AllOptimizers()) names_of(optimizer.options, optimizer.name->name, optimizers);
  for (const Loss& loss : AllLosses()) names_of(loss.options, loss.name, losses);
  return "optimizer=" + optimizers + " (learning_rate=0.01 if it has no default), loss=" + losses +
         " or a sum such as l1{prediction=a}+0.5*huber{prediction=b, delta=2}" +
         ", prediction=logits, target=target (names separated by | if a loss has several), trained=w|b "
         "(default: every float state), frozen=, groups=*.bias:SGD{learning_rate=0.1}|fc*:AdamW{} (optimizers for the "
         "states that match), "
         "clipping=value | norm | global_norm, clip_limit=1, average=false, accumulate=1, precision=f32 | bf16 | f16, "
         "uneven=false";
}

absl::StatusOr<Pass> MakeEvaluationPass(PassOptions& options) {
  EvaluationSpec spec;
  ASSIGN_OR_RETURN(spec.losses, LossesFromText(options.GetString("loss", LossSpec().name), options));
  const std::string metric = options.GetString("metric", "");
  if (!metric.empty()) {
    const LossSpec& of = spec.losses.front();
    spec.metrics.push_back({metric, {LossSpec{.name = metric, .predictions = of.predictions, .inputs = of.inputs}}});
  }
  ASSIGN_OR_RETURN(spec.keep_results, options.GetBool("keep_results", spec.keep_results));
  ASSIGN_OR_RETURN(spec.uneven, options.GetBool("uneven", spec.uneven));
  return Evaluation(std::move(spec));
}

absl::StatusOr<Pass> MakeTrainingMode(PassOptions& options) {
  TrainingModeOptions mode;
  if (const std::string given = options.GetString("momentum", ""); !given.empty()) {
    ASSIGN_OR_RETURN(mode.momentum, ParseNumber<double>("momentum", given, "a number"));
  }
  mode.statistics = options.GetString("statistics", mode.statistics);
  const std::string dropout = options.GetString("dropout", "on");
  if (dropout != "on" && dropout != "off")
    return InvalidArgument() << "dropout is '" << dropout << "', expected on or off";
  mode.dropout = dropout == "on";
  ASSIGN_OR_RETURN(mode.uneven, options.GetBool("uneven", mode.uneven));
  return TrainingMode(mode);
}

absl::StatusOr<Pass> MakeDistribute(PassOptions& options) {
  std::vector<MeshAxis> axes;
  for (const auto& [axis, size_text] : options.TakeRest()) {
    ASSIGN_OR_RETURN(const int64_t size, ParseNumber<int64_t>(axis, size_text, "the size of a mesh axis"));
    if (size < 1) return InvalidArgument() << "mesh axis " << axis << " has size " << size << ", expected at least 1";
    axes.push_back({axis, size});
  }
  return Distribute(Mesh(std::move(axes)));
}

absl::StatusOr<Pass> MakeMoveUpdatesToServers(PassOptions& options) {
  ServerOptions servers;
  servers.axis = options.GetString("axis", servers.axis);
  ASSIGN_OR_RETURN(servers.synchronous, options.GetBool("synchronous", servers.synchronous));
  ASSIGN_OR_RETURN(servers.max_staleness, options.GetInt("max_staleness", servers.max_staleness));
  ASSIGN_OR_RETURN(servers.bigarray_bound, options.GetInt("bigarray_bound", servers.bigarray_bound));
  return MoveUpdatesToServers(std::move(servers));
}

absl::StatusOr<Pass> MakeCutIntoStages(PassOptions& options) {
  StageOptions stages;
  ASSIGN_OR_RETURN(stages.stages, options.GetInt("stages", 2));
  ASSIGN_OR_RETURN(stages.operations_per_byte, options.GetDouble("operations_per_byte", stages.operations_per_byte));
  return CutIntoStages(stages);
}

absl::StatusOr<Pass> MakeFoldConstants(PassOptions& options) {
  FoldOptions fold;
  ASSIGN_OR_RETURN(fold.max_elements, options.GetInt("max_elements", fold.max_elements));
  return FoldConstants(fold);
}

absl::StatusOr<Pass> MakeLegalize(PassOptions& options) {
  const std::vector<std::string> without = options.GetList("without");
  return Legalize([without](const Node& node) {
    return std::find(without.begin(), without.end(), node.op_name()) == without.end();
  });
}

absl::StatusOr<Pass> MakeWidenHalves(PassOptions& options) {
  std::vector<std::string> slow = options.GetList("slow");
  if (slow.empty()) slow = {"matmul", "convolution", "convolution_grad_input", "convolution_grad_filter"};
  return WidenHalves(
      [slow](const Node& node) { return std::find(slow.begin(), slow.end(), node.op_name()) != slow.end(); });
}

absl::StatusOr<Pass> MakeFuseElementwise(PassOptions& options) {
  FusionOptions fusion;
  ASSIGN_OR_RETURN(fusion.max_nodes, options.GetInt("max_nodes", fusion.max_nodes));
  ASSIGN_OR_RETURN(fusion.max_operands, options.GetInt("max_operands", fusion.max_operands));
  ASSIGN_OR_RETURN(fusion.max_results, options.GetInt("max_results", fusion.max_results));
  ASSIGN_OR_RETURN(fusion.min_shared_elements, options.GetInt("min_shared_elements", fusion.min_shared_elements));
  ASSIGN_OR_RETURN(fusion.max_row, options.GetInt("max_row", fusion.max_row));
  return FuseElementwise(fusion);
}

absl::StatusOr<Pass> MakeGatherFactors(PassOptions& options) {
  FactorOptions factors;
  ASSIGN_OR_RETURN(factors.operations_per_byte, options.GetDouble("operations_per_byte", kOperationsPerByte));
  factors.axis = options.GetString("axis", factors.axis);
  return GatherFactors(std::move(factors));
}

// Parses a list of entries such as name:1:2, each with a name and `numbers` numbers.
absl::StatusOr<std::vector<std::pair<std::string, std::vector<int64_t>>>> GetRows(PassOptions& options,
                                                                                  const std::string& option,
                                                                                  size_t numbers) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> rows;
  for (const std::string& text : options.GetList(option)) {
    const std::vector<std::string_view> parts = Split(text, ':');
    if (parts.size() != numbers + 1) {
      return InvalidArgument() << "option " << option << " has '" << text << "', expected a name and " << numbers
                               << " numbers, separated by ':'";
    }
    rows.emplace_back(parts[0], std::vector<int64_t>());
    for (size_t i = 1; i < parts.size(); ++i) {
      ASSIGN_OR_RETURN(rows.back().second.emplace_back(),
                       ParseNumber<int64_t>(option, std::string(parts[i]), "an integer"));
    }
  }
  return rows;
}

// Reads a measured step, in nanoseconds: when each gradient was ready and needed, the duration of its update, and the
// duration of collectives along each axis by their bytes.
absl::StatusOr<MeasuredStep> GetMeasured(PassOptions& options) {
  MeasuredStep measured;
  ASSIGN_OR_RETURN(const auto gradients, GetRows(options, "measured", 3));
  for (const auto& [name, times] : gradients) measured.gradients[name] = {times[0], times[1], times[2]};
  ASSIGN_OR_RETURN(const auto costs, GetRows(options, "costs", 2));
  std::map<std::string, std::vector<CostTable::Point>> points;
  for (const auto& [axis, numbers] : costs) {
    std::vector<CostTable::Point>& of_axis = points[axis];
    if (!of_axis.empty() && numbers[0] <= of_axis.back().bytes)
      return InvalidArgument() << "option costs has " << numbers[0] << " bytes after " << of_axis.back().bytes;
    of_axis.push_back({numbers[0], numbers[1]});
  }
  for (auto& [axis, of_axis] : points) measured.costs.emplace(axis, CostTable(std::move(of_axis)));
  return measured;
}

absl::StatusOr<Pass> MakeMergeCollectives(PassOptions& options) {
  MergeOptions merge;
  ASSIGN_OR_RETURN(merge.max_bytes, options.GetInt("max_bytes", merge.max_bytes));
  ASSIGN_OR_RETURN(merge.first_bytes, options.GetInt("first_bytes", MergeOptions{merge.max_bytes}.first_bytes));
  if (options.Has("measured")) {
    ASSIGN_OR_RETURN(merge.measured, GetMeasured(options));
  }
  return MergeCollectives(merge);
}

}  // namespace

std::optional<std::string> PassOptions::Take(const std::string& name) {
  asked_.insert(name);
  for (auto it = values_.begin(); it != values_.end(); ++it) {
    if (it->first != name) continue;
    std::string value = std::move(it->second);
    values_.erase(it);
    return value;
  }
  return std::nullopt;
}

bool PassOptions::Has(const std::string& name) {
  asked_.insert(name);
  return std::any_of(values_.begin(), values_.end(), [&](const auto& value) { return value.first == name; });
}

std::string PassOptions::GetString(const std::string& name, std::string default_value) {
  return Take(name).value_or(std::move(default_value));
}

absl::StatusOr<int64_t> PassOptions::GetInt(const std::string& name, int64_t default_value) {
  const std::optional<std::string> text = Take(name);
  if (!text) return default_value;
  return ParseNumber<int64_t>(name, *text, "an integer");
}

absl::StatusOr<double> PassOptions::GetDouble(const std::string& name, double default_value) {
  const std::optional<std::string> text = Take(name);
  if (!text) return default_value;
  return ParseNumber<double>(name, *text, "a number");
}

absl::StatusOr<bool> PassOptions::GetBool(const std::string& name, bool default_value) {
  const std::optional<std::string> text = Take(name);
  if (!text) return default_value;
  if (text != "true" && text != "false")
    return InvalidArgument() << "option " << name << " is '" << *text << "', expected true or false";
  return text == "true";
}

std::vector<std::string> PassOptions::GetList(const std::string& name) {
  const std::string text = GetString(name, "");
  std::vector<std::string> list;
  for (std::string_view part : Split(text, '|')) list.emplace_back(part);
  return list;
}

std::vector<std::pair<std::string, std::string>> PassOptions::TakeRest() {
  std::vector<std::pair<std::string, std::string>> rest;
  rest.swap(values_);
  return rest;
}

absl::Status PassOptions::CheckAllRead() const {
  if (values_.empty()) return absl::OkStatus();
  ErrorStream error = InvalidArgument() << "there is no option '" << values_.front().first << "'";
  if (asked_.empty()) error << "; it has none";
  const char* separator = "; there are ";
  for (const std::string& name : asked_) error << std::exchange(separator, ", ") << name;
  return error;
}

const std::vector<PassEntry>& PassTable() {
  static const std::vector<PassEntry> table = {
      {"autodiff", "adds gradients of a result as results grad/<name>", "of=loss, wrt=w|b (default: every float state)",
       MakeAutodiff},
      {"training-mode", "normalises by the batch's statistics and updates the running ones; applies dropout",
       "momentum (default: each node's own), statistics=global, dropout=on, uneven=false", MakeTrainingMode},
      Plain("inference-mode", "removes ops that only matter in training", InferenceMode),
      {"evaluation", "adds the loss, and a metric, of the rows that do not pad",
       "loss=, prediction= and target= as of train-step, metric=accuracy (of the first loss's results; default: none), "
       "keep_results=false, uneven=true",
       MakeEvaluationPass},
      {"train-step", "adds the loss, its gradients and the optimizer's updates", TrainStepOptions(), MakeTrainStepPass},
      Plain("recognize-attention", "replaces written-out attention by one attention node", RecognizeAttention),
      Plain("separate-rows", "separates dimensions of rows that layers have merged", SeparateRows),
      Plain("simplify", "rewrites to a smaller program by local rules", Simplify),
      {"fold-constants", "evaluates nodes that depend only on constants", "max_elements=1024", MakeFoldConstants},
      Plain("cse", "merges nodes that compute the same", Cse),
      Plain("dce", "removes nodes whose results are not used", Dce),
      {"move-updates-to-servers", "moves the optimizers to parameter servers",
       "axis=data, synchronous=true, max_staleness=-1, bigarray_bound=1000000", MakeMoveUpdatesToServers},
      {"distribute", "places the one-rank program on a mesh", "data=4 (axes and sizes)", MakeDistribute},
      {"cut-into-stages", "cuts a training step into the stages of a pipeline", "stages=2, operations_per_byte=10",
       MakeCutIntoStages},
      Plain("reduce-before-scale", "moves all_reduces before scales that depend on a collective", ReduceBeforeScale),
      Plain("form-reduce-scatters", "replaces all_reduces of which only slices are used", FormReduceScatters),
      {"choose-wire", "chooses the dtype as which gradients travel", "dtype=bf16", MakeChooseWire},
      {"gather-factors", "gathers the factors of sums over ranks if they are smaller than the sums",
       "operations_per_byte=100, axis=data", MakeGatherFactors},
      {"merge-collectives", "merges collectives into buckets",
       "max_bytes=4194304, first_bytes=max_bytes / 8, measured=gradient:ready:needed:update|…, costs=axis:bytes:time|… "
       "(ns)",
       MakeMergeCollectives},
      Plain("quantize-wire", "sends gradients as 8-bit integers, and keeps the rounding errors", QuantizeWire),
      {"legalize", "decomposes ops that a target has no kernels for", "without=softmax|sgd", MakeLegalize},
      {"widen-halves", "computes ops in f32 that are slow in 16 bits on the target",
       "slow=matmul|convolution (default: all products)", MakeWidenHalves},
      Plain("localize", "replaces the types of a placed program by those of each rank's parts", Localize),
      Plain("lower-wire", "converts gradients that travel as another dtype", LowerWire),
      {"fuse-elementwise", "gathers elementwise ops and reductions into fusions",
       "max_nodes=64, max_operands=32, max_results=8, min_shared_elements=4096, max_row=65536", MakeFuseElementwise},
      Plain("overlap-collectives", "moves collectives so that they run while ranks compute", OverlapCollectives),
  };
  return table;
}

absl::StatusOr<std::vector<Pass>> PassesFromText(std::string_view text) {
  std::vector<Pass> passes;
  for (std::string_view part : Split(text, ',')) {
    ASSIGN_OR_RETURN(Pass pass, PassFromText(part));
    passes.push_back(std::move(pass));
  }
  return passes;
}

}  // namespace lockstep::passes
