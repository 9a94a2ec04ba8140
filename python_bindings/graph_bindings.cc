// lockstep.Graph, the functions that make graphs (parse, load_onnx, train_step, gradients, distribute), and interpret.

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/local_types.h"
#include "core/printer.h"
#include "core/verifier.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/split_inputs.h"
#include "passes/optimize/dce.h"
#include "passes/training/autodiff.h"
#include "passes/training/evaluation.h"
#include "passes/training/train_step.h"
#include "passes/training/uneven.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/options.h"
#include "python_bindings/released_gil.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Returns the initial values of the program's settings, by name.
nb::dict DescribeSettings(const Graph& graph) {
  nb::dict settings;
  for (const Input& input : graph.inputs()) {
    if (input.setting) settings[nb::str(input.name().c_str())] = input.setting->value;
  }
  return settings;
}

nb::list DescribeInputs(const Graph& graph, bool states) {
  nb::list list;
  for (const Input& input : graph.inputs()) {
    if (states ? input.is_state : input.is_data())
      list.append(DescribeValue(input.name(), input.value.type(), input.placements()));
  }
  return list;
}

Model ImportedAs(ImportedModel imported) {
  return {std::move(imported.graph),
          std::move(imported.parameters),
          std::make_shared<const OnnxOrigin>(std::move(imported.origin)),
          std::move(imported.notes),
          std::move(imported.constants),
          std::move(imported.fixed_inputs),
          std::move(imported.unmarked_parameters),
          std::move(imported.metadata),
          /*is_imported=*/true};
}

// Imports the file `path`, or `bytes`, for which `path` is only a name in messages.
Model Imported(const std::string& path, const std::optional<nb::bytes>& bytes,
               const std::map<std::string, int64_t>& dims, const std::optional<std::map<std::string, int64_t>>& split,
               const std::map<std::string, nb::object>& values, const std::vector<std::string>& constants,
               const std::vector<std::string>& states) {
  ImportOptions options{.dims = dims,
                        .split = split,
                        .values = {},
                        .constants = {constants.begin(), constants.end()},
                        .states = {states.begin(), states.end()}};
  for (const auto& [name, value] : values) {
    const std::string what = "the value of input " + name;
    options.values.emplace(name, CopyArray(CastToArray(value, what), what));
  }
  const std::string_view view = bytes ? std::string_view(bytes->c_str(), bytes->size()) : std::string_view();
  ReleasedGil released;
  return ImportedAs(ValueOrThrow(bytes ? ImportOnnxBytes(view, path, options) : ImportOnnx(path, options)));
}

// Returns the imported model with other extents of its dimensions, and with the values of `model`.
Model WithDims(const Model& model, const std::map<std::string, int64_t>& dims) {
  if (!model.is_imported) {
    ThrowIfError(
        FailedPrecondition() << "with_dims: @" << model.graph.name() << " is not a model from load_onnx or from_torch"
                             << (model.origin ? ", but was made from one: make it again from model.with_dims(...)"
                                              : ""));
  }
  ReleasedGil released;
  Model result = ImportedAs(ValueOrThrow(ImportWithDims(*model.origin, model.values, dims)));
  result.notes = model.notes;
  return result;
}

// Returns the model with other initial values of some states.
Model WithValues(const Model& model, const std::map<std::string, nb::object>& values) {
  Model result = model.With(model.graph.Clone());
  result.is_imported = model.is_imported;
  for (const auto& [name, value] : values) {
    const std::string what = "the value of state " + name;
    Tensor tensor = CopyArray(CastToArray(value, what), what);
    const Input* input = model.graph.FindInput(name);
    if (!input || !input->is_state)
      ThrowIfError(NotFound() << "graph @" << model.graph.name() << " has no state " << name);
    if (tensor.type() != input->value.type())
      ThrowIfError(InvalidArgument() << what << " is " << tensor.type() << ", the state " << input->value.type());
    result.values.insert_or_assign(name, std::move(tensor));
  }
  return result;
}

Model TrainStepOf(const Model& model, passes::TrainStepSpec spec, const passes::TrainingModeOptions& mode,
                  int64_t seed) {
  ReleasedGil released;
  Model step = model.With(model.graph.Clone());
  step.metadata.clear();  // of the module, whose evaluation the step is not
  ThrowIfError(passes::MakeTrainStepOfModel(step.graph, step.values, step.constants, std::move(spec), mode, seed));
  return step;
}

// An exchange without a body: whether it is of weights, the result's name, the attributes `by`, `state` and `axis`, and
// the dtype and shape of its operand.
using ExchangeFacts =
    std::tuple<bool, std::string, std::string, std::string, std::string, std::string, std::vector<int64_t>>;

bool IsExchange(const Node& node) { return node.Is("exchange") || node.Is("exchange_weights"); }

std::vector<ExchangeFacts> ExchangesOf(const Model& model) {
  std::vector<ExchangeFacts> exchanges;
  for (const Node& node : model.graph.nodes()) {
    if (!IsExchange(node) || !node.attr<Region>("body").empty()) continue;
    const TensorType& type = node.type();
    exchanges.emplace_back(node.Is("exchange_weights"), node.result_name(), node.attr<std::string>("by"),
                           node.attr<std::string>("state"), node.attr<std::string>("axis"),
                           std::string(DTypeName(type.dtype)), type.shape.dims());
  }
  return exchanges;
}

// Gives exchanges their bodies, by the names of their results.
Model WithBodies(const Model& model, const std::map<std::string, const Model*>& bodies) {
  Model result = model.With(model.graph.Clone());
  for (Node& node : result.graph.nodes()) {
    const auto body = bodies.find(node.result_name());
    if (!IsExchange(node) || body == bodies.end()) continue;
    ThrowIfError(
        Annotate(result.graph.SetAttribute(&node, "body", Region(body->second->graph.Clone())), node.Describe()));
  }
  return result;
}

Model EvaluationOf(const Model& model, const std::vector<LossChoice>& losses,
                   const std::vector<std::pair<std::string, std::vector<LossChoice>>>& metrics, bool keep_results,
                   bool uneven) {
  const auto specs_of = [](const std::vector<LossChoice>& choices) {
    std::vector<passes::LossSpec> specs;
    for (const LossChoice& choice : choices) specs.push_back(LossSpecOf(choice));
    return specs;
  };
  passes::EvaluationSpec spec{
      .losses = specs_of(losses), .metrics = {}, .keep_results = keep_results, .uneven = uneven};
  for (const auto& [name, choices] : metrics) spec.metrics.emplace_back(name, specs_of(choices));
  ReleasedGil released;
  Model evaluation = model.With(model.graph.Clone());
  ThrowIfError(passes::MakeEvaluation(evaluation.graph, spec));
  ThrowIfError(Verify(evaluation.graph));
  return evaluation;
}

// Returns an input of a rank's program: the given value, its part of a state's initial value, or zero for a state
// without one.
Tensor InterpreterInput(const Model& model, const Graph& local, const Input& input,
                        const std::map<std::string, nb::object>& given, size_t rank) {
  const auto it = given.find(input.name());
  if (it != given.end()) {
    const std::string what = "input " + input.name() + " on rank " + std::to_string(rank);
    return CopyArray(CastToArray(it->second, what, &input.value.type()), what);
  }
  if (input.setting) return Tensor::Scalar(DType::kF64, input.setting->value);
  if (!input.is_state) ThrowIfError(InvalidArgument() << "input " << input.name() << " is missing on rank " << rank);
  ThrowIfError(CheckFitsInMemory(input.value.type(), "state " + input.name()));
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
    if (static_cast<int64_t>(rank) >= local.num_ranks()) break;  // too many ranks: the interpreter reports it
    for (const Input& input : local.inputs())
      tensors[rank].push_back(InterpreterInput(model, local, input, inputs[rank], rank));
  }
  std::vector<std::vector<Tensor>> results;
  {
    ReleasedGil released;
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

using GraphClass = nb::class_<Model>;

constexpr char kWithDims[] =
    R"(Returns the model with other extents of its symbolic dimensions, such as a batch of one sample:
model.with_dims(batch=1).

Requires a model from `load_onnx` or `from_torch`, or from `load_weights` of such a model. Nothing is read or
exported again. The states of the new graph have the same names, shapes and values, and it computes the same
results for the same rows.

Args:
  dims: extents by name, as for `load_onnx`; or instead one dict, whose names may be positions: {"x:0": 1}.
    Other dimensions keep their extents.

Raises:
  Error: there is no dimension of that name, the model cannot have that extent, or the graph is not such a
    model but, for example, a training step or a parsed text.

Example:
  >>> one = lockstep.compile(model.with_dims(batch=1))
  >>> one.state.assign(exe.state)
  >>> one(image=image[None])["logits"])";

constexpr char kExplain[] =
    R"(Explains the program that `compile` makes of this graph for one of n ranks, which need not exist: what is
communicated for each layer, in how many bytes, when it is ready and when it is needed; and what each pass of the
compiler changed. It prints as tables, shows itself in a notebook, and has all numbers as attributes.

Positions are the numbers of steps of a call, as in `Executable.steps`. Times are estimates: of each kernel by
`machine`, one after the other and without communication. `factors` has the default of ranks on one host.

Args:
  ranks: the number of ranks. The default is the product of the sizes of `mesh`, or 2 without it.
  rank: the rank whose program is explained. Only stages of a pipeline have different ones.
  depth: the number of parts of a layer's name, as for summary().
  machine: the speed of a rank's kernels, and of the links between hosts: a `lockstep.forecast.Machine`. If None, the
    numbers of a usual processor, and of a network of 10 Gb/s.
  backend: "cpu" or "cuda". "cuda" needs a GPU and its driver.
  options: those of a `Strategy`, such as `mesh`, `split`, `shard_optimizer` and `wire`; or a `strategy`.

Raises:
  Error: as `compile`; names the option, or the op with its source in the model.

Example:
  >>> print(step.explain(4))
  >>> sum(each.bytes for each in step.explain(mesh={"data": 4}, wire="bf16").communications))";

constexpr char kSaveHtml[] =
    R"(Writes explain() as a page that needs nothing but a browser: the graph by layer, a timeline of the
communication, and what each pass changed, with its text before and after. The page has the drawing of save_svg() if
there is Graphviz' program dot. Equal graphs and options make equal pages. With several ranks, call it on one.

Args:
  path: of the file, which appears complete or not at all.
  ranks: as for explain().
  other: another graph, which is explained with the same options, or an Explanation, such as that of this graph with
    other options. The page then shows both side by side, and marks differences.
  options: the other arguments of explain().

Example:
  >>> step.save_html("step.html", 4, other=step.explain(4, wire="bf16")))";

constexpr char kSave[] =
    R"(Writes the graph to a file for load_graph(): its text, the initial values of its states, its schedules, and
the model from which it was imported, so that the loaded graph has with_dims() and can be saved as ONNX.

The file appears complete or not at all. The calling process writes. With several ranks, call it on one.

Raises:
  Error: the file cannot be written; or a setting follows a function that is not of lockstep.schedule or
    lockstep.average, which a file cannot represent. pickle can, if it finds the function by its name.

Example:
  >>> step.save("step.graph")
  >>> exe = lockstep.compile(lockstep.load_graph("step.graph"), world=world))";

void BindGraphFacts(GraphClass& graph) {
  graph.def_prop_ro("name", [](const Model& self) { return self.graph.name(); })
      .def_prop_ro(
          "inputs", [](const Model& self) { return DescribeInputs(self.graph, false); },
          "The data inputs, which each call passes.",
          nb::sig("def inputs(self) -> list[lockstep._base.values.ValueInfo]"))
      .def_prop_ro(
          "states", [](const Model& self) { return DescribeInputs(self.graph, true); },
          "The trained variables, statistics and optimizer states.",
          nb::sig("def states(self) -> list[lockstep._base.values.ValueInfo]"))
      .def_prop_ro(
          "settings", [](const Model& self) { return DescribeSettings(self.graph); },
          "The numbers that may change between calls, such as optimizer/learning_rate, with their initial values.",
          nb::sig("def settings(self) -> dict[str, float]"))
      .def_prop_ro(
          "results",
          [](const Model& self) {
            nb::list list;
            for (const Result& result : self.graph.results()) {
              if (!result.is_state) list.append(DescribeValue(result.name, result.value.type(), result.placements));
            }
            return list;
          },
          "The results of a call.", nb::sig("def results(self) -> list[lockstep._base.values.ValueInfo]"))
      .def_prop_ro(
          "trained", [](const Model& self) { return passes::StatesTrainedBy(self.graph); },
          "The names of the states that an optimizer updates. A model that is not a training step has none.")
      .def_prop_ro(
          "constants", [](const Model& self) { return self.constants; },
          "The names of the float initializers that the graph uses as constants. `trained` of train_step() can name "
          "them.")
      .def_prop_ro(
          "fixed_inputs", [](const Model& self) { return self.fixed_inputs; },
          "The inputs of the file whose values, given to load_onnx(), went into the graph.")
      .def_prop_ro(
          "notes", [](const Model& self) { return self.notes; }, "Sentences about what the import changed.")
      .def_prop_ro("_metadata", [](const Model& self) { return self.metadata; })
      .def_prop_ro("_is_uneven", [](const Model& self) { return passes::IsUneven(self.graph); })
      .def_prop_ro("_supposed_parameters", [](const Model& self) { return self.unmarked_parameters; })
      .def("_facts", &Summary)
      .def("_nodes", &DescribeNodes, nb::sig("def _nodes(self) -> list[dict[str, typing.Any]]"))
      .def(
          "summary",
          [](nb::object self, nb::object depth) {
            return nb::module_::import_("lockstep._graph.layers").attr("summary")(self, depth);
          },
          "depth"_a = nb::none(),
          "A line for each input, state, setting and result of the graph, with counts, and a table of its layers.\n\n"
          "A layer is the nodes whose sources have the same module of the model: block/conv of onnx:/block/conv/Conv,\n"
          "and of python:block/conv/model.py:12, of a scope of lockstep.graph; without a scope, model.py:12. In files\n"
          "of PyTorch's exporter, encoder.0.linear1 of torch:encoder.0.linear1/node_MatMul_91, or relu_3() of a\n"
          "function outside the model's modules. For each layer, the table shows the type of the last result, the\n"
          "parameters that it uses first, the operations in the forward computation and for gradients, and the bytes\n"
          "of all results of its nodes, which are not the memory that a compiled program needs. An addition, a\n"
          "comparison or a function such as exp of one element is one operation. A product that is added to a sum is\n"
          "two, so a multiply-accumulate is two. A reduction has one for each element that it reads, and moving\n"
          "elements none. Normalisations and softmax that are one node have one for each element. For a step of\n"
          "micro-batches, types and bytes are those of one micro-batch, and operations those of all.\n\n"
          "Args:\n"
          "  depth: the number of parts of a layer's name, between slashes, and between dots in a module's name.\n"
          "    Layers with equal parts are merged. None is all parts.",
          nb::sig("def summary(self, depth: int | None = None) -> str"))
      .def(
          "save_svg",
          [](nb::object self, nb::object path, nb::object depth) {
            nb::module_::import_("lockstep._graph.layers").attr("save_svg")(self, path, depth);
          },
          "path"_a.none(), "depth"_a = nb::none(),
          "Draws the graph into a file, with a box for each layer of summary(). Requires Graphviz' program dot. A\n"
          "drawing of a step also has the optimizer and, if the graph has been distributed, the collectives, one for\n"
          "each layer. Dashed lines are gradients.",
          nb::sig("def save_svg(self, path: str | os.PathLike[str], depth: int | None = None) -> None"))
      .def(
          "explain",
          [](nb::object self, nb::args ranks, nb::kwargs options) {
            return nb::module_::import_("lockstep._graph.explain").attr("explain")(self, *ranks, **options);
          },
          kExplain,
          nb::sig("def explain(self, ranks: int | None = None, *, rank: int = 0, depth: int | None = None, "
                  "machine: lockstep.forecast.Machine | None = None, backend: str = 'cpu', **options: typing.Any) -> "
                  "lockstep._graph.explain.Explanation"))
      .def(
          "save_html",
          [](nb::object self, nb::args positional, nb::kwargs options) {
            nb::module_::import_("lockstep._graph.explain").attr("save_html")(self, *positional, **options);
          },
          kSaveHtml,
          nb::sig("def save_html(self, path: str | os.PathLike[str], ranks: int | None = None, *, "
                  "other: Graph | lockstep._graph.explain.Explanation | None = None, **options: typing.Any) -> None"))
      .def(
          "save",
          [](nb::object self, nb::object path) {
            nb::module_::import_("lockstep._graph.graph_file").attr("save")(self, path);
          },
          "path"_a.none(), kSave, nb::sig("def save(self, path: str | os.PathLike[str]) -> None"))
      .def(
          "__reduce__",
          [](nb::object self) { return nb::module_::import_("lockstep._graph.graph_file").attr("reduced")(self); },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def(
          "with_dims",
          [](nb::object self, nb::args one, nb::kwargs dims) {
            return nb::module_::import_("lockstep._graph.graphs").attr("with_dims")(self, *one, **dims);
          },
          kWithDims, nb::sig("def with_dims(self, *one: collections.abc.Mapping[str, int], **dims: int) -> Graph"))
      .def(
          "initial_value",
          [](const Model& self, nb::handle name) {
            const std::string state = TextOf(name, "the name of a state");
            const Input* input = self.graph.FindInput(state);
            if (!input || !input->is_state)
              ThrowIfError(NotFound() << "graph @" << self.graph.name() << " has no state " << state);
            ThrowIfError(CheckFitsInMemory(input->value.type(), "state " + state));
            const auto value = self.values.find(state);
            return ToNumpy(value == self.values.end() ? Tensor(input->value.type()) : value->second);
          },
          "state"_a.none(), "The initial value of a state; zeros unless the model has one.",
          nb::sig("def initial_value(self, state: str) -> numpy.ndarray"));
}

void BindTexts(GraphClass& graph) {
  graph.def("__str__", [](const Model& self) { return self.graph.ToString(); })
      .def(
          "short", [](const Model& self) { return PrintGraph(self.graph, {.brief = true}); },
          "Returns the graph in a form for people: a line for each node, with a fusion as the list of its ops, and\n"
          "without sources. str() is the exact text, which parse() reads.")
      .def(
          "diff",
          [](nb::object self, nb::object other) {
            return nb::module_::import_("lockstep._graph.diff").attr("diff")(self, other);
          },
          "other"_a.none(),
          "Returns a unified diff from the text of this graph to that of `other`. Numbered values that correspond\n"
          "have the same number. Empty if the graphs are equal.",
          nb::sig("def diff(self, other: Graph) -> str"))
      .def(
          "_repr_pretty_",
          [](const Model& self, nb::object printer, bool) {
            printer.attr("text")(PrintGraph(self.graph, {.brief = true}));
          },
          "printer"_a, "cycle"_a, "The display of IPython: short().",
          nb::sig("def _repr_pretty_(self, printer: typing.Any, cycle: bool) -> None"))
      .def(
          "_repr_svg_",
          [](nb::object self) { return nb::module_::import_("lockstep._graph.layers").attr("notebook_svg")(self); },
          "The display of notebooks: the drawing of save_svg(). None for a graph of more than 100 layers, and without\n"
          "Graphviz; notebooks then show short().",
          nb::sig("def _repr_svg_(self) -> str | None"))
      .def("__repr__",
           [](const Model& self) {
             std::vector<std::string> inputs, results;
             size_t states = 0;
             for (const Input& input : self.graph.inputs()) {
               if (input.is_data()) inputs.push_back(input.name() + ": " + input.value.type().ToString());
               states += input.is_state ? 1 : 0;
             }
             for (const Result& result : self.graph.results()) {
               if (!result.is_state) results.push_back(result.name);
             }
             return "<lockstep.Graph " + Signature(self.graph.name(), inputs, results) + ", " + std::to_string(states) +
                    " states, " + std::to_string(self.graph.nodes().size()) + " nodes>";
           })
      .def(
          "__call__",
          [](const Model& self, const nb::args&, const nb::kwargs&) -> nb::object {
            throw nb::type_error(ToValidText("graph @" + self.graph.name() +
                                             " is not compiled: use exe = lockstep.compile(graph), and "
                                             "run it by exe(…)")
                                     .c_str());
          },
          "Raises a TypeError that says how to run a graph.",
          nb::sig("def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.NoReturn"));
}

void BindFunctions(nb::module_& module) {
  module.def(
      "_parse",
      [](const std::string& text) {
        Model model{ValueOrThrow(ParseGraph(text)), {}, nullptr, {}, {}};
        ThrowIfError(VerifyStructure(model.graph));
        return model;
      },
      "text"_a);
  module.def("_load_onnx", &Imported, "path"_a, "bytes"_a.none(), "dims"_a, "split"_a.none(), "values"_a, "constants"_a,
             "states"_a);
  module.def("_onnx_operators", [] {
    std::map<std::string, std::vector<std::tuple<std::string, int64_t, int64_t>>> by_domain;
    for (const OnnxOperator& op : SupportedOnnxOperators())
      by_domain[op.domain].emplace_back(op.type, op.since, op.until);
    return by_domain;
  });
  module.def("_with_values", &WithValues, "model"_a, "values"_a);
  module.def("_with_dims", &WithDims, "model"_a, "dims"_a);
  module.def("_evaluation", &EvaluationOf, "model"_a, "losses"_a, "metrics"_a, "keep_results"_a, "uneven"_a);
  module.def(
      "_train_step",
      [](const Model& model, const std::vector<LossChoice>& losses, const std::vector<OptimizerChoice>& optimizers,
         const std::pair<std::string, double>& clipping, bool average, const std::vector<std::string>& trained,
         const std::vector<std::string>& frozen, bool keep_results, int64_t accumulate, const std::string& statistics,
         bool dropout, int64_t seed, const std::string& precision, bool uneven,
         const std::vector<std::tuple<std::string, std::string, std::string, bool>>& exchanges) {
        passes::TrainStepSpec spec{
            .losses = {},
            .updates = !optimizers.empty(),
            .optimizer = optimizers.empty() ? passes::OptimizerSpec() : OptimizerSpecOf(optimizers.front()),
            .groups = {},
            .exchanges = {},
            .clipping = {clipping.first, clipping.second},
            .precision = *DTypeFromName(precision),
            .average = average,
            .trained = trained,
            .frozen = frozen,
            .keep_results = keep_results,
            .accumulate = accumulate,
            .uneven = uneven};
        for (const LossChoice& loss : losses) spec.losses.push_back(LossSpecOf(loss));
        for (size_t i = 1; i < optimizers.size(); ++i)
          spec.groups.push_back({std::get<0>(optimizers[i]), OptimizerSpecOf(optimizers[i])});
        for (const auto& [states, by, wire, of_weights] : exchanges)
          spec.exchanges.push_back({states, by, wire, of_weights});
        return TrainStepOf(model, std::move(spec), {.statistics = statistics, .dropout = dropout, .uneven = uneven},
                           seed);
      },
      "model"_a, "losses"_a, "optimizers"_a, "clipping"_a, "average"_a, "trained"_a, "frozen"_a, "keep_results"_a,
      "accumulate"_a, "statistics"_a, "dropout"_a, "seed"_a, "precision"_a, "uneven"_a, "exchanges"_a);
  module.def("_exchanges", &ExchangesOf, "graph"_a);
  module.def("_with_bodies", &WithBodies, "graph"_a, "bodies"_a);
  module.def(
      "_gradients",
      [](const Model& model, const std::string& of, const std::vector<std::string>& wrt) {
        ReleasedGil released;
        Model result = model.With(model.graph.Clone());
        result.metadata.clear();  // of the module, whose evaluation this is not
        ThrowIfError(passes::RunPasses({passes::Autodiff(of, wrt)}, result.graph));
        return result;
      },
      "graph"_a, "of"_a, "wrt"_a);
  module.def(
      "_distribute",
      [](const Model& model, const std::vector<std::pair<std::string, int64_t>>& axes,
         const passes::PlacementChoices& placements) {
        ReleasedGil released;
        const Mesh mesh = ValueOrThrow(MeshOf(axes));
        Graph graph = model.graph.Clone();
        ThrowIfError(passes::SplitInputs(graph, ValueOrThrow(passes::SplitsOf(graph, placements)), mesh));
        // Unused values must not be communicated, and values of which only slices are used need not be gathered.
        const std::vector<passes::Pass> to_run = {passes::Dce(), passes::Distribute(mesh), passes::Dce()};
        ThrowIfError(passes::RunPasses(to_run, graph));
        return model.With(std::move(graph));
      },
      "graph"_a, "mesh"_a, "placements"_a);
  module.def(
      "_interpret", &InterpretModel, "graph"_a, "inputs"_a,
      nb::sig("def _interpret(graph: Graph, inputs: collections.abc.Sequence[collections.abc.Mapping[str, object]]) -> "
              "list[dict[str, numpy.ndarray]]"));
}

}  // namespace

std::string Signature(const std::string& name, std::span<const std::string> inputs,
                      std::span<const std::string> results) {
  const auto listed = [](std::span<const std::string> names) {
    constexpr size_t kMost = 4;
    std::string text;
    for (size_t i = 0; i < names.size() && i < kMost; ++i) text += (i > 0 ? ", " : "") + names[i];
    return text + (names.size() > kMost ? ", and " + std::to_string(names.size() - kMost) + " more" : "");
  };
  return ToValidText("@" + name + "(" + listed(inputs) + ") -> (" + listed(results) + ")");
}

nb::object DescribeValue(const std::string& name, const TensorType& type, const PlacementMap& placements) {
  nb::dict placed;
  for (const auto& [axis, placement] : placements) {
    if (!placement.is_replicated()) placed[nb::str(axis.c_str())] = placement.ToString();
  }
  return nb::module_::import_("lockstep._base.values")
      .attr("ValueInfo")(name, std::string(DTypeName(type.dtype)), nb::tuple(nb::cast(type.shape.dims())), placed);
}

void BindGraph(nb::module_& module) {
  GraphClass graph(module, "Graph",
                   "A program: typed inputs, states (what training changes) and results. str() is its text form.",
                   nb::dynamic_attr());  // _schedules: functions of the step by setting, which compile() follows
  BindGraphFacts(graph);
  BindTexts(graph);
  BindFunctions(module);
}

}  // namespace lockstep::python
