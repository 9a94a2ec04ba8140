// The definitions of optimizers and losses, from which lockstep.optim and lockstep.loss make their classes and
// functions, and the checks of the user's choices.

#include "passes/training/loss.h"
#include "passes/training/optimizer.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/options.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::object DefaultOf(const passes::OptionDef& option) {
  if (option.given == passes::OptionDef::Given::kMay) return nb::none();
  return std::visit(
      [](const auto& value) -> nb::object {
        using T = std::decay_t<decltype(value)>;
        constexpr bool kIsPlain = std::is_arithmetic_v<T> || std::is_same_v<T, std::string>;
        if constexpr (kIsPlain) return nb::cast(value);
        return nb::none();
      },
      option.example);
}

// Each option has name, type (bool, int, float, string or list of floats), doc, range, choices and, unless it is
// required, its default, which is None if it may be absent.
nb::list DescribeOptions(const std::vector<passes::OptionDef>& options) {
  nb::list list;
  for (const passes::OptionDef& option : options) {
    nb::dict described;
    described["name"] = option.name;
    described["type"] = option.TypeName();
    described["doc"] = option.doc;
    described["range"] = option.range ? (option.is_list() ? "each " : "") + option.range->ToString() : "";
    if (option.given != passes::OptionDef::Given::kMust) described["default"] = DefaultOf(option);
    list.append(described);
  }
  return list;
}

// Returns, for each op that the name may select, the variables that it updates and its states as names and shapes.
// Omits variants of an op that only have fewer states.
nb::list DescribeStates(const passes::Optimizer& optimizer) {
  nb::list list;
  for (const OpDef* op : passes::OpsOf(optimizer)) {
    const OptimizerInfo& info = op->optimizer();
    if (op != optimizer.op && info.ranks == optimizer.op->optimizer().ranks) continue;
    nb::list states;
    for (const OptimizerState& state : info.states) {
      constexpr const char* kShapes[] = {"", "a scalar", "a number for each row", "a number for each column"};
      states.append(nb::make_tuple(state.suffix, kShapes[static_cast<size_t>(state.shape)]));
    }
    list.append(nb::make_tuple(info.ranks == VariableRanks() ? "" : info.ranks.ToString(), states));
  }
  return list;
}

nb::list Optimizers() {
  nb::list list;
  for (const passes::Optimizer& optimizer : passes::AllOptimizers()) {
    nb::dict described;
    described["name"] = optimizer.name->name;
    described["doc"] = optimizer.name->doc;
    described["options"] = DescribeOptions(optimizer.options);
    described["states"] = DescribeStates(optimizer);
    described["counts_steps"] = passes::CountsSteps(*optimizer.op);
    list.append(described);
  }
  return list;
}

nb::dict DescribeArgument(const passes::LossArgument& argument) {
  nb::dict described;
  described["name"] = argument.name;
  described["doc"] = argument.doc;
  if (!argument.default_value.empty()) described["default"] = argument.default_value;
  return described;
}

nb::list Losses() {
  nb::list list;
  for (const passes::Loss& loss : passes::AllLosses()) {
    nb::list predictions, inputs;
    for (const passes::LossArgument& prediction : loss.predictions) predictions.append(DescribeArgument(prediction));
    for (const passes::LossInput& input : loss.inputs) inputs.append(DescribeArgument(input.argument));
    nb::dict described;
    described["name"] = loss.name;
    described["doc"] = loss.doc;
    described["predictions"] = predictions;
    described["inputs"] = inputs;
    described["options"] = DescribeOptions(loss.options);
    list.append(described);
  }
  return list;
}

}  // namespace

void BindChoices(nb::module_& module) {
  module.def("_optimizers", &Optimizers, nb::sig("def _optimizers() -> list[dict[str, typing.Any]]"));
  module.def("_losses", &Losses, nb::sig("def _losses() -> list[dict[str, typing.Any]]"));
  module.def(
      "_check_optimizer",
      [](const std::string& name, const Options& options, const std::vector<std::string>& varying) {
        ThrowIfError(passes::ResolveOptimizer({name, AttributesOf(options), varying}).status());
      },
      "name"_a, "options"_a, "varying"_a);
  module.def(
      "_check_loss", [](const LossChoice& loss) { ThrowIfError(passes::ResolveLoss(LossSpecOf(loss)).status()); },
      "loss"_a);
}

}  // namespace lockstep::python
