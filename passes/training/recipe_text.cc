#include "passes/training/recipe_text.h"

#include <algorithm>
#include <utility>

namespace lockstep::passes {
namespace {

using OptionsOfAttributes = std::vector<OptionOf<AttributeMap>>;

absl::Status SetAttribute(const OptionDef& def, std::string_view text, Attribute& attribute) {
  if (def.is_list()) {
    std::vector<std::string> parts;
    RETURN_IF_ERROR(FromText(text, parts));
    std::vector<double> numbers(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!FromText(parts[i], numbers[i]).ok())
        return InvalidArgument() << " is '" << parts[i] << "', expected numbers such as 1|0.5";
    }
    attribute = Tensor::Of(Shape({static_cast<int64_t>(numbers.size())}), numbers);
    return absl::OkStatus();
  }
  attribute = def.example;
  if (bool* const value = std::get_if<bool>(&attribute)) return FromText(text, *value);
  if (int64_t* const value = std::get_if<int64_t>(&attribute)) return FromText(text, *value);
  if (double* const value = std::get_if<double>(&attribute)) return FromText(text, *value);
  return FromText(text, std::get<std::string>(attribute));
}

// The options of an optimizer or a loss: of its attributes those that are given.
OptionsOfAttributes OptionsFrom(const std::vector<OptionDef>& defs) {
  OptionsOfAttributes options;
  for (const OptionDef& def : defs) {
    options.push_back({def.name, def.doc, nullptr, [def](AttributeMap& attributes, std::string_view text) {
                         return SetAttribute(def, text, attributes[def.name]);
                       }});
  }
  return options;
}

// An option that has been read before the others, as it says which others there are.
template <typename S>
OptionOf<S> ReadBefore(std::string name) {
  return {std::move(name), "", nullptr, [](S&, std::string_view) { return absl::OkStatus(); }};
}

std::string TextNamed(const std::vector<NamedText>& texts, std::string_view name, std::string default_text) {
  const auto is_it = [&](const NamedText& each) { return each.first == name; };
  const auto it = std::find_if(texts.begin(), texts.end(), is_it);
  return it == texts.end() ? std::move(default_text) : it->second;
}

// --- Losses ----------------------------------------------------------------------------------------------------------

// A single name that is empty leaves the default.
OptionOf<LossSpec> Names(std::string name, std::vector<std::string> LossSpec::* field) {
  return {std::move(name), "", nullptr, [field](LossSpec& loss, std::string_view text) {
            std::vector<std::string> names;
            RETURN_IF_ERROR(FromText(text, names));
            if (!names.empty()) loss.*field = names;
            return absl::OkStatus();
          }};
}

std::vector<OptionOf<LossSpec>> OptionsOfLoss(const Loss& loss) {
  std::vector<OptionOf<LossSpec>> options = {Names("prediction", &LossSpec::predictions),
                                             Names("target", &LossSpec::inputs)};
  for (const OptionOf<AttributeMap>& option : OptionsFrom(loss.options))
    options.push_back(Within(&LossSpec::options, option));
  return options;
}

// One loss of a sum; `own` gets its options if they are not in braces.
absl::StatusOr<LossSpec> LossFromText(std::string_view text, std::vector<OptionOf<LossSpec>>& own) {
  LossSpec spec;
  ASSIGN_OR_RETURN(const auto parts, SplitBraces(text));
  const auto [before, in_braces] = parts;
  const size_t star = before.find('*');
  if (star != before.npos) {
    const std::string_view factor = WithoutSpaces(before.substr(0, star));
    if (!FromText(factor, spec.factor).ok())
      return InvalidArgument() << "loss is '" << factor << "', expected a number before the *";
  }
  spec.name = WithoutSpaces(star == before.npos ? before : before.substr(star + 1));
  ASSIGN_OR_RETURN(const Loss* const loss, FindLoss(spec.name));
  if (!in_braces) {
    own = OptionsOfLoss(*loss);
    return spec;
  }
  ASSIGN_OR_RETURN(const std::vector<NamedText> texts, ParseNamedTexts(*in_braces));
  RETURN_IF_ERROR(Annotate(SetOptions(OptionsOfLoss(*loss), texts, spec), "loss " + spec.name));
  return spec;
}

// A sum of losses; `own` gets the options of a single one without braces.
absl::StatusOr<std::vector<LossSpec>> LossesFromText(const std::string& text, std::vector<OptionOf<LossSpec>>& own) {
  std::vector<LossSpec> specs;
  ASSIGN_OR_RETURN(const std::vector<std::string_view> parts, SplitText(text, '+'));
  for (const std::string_view part : parts) {
    ASSIGN_OR_RETURN(specs.emplace_back(), LossFromText(part, own));
  }
  if (parts.size() > 1) own.clear();
  return specs;
}

// The options `own` of the first loss of a recipe.
template <typename S>
void AddOptionsOfLoss(const std::vector<OptionOf<LossSpec>>& own, std::vector<OptionOf<S>>& options) {
  for (const OptionOf<LossSpec>& option : own) {
    options.push_back({option.name, option.doc, nullptr,
                       [set = option.set](S& spec, std::string_view text) { return set(spec.losses.front(), text); }});
  }
}

// --- Optimizers ------------------------------------------------------------------------------------------------------

// With the learning rate of OptimizerSpec where the optimizer has no default.
absl::StatusOr<OptimizerSpec> OptimizerNamed(std::string_view name, OptionsOfAttributes& own) {
  ASSIGN_OR_RETURN(const Optimizer* const optimizer, FindOptimizer(name));
  own = OptionsFrom(optimizer->options);
  OptimizerSpec spec{optimizer->name->name, {}};
  const AttributeMap defaults = OptimizerSpec().options;
  for (const OptionDef& option : optimizer->options) {
    const auto it = defaults.find(option.name);
    if (option.given == OptionDef::Given::kMust && it != defaults.end()) spec.options.insert(*it);
  }
  return spec;
}

// `*.bias:SGD{learning_rate=0.1}`.
absl::StatusOr<OptimizerGroup> GroupFromText(std::string_view text) {
  ASSIGN_OR_RETURN(const auto parts, SplitBraces(text));
  const auto [before, in_braces] = parts;
  ASSIGN_OR_RETURN(const std::vector<std::string_view> names, SplitText(before, ':'));
  if (names.size() != 2 || !in_braces)
    return InvalidArgument() << "group '" << text << "' is not of the form pattern:optimizer{options}";
  OptionsOfAttributes own;
  OptimizerGroup group{std::string(names[0]), {}};
  ASSIGN_OR_RETURN(group.optimizer, OptimizerNamed(names[1], own));
  ASSIGN_OR_RETURN(const std::vector<NamedText> texts, ParseNamedTexts(*in_braces));
  RETURN_IF_ERROR(Annotate(SetOptions(own, texts, group.optimizer.options), "group '" + group.states + "'"));
  return group;
}

// The options of a training step that are not those of its optimizer or its loss.
std::vector<OptionOf<TrainStepSpec>> OptionsOfTrainStep() {
  const auto set_precision = [](TrainStepSpec& spec, std::string_view text) -> absl::Status {
    const std::optional<DType> dtype = DTypeFromName(text);
    if (!dtype) return InvalidArgument() << " is '" << text << "', expected f32, bf16 or f16";
    spec.precision = *dtype;
    return absl::OkStatus();
  };
  const auto precision = [](const TrainStepSpec& spec) { return std::string(DTypeName(spec.precision)); };
  return {Bind("trained", &TrainStepSpec::trained, "w|b, or patterns; every float state if empty"),
          Bind("frozen", &TrainStepSpec::frozen, "which of these are left out"),
          Within(&TrainStepSpec::clipping, Bind("clipping", &ClippingSpec::by, "value, norm or global_norm")),
          Within(&TrainStepSpec::clipping, Bind("clip_limit", &ClippingSpec::limit)),
          Bind("average", &TrainStepSpec::average),
          Bind("accumulate", &TrainStepSpec::accumulate),
          Bind("uneven", &TrainStepSpec::uneven),
          {"precision", "or bf16, f16", precision, set_precision}};
}

std::vector<OptionOf<EvaluationSpec>> OptionsOfEvaluation() {
  return {Bind("keep_results", &EvaluationSpec::keep_results), Bind("uneven", &EvaluationSpec::uneven)};
}

// "SGD (learning_rate, momentum) | Adam (…)".
template <typename All, typename NameOf>
std::string NamesWithOptions(const All& all, NameOf name_of) {
  std::string text;
  for (const auto& each : all) {
    std::vector<std::string> names;
    for (const OptionDef& option : each.options) names.push_back(option.name);
    text += (text.empty() ? "" : " | ") + name_of(each) + (names.empty() ? "" : " (" + Joined(names) + ")");
  }
  return text;
}

}  // namespace

absl::StatusOr<TrainStepSpec> TrainStepFromText(const std::vector<NamedText>& texts) {
  TrainStepSpec spec;
  std::vector<OptionOf<TrainStepSpec>> options = {
      ReadBefore<TrainStepSpec>("optimizer"), ReadBefore<TrainStepSpec>("loss"), ReadBefore<TrainStepSpec>("groups")};
  OptionsOfAttributes of_optimizer;
  ASSIGN_OR_RETURN(spec.optimizer, OptimizerNamed(TextNamed(texts, "optimizer", spec.optimizer.name), of_optimizer));
  for (const OptionOf<AttributeMap>& option : of_optimizer)
    options.push_back(Within(&TrainStepSpec::optimizer, Within(&OptimizerSpec::options, option)));
  const std::string groups_text = TextNamed(texts, "groups", "");
  ASSIGN_OR_RETURN(const std::vector<std::string_view> groups, SplitText(groups_text, '|'));
  for (const std::string_view group : groups) {
    ASSIGN_OR_RETURN(spec.groups.emplace_back(), GroupFromText(group));
  }
  std::vector<OptionOf<LossSpec>> of_loss;
  ASSIGN_OR_RETURN(spec.losses, LossesFromText(TextNamed(texts, "loss", LossSpec().name), of_loss));
  AddOptionsOfLoss(of_loss, options);
  for (OptionOf<TrainStepSpec>& option : OptionsOfTrainStep()) options.push_back(std::move(option));
  RETURN_IF_ERROR(SetOptions(options, texts, spec));
  return spec;
}

absl::StatusOr<EvaluationSpec> EvaluationFromText(const std::vector<NamedText>& texts) {
  EvaluationSpec spec;
  std::vector<OptionOf<EvaluationSpec>> options = OptionsOfEvaluation();
  options.push_back(ReadBefore<EvaluationSpec>("loss"));
  options.push_back(ReadBefore<EvaluationSpec>("metric"));
  std::vector<OptionOf<LossSpec>> of_loss;
  ASSIGN_OR_RETURN(spec.losses, LossesFromText(TextNamed(texts, "loss", LossSpec().name), of_loss));
  AddOptionsOfLoss(of_loss, options);
  RETURN_IF_ERROR(SetOptions(options, texts, spec));
  const std::string metric = TextNamed(texts, "metric", "");
  if (metric.empty() || spec.losses.empty()) return spec;
  const LossSpec& of = spec.losses.front();
  spec.metrics.push_back({metric, {LossSpec{.name = metric, .predictions = of.predictions, .inputs = of.inputs}}});
  return spec;
}

std::string TrainStepOptions() {
  const auto name_of_optimizer = [](const Optimizer& optimizer) { return optimizer.name->name; };
  const auto name_of_loss = [](const Loss& loss) { return loss.name; };
  return "optimizer=" + NamesWithOptions(AllOptimizers(), name_of_optimizer) +
         " (learning_rate=0.01 where it has no default), loss=" + NamesWithOptions(AllLosses(), name_of_loss) +
         " or a sum such as l1{prediction=a}+0.5*huber{prediction=b, delta=2}, prediction=logits, target=target (names "
         "with | between them where a loss has several), groups=*.bias:SGD{learning_rate=0.1}|fc*:AdamW{} (the "
         "optimizers of some states), " +
         DescribeOptions(OptionsOfTrainStep());
}

std::string EvaluationOptions() {
  return "loss=, prediction= and target= as of train-step, metric=accuracy (of the first loss's; default: none), " +
         DescribeOptions(OptionsOfEvaluation());
}

}  // namespace lockstep::passes
