// The optimizers and losses that are compiled in, as data of which lockstep.optim and lockstep.loss make their classes
// and functions; and the checks of what a user gives them.

#include "passes/training/loss.h"
#include "passes/training/optimizer.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/options.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// name, type (float or bool), doc and, unless the option must be given, its default.
nb::list DescribeOptions(const std::vector<passes::OptionDef>& options) {
  nb::list list;
  for (const passes::OptionDef& option : options) {
    nb::dict described;
    described["name"] = option.name;
    described["type"] = std::string(AttributeTypeName(option.example));
    described["doc"] = option.doc;
    described["range"] = option.range ? option.range->ToString() : "";
    if (!option.required) {
      if (const bool* flag = std::get_if<bool>(&option.example)) described["default"] = *flag;
      else described["default"] = std::get<double>(option.example);
    }
    list.append(described);
  }
  return list;
}

nb::list Optimizers() {
  nb::list list;
  for (const passes::Optimizer& optimizer : passes::AllOptimizers()) {
    nb::list states;
    for (const OptimizerState& state : optimizer.op->optimizer().states) states.append(state.suffix);
    nb::dict described;
    described["name"] = optimizer.name->name;
    described["doc"] = optimizer.name->doc;
    described["options"] = DescribeOptions(optimizer.options);
    described["states"] = states;
    described["counts_steps"] = passes::CountsSteps(*optimizer.op);
    list.append(described);
  }
  return list;
}

nb::object DescribeArgument(const passes::LossArgument& argument) {
  if (argument.name.empty()) return nb::none();
  nb::dict described;
  described["name"] = argument.name;
  described["doc"] = argument.doc;
  if (!argument.default_value.empty()) described["default"] = argument.default_value;
  return described;
}

nb::list Losses() {
  nb::list list;
  for (const passes::Loss& loss : passes::AllLosses()) {
    nb::dict described;
    described["name"] = loss.name;
    described["doc"] = loss.doc;
    described["prediction"] = DescribeArgument(loss.prediction);
    described["target"] = DescribeArgument(loss.target);
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
      [](const std::string& name, const Options& options) {
        ThrowIfError(passes::ResolveOptimizer({name, AttributesOf(options)}).status());
      },
      "name"_a, "options"_a);
  module.def(
      "_check_loss",
      [](const std::string& name, const Options& options) {
        ThrowIfError(passes::ResolveLoss({.name = name, .options = AttributesOf(options)}).status());
      },
      "name"_a, "options"_a);
}

}  // namespace lockstep::python
