#include "passes/training/optimizer.h"

#include <algorithm>
#include <map>

#include "core/builder.h"

namespace lockstep::passes {
namespace {

constexpr char kStep[] = "optimizer/step";

std::vector<OptionDef> OptionsOf(const OpDef& op, const OptimizerName& name) {
  std::vector<OptionDef> options;
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    if (name.fixed.contains(attribute.name)) continue;
    OptionDef option = OptionDef::Of(attribute);
    if (const auto it = name.defaults.find(option.name); it != name.defaults.end()) {
      option.example = it->second;
      option.given = OptionDef::Given::kHasDefault;
    }
    options.push_back(std::move(option));
  }
  for (const OptimizerFlag& flag : name.flags) options.push_back(OptionDef::Flag(flag.name, false, flag.doc));
  return options;
}

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsFlag(const OptimizerName& name, std::string_view option) {
  return std::any_of(name.flags.begin(), name.flags.end(), [&](const auto& flag) { return flag.name == option; });
}

// Returns true if the variant can be used: the options that it does not have are off and do not vary, and it updates
// variables of this rank.
bool CanStandIn(const OptimizerVariant& variant, const AttributeMap& options, const std::vector<std::string>& varying,
                int64_t rank) {
  const auto is_off = [&](const std::string& option) {
    const Attribute& value = options.find(option)->second;
    return (value == Attribute(0.0) || value == Attribute(false)) && !Contains(varying, option);
  };
  return GetOp(variant.op).optimizer().ranks.Contain(rank) &&
         std::all_of(variant.without.begin(), variant.without.end(), is_off);
}

// Returns a variant with the options that it has as attributes. Returns an error if another option is set that has an
// effect only together with the options that the variant does not have.
absl::StatusOr<OptimizerStep> StepOf(const OptimizerVariant& variant, const Optimizer& optimizer,
                                     const AttributeMap& options) {
  OptimizerStep step{&GetOp(variant.op), {}};
  for (const OptionDef& option : optimizer.options) {
    const Attribute& value = options.find(option.name)->second;
    if (step.op->FindAttribute(option.name)) {
      step.attributes.emplace(option.name, value);
    } else if (!Contains(variant.without, option.name) && !IsFlag(*optimizer.name, option.name) &&
               value != option.example) {
      return InvalidArgument() << optimizer.name->name << ": " << option.name << " needs a " << Joined(variant.without);
    }
  }
  return step;
}

// Makes `next` the next value of `state`, with the name <state>.next.
absl::Status SetNext(Graph& graph, Value state, Value next) {
  graph.SetName(next, state.name() + ".next");
  return graph.AddStateResult(state.name(), next);
}

// Returns the number of this step: the number of the last one, a state that all updates share, plus 1.
absl::StatusOr<Value> AddStep(Graph& graph, Builder& b) {
  if (const Result* of_another = graph.FindResult(kStep, /*is_state=*/true)) return of_another->value;
  b.set_source("optimizer");
  ASSIGN_OR_RETURN(const Value counter, graph.AddInput(kStep, TensorType{DType::kI64, Shape()}, true));
  const Value step = b.AddScalar(counter, 1);
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(SetNext(graph, counter, step));
  return step;
}

// The options that are settings, by attribute. All updates share them.
using Settings = std::map<std::string, Value, std::less<>>;

// Adds a setting for each option that may be an operand, except optional ones that are 0 and do not vary: their part of
// the formula is left out. All ops that may be chosen for the optimizer have the same such options.
absl::StatusOr<Settings> AddSettings(Graph& graph, const OptimizerStep& update, const std::vector<std::string>& varying,
                                     const std::string& prefix) {
  Settings settings;
  for (const OpDef::AttributeDef& option : update.op->attribute_defs()) {
    const Attribute& value = update.attributes.find(option.name)->second;
    const bool is_left_out = !option.required && value == Attribute(0.0) && !Contains(varying, option.name);
    if (!option.may_be_operand || is_left_out) continue;
    const Setting setting{std::get<double>(value), option.range.value_or(NumberRange())};
    ASSIGN_OR_RETURN(settings[option.name], graph.AddSetting(prefix + "/" + option.name, setting));
  }
  return settings;
}

absl::Status AddUpdate(Graph& graph, Builder& b, Value variable, Value step, Value gradient,
                       const OptimizerStep& update, const Settings& settings) {
  b.set_source("optimizer of " + variable.name());
  std::vector<Value> states = {variable};  // in the order of the op's results
  for (const OptimizerState& state : update.op->optimizer().states) {
    const TensorType type = state.TypeFor(variable.type());
    ASSIGN_OR_RETURN(const Value input, graph.AddInput(variable.name() + "/" + state.suffix, type, true));
    states.push_back(input);
  }
  std::vector<Value> operands = states;
  if (step) operands.push_back(step);
  operands.push_back(gradient);
  AttributeMap attributes = update.attributes;
  for (const auto& [option, setting] : settings) {
    attributes[option] = OperandRef{static_cast<int64_t>(operands.size())};
    operands.push_back(setting);
  }
  const std::vector<Value> next = b.Ops(update.op->name(), std::move(operands), std::move(attributes));
  RETURN_IF_ERROR(b.status());
  for (size_t i = 0; i < states.size(); ++i) RETURN_IF_ERROR(SetNext(graph, states[i], next[i]));
  return absl::OkStatus();
}

}  // namespace

bool CountsSteps(const OpDef& op) {
  const std::vector<std::string>& names = op.operand_names();
  return std::find(names.begin(), names.end(), "step") != names.end();
}

const std::vector<Optimizer>& AllOptimizers() {
  static const std::vector<Optimizer> all = [] {
    std::vector<Optimizer> optimizers;
    for (const OpDef* op : AllOps()) {
      for (const OptimizerName& name : op->optimizer().names) optimizers.push_back({op, &name, OptionsOf(*op, name)});
    }
    return optimizers;
  }();
  return all;
}

absl::StatusOr<const Optimizer*> FindOptimizer(std::string_view name) {
  std::vector<std::string> names;
  for (const Optimizer& optimizer : AllOptimizers()) {
    if (EqualsIgnoringCase(optimizer.name->name, name)) return &optimizer;
    names.push_back(optimizer.name->name);
  }
  return NotFound() << "unknown optimizer '" << name << "'; there are " << Joined(names);
}

std::vector<const OpDef*> OpsOf(const Optimizer& optimizer) {
  std::vector<const OpDef*> ops;
  for (const OptimizerVariant& variant : optimizer.name->variants) ops.push_back(&GetOp(variant.op));
  ops.push_back(optimizer.op);
  return ops;
}

absl::StatusOr<OptimizerStep> ResolveOptimizer(const OptimizerSpec& spec, int64_t rank) {
  ASSIGN_OR_RETURN(const Optimizer* const optimizer, FindOptimizer(spec.name));
  const OptimizerName& name = *optimizer->name;
  ASSIGN_OR_RETURN(AttributeMap options, CompleteOptions(name.name, optimizer->options, spec.options));
  for (const std::string& varying : spec.varying) {
    const auto is_it = [&](const OptionDef& option) { return option.name == varying && option.may_be_operand; };
    if (std::none_of(optimizer->options.begin(), optimizer->options.end(), is_it))
      return InvalidArgument() << name.name << ": " << varying << " cannot change between steps";
  }
  for (const OptimizerVariant& variant : name.variants) {
    if (CanStandIn(variant, options, spec.varying, rank)) return StepOf(variant, *optimizer, options);
  }
  const VariableRanks& ranks = optimizer->op->optimizer().ranks;
  if (!ranks.Contain(rank)) return InvalidArgument() << name.name << " updates states of " << ranks.ToString();
  for (const OptimizerFlag& flag : name.flags) options.erase(flag.name);
  options.insert(name.fixed.begin(), name.fixed.end());
  return OptimizerStep{optimizer->op, std::move(options)};
}

absl::Status AddOptimizer(Graph& graph, const std::vector<Value>& states, const std::vector<Value>& gradients,
                          const OptimizerSpec& spec, const std::string& prefix) {
  RETURN_IF_ERROR(ResolveOptimizer(spec).status());
  std::vector<OptimizerStep> updates;
  for (Value state : states) {
    absl::StatusOr<OptimizerStep> update = ResolveOptimizer(spec, state.shape().rank());
    if (!update.ok()) {
      return InvalidArgument() << update.status().message() << ", and %" << state.name() << " is " << state.type()
                               << ": give it another optimizer, by groups";
    }
    updates.push_back(*std::move(update));
  }
  if (states.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Settings settings, AddSettings(graph, updates[0], spec.varying, prefix));
  Builder b(graph);
  Value step;
  if (CountsSteps(*updates[0].op)) {
    ASSIGN_OR_RETURN(step, AddStep(graph, b));
  }
  for (size_t i = 0; i < states.size(); ++i)
    RETURN_IF_ERROR(AddUpdate(graph, b, states[i], step, gradients[i], updates[i], settings));
  return absl::OkStatus();
}

}  // namespace lockstep::passes
