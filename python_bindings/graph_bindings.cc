// lockstep.Graph and what makes one of another: parse, load_onnx, train_step, gradients, distribute; and interpret.

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/local_types.h"
#include "core/printer.h"
#include "core/verifier.h"
#include "passes/autodiff.h"
#include "passes/dce.h"
#include "passes/distribute/distribute.h"
#include "passes/train_step.h"
#include "passes/training_mode.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// A value's name, dtype, shape and placements, as lockstep.ValueInfo.
nb::object DescribeValue(const std::string& name, const TensorType& type, const PlacementMap& placements) {
  nb::dict placed;
  for (const auto& [axis, placement] : placements) {
    if (!placement.is_replicated()) placed[nb::str(axis.c_str())] = placement.ToString();
  }
  return nb::module_::import_("lockstep._values")
      .attr("ValueInfo")(name, std::string(DTypeName(type.dtype)), nb::tuple(nb::cast(type.shape.dims())), placed);
}

nb::list DescribeInputs(const Graph& graph, bool states) {
  nb::list list;
  for (const Input& input : graph.inputs()) {
    if (input.is_state == states) list.append(DescribeValue(input.name(), input.value.type(), input.placements()));
  }
  return list;
}

Mesh MeshOf(const std::vector<std::pair<std::string, int64_t>>& axes) {
  std::vector<MeshAxis> result;
  for (const auto& [name, size] : axes) result.push_back({name, size});
  return Mesh(std::move(result));
}

Model Imported(const std::string& path, const std::map<std::string, int64_t>& dims) {
  nb::gil_scoped_release release;
  ImportedModel imported = ValueOrThrow(ImportOnnx(path, {.dims = dims}));
  return {std::move(imported.graph), std::move(imported.parameters),
          std::make_shared<const OnnxOrigin>(std::move(imported.origin)), std::move(imported.notes)};
}

passes::LossSpec LossOf(const std::string& kind, const std::string& prediction, const std::string& target) {
  passes::LossSpec spec{.prediction = prediction, .target = target};
  if (kind == "softmax_cross_entropy") spec.kind = passes::LossSpec::Kind::kSoftmaxCrossEntropy;
  else if (kind == "mean_squared_error") spec.kind = passes::LossSpec::Kind::kMeanSquaredError;
  else if (kind == "result") spec.kind = passes::LossSpec::Kind::kResult;
  else
    ThrowIfError(InvalidArgument() << "unknown loss '" << kind
                                   << "'; lockstep.loss has softmax_cross_entropy, mean_squared_error and result");
  return spec;
}

passes::OptimizerSpec OptimizerOf(const std::string& kind, const std::map<std::string, double>& options) {
  passes::OptimizerSpec spec;
  if (kind == "SGD") spec.kind = passes::OptimizerSpec::Kind::kSgd;
  else if (kind == "Adam") spec.kind = passes::OptimizerSpec::Kind::kAdam;
  else if (kind == "AdamW") spec.kind = passes::OptimizerSpec::Kind::kAdamW;
  else ThrowIfError(InvalidArgument() << "unknown optimizer '" << kind << "'; lockstep.optim has SGD, Adam and AdamW");
  const std::map<std::string, double*> fields = {{"learning_rate", &spec.learning_rate},
                                                 {"weight_decay", &spec.weight_decay},
                                                 {"momentum", &spec.momentum},
                                                 {"beta1", &spec.beta1},
                                                 {"beta2", &spec.beta2},
                                                 {"epsilon", &spec.epsilon}};
  for (const auto& [name, value] : options) {
    const auto field = fields.find(name);
    if (field != fields.end()) *field->second = value;
    else if (name == "nesterov") spec.nesterov = value != 0;
    else ThrowIfError(InvalidArgument() << "optimizer " << kind << " has no option " << name);
  }
  return spec;
}

Model TrainStepOf(const Model& model, const passes::LossSpec& loss, const passes::OptimizerSpec& optimizer,
                  const std::vector<std::string>& trained, bool keep_results, const std::string& statistics) {
  nb::gil_scoped_release release;
  Model step{model.graph.Clone(), model.values, model.origin, model.notes};
  passes::TrainingModeOptions mode;
  mode.statistics = statistics;
  ThrowIfError(passes::RunPasses({passes::TrainingMode(mode)}, step.graph));
  ThrowIfError(passes::MakeTrainStep(
      step.graph, {.loss = loss, .optimizer = optimizer, .trained = trained, .keep_results = keep_results}));
  ThrowIfError(Verify(step.graph));
  return step;
}

// The value of an input of a rank's program: given, or its part of a state's initial value, or zero for a state without one.
Tensor InterpreterInput(const Model& model, const Graph& local, const Input& input,
                        const std::map<std::string, nb::object>& given, size_t rank) {
  const auto it = given.find(input.name());
  if (it != given.end()) {
    const std::string what = "input " + input.name() + " on rank " + std::to_string(rank);
    return CopyArray(CastToArray(it->second, what), what);
  }
  if (!input.is_state) ThrowIfError(InvalidArgument() << "input " << input.name() << " is missing on rank " << rank);
  const auto value = model.values.find(input.name());
  if (value == model.values.end()) return Tensor(input.value.type());
  return LocalPart(value->second, input.placements(), local.mesh(), static_cast<int64_t>(rank));
}

nb::list InterpretModel(const Model& model, const std::vector<std::map<std::string, nb::object>>& inputs) {
  const Graph local = ValueOrThrow(ToLocalTypes(model.graph));
  std::vector<std::vector<Tensor>> tensors(inputs.size());
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    for (const auto& [name, value] : inputs[rank]) {
      if (!model.graph.FindInput(name))
        ThrowIfError(InvalidArgument() << "graph @" << model.graph.name() << " has no input " << name);
    }
    if (static_cast<int64_t>(rank) >= local.num_ranks()) break;  // more than there are: the interpreter says so
    for (const Input& input : local.inputs())
      tensors[rank].push_back(InterpreterInput(model, local, input, inputs[rank], rank));
  }
  std::vector<std::vector<Tensor>> results;
  {
    nb::gil_scoped_release release;
    results = ValueOrThrow(Interpret(local, tensors));
  }
  nb::list ranks;
  for (const std::vector<Tensor>& values : results) {
    nb::dict named;
    for (size_t i = 0; i < values.size(); ++i)
      named[nb::str(model.graph.results()[i].name.c_str())] = ToNumpy(values[i]);
    ranks.append(named);
  }
  return ranks;
}

}  // namespace

void BindGraph(nb::module_& module) {
  nb::class_<Model>(module, "Graph",
                    "A program: typed inputs, states (what training changes) and results. str() is its text form.")
      .def_prop_ro("name", [](const Model& self) { return self.graph.name(); })
      .def_prop_ro(
          "inputs", [](const Model& self) { return DescribeInputs(self.graph, false); },
          "The data inputs, given at each call.", nb::sig("def inputs(self) -> list[lockstep._values.ValueInfo]"))
      .def_prop_ro(
          "states", [](const Model& self) { return DescribeInputs(self.graph, true); },
          "Trained variables, statistics and optimizer state.",
          nb::sig("def states(self) -> list[lockstep._values.ValueInfo]"))
      .def_prop_ro(
          "results",
          [](const Model& self) {
            nb::list list;
            for (const Result& result : self.graph.results()) {
              if (!result.is_state) list.append(DescribeValue(result.name, result.value.type(), result.placements));
            }
            return list;
          },
          "What a call returns.", nb::sig("def results(self) -> list[lockstep._values.ValueInfo]"))
      .def_prop_ro(
          "notes", [](const Model& self) { return self.notes; }, "What the import changed, a sentence each.")
      .def(
          "initial_value",
          [](const Model& self, const std::string& state) {
            const Input* input = self.graph.FindInput(state);
            if (!input || !input->is_state)
              ThrowIfError(NotFound() << "graph @" << self.graph.name() << " has no state " << state);
            const auto value = self.values.find(state);
            return ToNumpy(value == self.values.end() ? Tensor(input->value.type()) : value->second);
          },
          "state"_a, "The value with which a state starts; zeros unless the model gives one.",
          nb::sig("def initial_value(self, state: str) -> numpy.ndarray"))
      .def("__str__", [](const Model& self) { return self.graph.ToString(); })
      .def("__repr__", [](const Model& self) {
        return "<lockstep.Graph @" + self.graph.name() + ", " + std::to_string(self.graph.nodes().size()) + " nodes>";
      });

  module.def(
      "parse",
      [](const std::string& text) {
        Model model{ValueOrThrow(ParseGraph(text)), {}, nullptr, {}};
        ThrowIfError(VerifyStructure(model.graph));
        return model;
      },
      "text"_a, "The graph of a text. Its states start at zero. str(parse(str(graph))) == str(graph).");
  module.def("_load_onnx", &Imported, "path"_a, "dims"_a);
  module.def(
      "_train_step",
      [](const Model& model, const std::tuple<std::string, std::string, std::string>& loss,
         const std::string& optimizer, const std::map<std::string, double>& options,
         const std::vector<std::string>& trained, bool keep_results, const std::string& statistics) {
        return TrainStepOf(model, LossOf(std::get<0>(loss), std::get<1>(loss), std::get<2>(loss)),
                           OptimizerOf(optimizer, options), trained, keep_results, statistics);
      },
      "model"_a, "loss"_a, "optimizer"_a, "options"_a, "trained"_a, "keep_results"_a, "statistics"_a);
  module.def(
      "gradients",
      [](const Model& model, const std::string& of, const std::vector<std::string>& wrt) {
        nb::gil_scoped_release release;
        Model result{model.graph.Clone(), model.values, model.origin, model.notes};
        ThrowIfError(passes::RunPasses({passes::Autodiff(of, wrt)}, result.graph));
        return result;
      },
      "graph"_a, "of"_a, "wrt"_a = std::vector<std::string>(),
      "The graph with a result grad/<name> for each input of `wrt` (all float states if empty): the gradient of the "
      "float scalar result `of`.");
  module.def(
      "_distribute",
      [](const Model& model, const std::vector<std::pair<std::string, int64_t>>& mesh) {
        nb::gil_scoped_release release;
        Graph graph = model.graph.Clone();
        // What nobody uses must not travel; and values that are used in slices alone need not be there as a whole.
        const std::vector<passes::Pass> to_run = {passes::Dce(), passes::Distribute(MeshOf(mesh)), passes::Dce()};
        ThrowIfError(passes::RunPasses(to_run, graph));
        return Model{std::move(graph), model.values, model.origin, model.notes};
      },
      "graph"_a, "mesh"_a);
  module.def(
      "_interpret", &InterpretModel, "graph"_a, "inputs"_a,
      nb::sig("def _interpret(graph: Graph, inputs: collections.abc.Sequence[collections.abc.Mapping[str, object]]) -> "
              "list[dict[str, numpy.ndarray]]"));
}

}  // namespace lockstep::python
