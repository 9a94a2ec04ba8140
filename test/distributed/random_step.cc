#include "test/distributed/random_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/interpreter.h"
#include "core/op_def.h"
#include "core/verifier.h"
#include "passes/training/training_mode.h"
#include "passes/training/uneven.h"
#include "test/meaning/meaning.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;
using Tensors = std::map<std::string, Tensor>;
using passes::TrainStepSpec;

// The value of an input, from `values`, which have kModelRows rows. An input without a value starts as zeros.
Tensor ValueOf(const Input& input, const Tensors& values, const Ints& rows) {
  if (input.setting) return Tensor::Scalar(DType::kF64, input.setting->value);
  const auto value = values.find(input.name());
  if (value == values.end()) return Tensor(input.value.type());
  return input.is_data() && input.value.placement("data").is_split(0) ? TakeRows(value->second, rows) : value->second;
}

std::vector<Tensor> ValuesOf(const Graph& graph, const Tensors& values, const Ints& rows) {
  std::vector<Tensor> inputs;
  for (const Input& input : graph.inputs()) inputs.push_back(ValueOf(input, values, rows));
  return inputs;
}

// A random loss, options and optimizer. If the loss takes several predictions, more results of the model are added for
// it.
TrainStepSpec RandomSpec(Graph& model, Random& random) {
  std::vector<const passes::Loss*> losses;
  for (const passes::Loss& loss : passes::AllLosses()) {
    if (loss.elements && loss.name != "ctc") losses.push_back(&loss);  // ctc is of sequences
  }
  const passes::Loss& loss = *random.Of(losses);
  passes::LossSpec spec{.name = loss.name, .predictions = {}, .inputs = {}};
  Builder b(model);
  Value prediction = model.FindResult("prediction")->value;
  for (size_t i = 0; i < loss.predictions.size(); ++i) {
    const std::string name = i == 0 ? "prediction" : "other prediction " + std::to_string(i);
    if (i > 0) LOCKSTEP_CHECK(model.AddResult(name, prediction).ok()) << name;
    spec.predictions.push_back(name);
    prediction = b.Tanh(b.Neg(prediction));
  }
  for (const passes::LossInput& input : loss.inputs) spec.inputs.push_back(input.argument.name);
  for (const passes::OptionDef& option : loss.options) {
    if (option.name == "log_target") spec.options.emplace("log_target", true);
    if (option.name == "ignore_index" && random.Chance(50)) spec.options.emplace("ignore_index", int64_t{1});
  }
  if (random.Chance(30)) spec.options.emplace("reduction", std::string("sum"));
  if (random.Chance(30)) spec.options.emplace("sample_weight", std::string("weight"));
  TrainStepSpec step;
  step.losses = {spec};
  step.optimizer = {"SGD", {{"learning_rate", 1.0}}};  // so that the new weights show the gradients
  if (random.Chance(30)) step.clipping = {"global_norm", 0.5};
  return step;
}

// Labels below `classes`, or numbers between 0.1 and 0.9.
Tensor RandomTarget(const TensorType& type, int64_t classes, Random& random) {
  Tensor target(type);
  DispatchDType(type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (T& element : target.mutable_data<T>())
      element =
          ConvertElement<T>(IsFloat(type.dtype) ? random.In(0.1, 0.9) : static_cast<double>(random.Below(classes)));
  });
  return target;
}

void AddTargets(const Graph& step, RandomStep& random_step, Random& random) {
  const Shape& prediction = random_step.model.graph.FindResult("prediction")->value.shape();
  const int64_t classes = prediction.rank() > 1 ? std::max<int64_t>(prediction[1], 1) : 1;
  for (const Input& input : step.inputs()) {
    if (!input.is_data() || input.setting || random_step.values.contains(input.name())) continue;
    random_step.values.emplace(input.name(), RandomTarget(input.value.type(), classes, random));
  }
}

// True if the model, given its rows in another order, computes the same rows in that order.
bool IsOfRowsAlone(const RandomModel& model) {
  const Graph graph = WithRows(model.graph, kModelRows).value();
  Ints rows(kModelRows);
  std::iota(rows.begin(), rows.end(), 0);
  const auto in_order = InterpretOneRank(graph, ValuesOf(graph, model.inputs, rows));
  std::reverse(rows.begin(), rows.end());
  const auto reversed = InterpretOneRank(graph, ValuesOf(graph, model.inputs, rows));
  return in_order.ok() && reversed.ok() && CheckClose("", TakeRows((*in_order)[0], rows), (*reversed)[0], 1e-6).ok();
}

// True if the loss changes when all rows are replaced by the first, and a weight moves.
bool DependsOnTheBatch(const Graph& one, const RandomStep& step) {
  Ints rows(kModelRows);
  std::iota(rows.begin(), rows.end(), 0);
  const auto results = InterpretOneRank(one, InputsOf(one, step, rows));
  const auto of_the_first = InterpretOneRank(one, InputsOf(one, step, Ints(kModelRows, 0)));
  if (!results.ok() || !of_the_first.ok()) return false;
  bool moves = false;
  Tensors found = ByName(one, *results), first = ByName(one, *of_the_first);
  for (const auto& [name, value] : found) {
    const Tensor* const before = ValueBefore(step, name);
    moves = moves || (before != nullptr && !(*before == value));
  }
  return moves && std::abs(found.at("loss").At(0) - first.at("loss").At(0)) > 1e-6;
}

bool HasIota(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) { return node.Is("iota"); });
}

}  // namespace

std::optional<RandomStep> MakeRandomStep(uint64_t seed, Unused& unused) {
  std::optional<RandomModel> model = MakeRandomModel(seed);
  if (!model) return ++unused.without_model, std::nullopt;
  absl::StatusOr<Graph> graph = WithRows(model->graph, kModelRows);
  if (!graph.ok() || !WithRows(model->graph, 12).ok()) return ++unused.refused, std::nullopt;
  Random random(seed + 1);
  RandomStep step{seed, {std::move(*graph), std::move(model->inputs)}, {}, {}};
  step.values = step.model.inputs;
  step.spec = RandomSpec(step.model.graph, random);
  absl::StatusOr<Graph> one = StepOf(step.model.graph.Clone(), step.spec, /*uneven=*/false);
  if (!one.ok()) {
    step.spec.losses = {{.name = "mean_squared_error", .predictions = {"prediction"}, .inputs = {"target"}}};
    one = StepOf(step.model.graph.Clone(), step.spec, /*uneven=*/false);
  }
  if (!one.ok()) return ++unused.refused, std::nullopt;
  AddTargets(*one, step, random);
  const bool is_of_rows_alone = IsOfRowsAlone(step.model);
  const absl::Status uneven = StepOf(WithRows(step.model.graph, 12).value(), step.spec, /*uneven=*/true).status();
  if (uneven.message().find("mixes the rows") != std::string::npos) return ++unused.mixing, std::nullopt;
  if (!uneven.ok()) return ++unused.refused, std::nullopt;
  if (!is_of_rows_alone) {
    // A model without iota knows no positions in the batch, so it must compute reordered rows in that order.
    LOCKSTEP_CHECK(HasIota(step.model.graph)) << "seed " << seed << ": an op mixes rows, and is not refused\n"
                                              << step.model.graph.ToString();
    return ++unused.of_places, std::nullopt;
  }
  if (!DependsOnTheBatch(*one, step)) return ++unused.flat, std::nullopt;
  return step;
}

absl::StatusOr<Graph> StepOf(Graph model, TrainStepSpec spec, bool uneven) {
  passes::TrainingModeOptions mode;
  mode.uneven = uneven;
  RETURN_IF_ERROR(passes::RunPasses({passes::TrainingMode(mode)}, model));
  spec.uneven = uneven;
  RETURN_IF_ERROR(passes::MakeTrainStep(model, spec));
  RETURN_IF_ERROR(Verify(model));
  return model;
}

std::vector<Tensor> InputsOf(const Graph& step, const RandomStep& random_step, const Ints& rows) {
  return ValuesOf(step, random_step.values, rows);
}

std::vector<Tensor> InputsOfRank(const Graph& step, const RandomStep& random_step, Ints rows, int64_t most,
                                 Random& random) {
  Tensor there({DType::kF32, {most}});
  std::fill_n(there.mutable_data<float>().begin(), rows.size(), 1.0f);
  while (static_cast<int64_t>(rows.size()) < most) rows.push_back(random.Below(kModelRows));
  std::vector<Tensor> inputs;
  for (const Input& input : step.inputs())
    inputs.push_back(input.name() == passes::kRows ? there : ValueOf(input, random_step.values, rows));
  return inputs;
}

std::map<std::string, Tensor> ByName(const Graph& step, const std::vector<Tensor>& results) {
  Tensors by_name;
  for (size_t i = 0; i < results.size(); ++i)
    by_name.emplace((step.results()[i].is_state ? "state " : "") + step.results()[i].name, results[i]);
  return by_name;
}

const Tensor* ValueBefore(const RandomStep& random_step, const std::string& result) {
  constexpr std::string_view kState = "state ";
  const auto found =
      result.starts_with(kState) ? random_step.values.find(result.substr(kState.size())) : random_step.values.end();
  return found == random_step.values.end() ? nullptr : &found->second;
}

}  // namespace lockstep
