#include "passes/training/loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "passes/distribute/distribute.h"
#include "passes/losses/loss_list.h"
#include "passes/training/loss_reduction.h"
#include "passes/training/uneven.h"

namespace lockstep::passes {
namespace {

// A loss that is being added: its operands, and the texts with which errors begin.
struct Call {
  const Loss& loss;
  const LossSpec& spec;
  AttributeMap options;  // complete
  std::vector<Value> predictions;
  absl::StatusOr<Placement> placement;  // of the first prediction, along the data axis
  Value rows;                           // 1 for rows that count, 0 for others; null: all count

  std::string name() const { return "loss " + loss.name; }
  std::string what() const {
    return name() + ": result " + spec.predictions[0] + " is " + predictions[0].type().ToString();
  }
};

std::vector<std::string> NamesOf(const std::vector<LossArgument>& arguments) {
  std::vector<std::string> names;
  for (const LossArgument& argument : arguments) names.push_back(argument.name);
  return names;
}

std::vector<std::string> NamesOf(const std::vector<LossInput>& inputs) {
  std::vector<std::string> names;
  for (const LossInput& input : inputs) names.push_back(input.argument.name);
  return names;
}

absl::Status CheckCount(const Loss& loss, const std::vector<std::string>& given, const std::vector<std::string>& wanted,
                        std::string_view what) {
  if (given.size() == wanted.size()) return absl::OkStatus();
  return InvalidArgument() << "loss " << loss.name << ": got the names of " << given.size() << " " << what << " ("
                           << Joined(given) << "), expected " << wanted.size() << ": " << Joined(wanted);
}

absl::StatusOr<Value> FindPrediction(const Graph& graph, const std::string& name) {
  if (const Result* result = graph.FindResult(name)) return result->value;
  std::vector<std::string> names;
  for (const Result& r : graph.results()) {
    if (!r.is_state) names.push_back(r.name);
  }
  return NotFound() << "loss: the model has no result '" << name << "'; it has: " << Joined(names);
}

absl::StatusOr<std::vector<Value>> FindPredictions(const Graph& graph, const Loss& loss, const LossSpec& spec) {
  RETURN_IF_ERROR(CheckCount(loss, spec.predictions, NamesOf(loss.predictions), "results"));
  std::vector<Value> predictions;
  for (const std::string& name : spec.predictions) {
    ASSIGN_OR_RETURN(const Value value, FindPrediction(graph, name));
    predictions.push_back(value);
    if (value.type() == predictions[0].type()) continue;
    return InvalidArgument() << "loss " << loss.name << ": results " << spec.predictions[0] << " and " << name
                             << " are " << predictions[0].type() << " and " << value.type() << ", expected one type";
  }
  return predictions;
}

absl::Status CheckPrediction(const Call& call) {
  const TensorType type = call.predictions[0].type();
  if (!IsFloat(type.dtype)) return InvalidArgument() << call.what() << ", expected floats";
  if (type.shape.rank() < 1)
    return InvalidArgument() << call.name() << ": result " << call.spec.predictions[0] << " is the scalar " << type;
  if (!call.loss.check) return absl::OkStatus();
  return Annotate(call.loss.check(type, call.options), call.what());
}

// Returns true if a data input is split along dimension 0 and has as many rows as `shape`.
bool IsBatch(const Graph& graph, const Shape& shape) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(), [&](const Input& input) {
    return input.is_data() && input.value.placement(kDataAxis).is_split(0) && shape.rank() > 0 &&
           input.value.shape()[0] == shape[0];
  });
}

// Returns the placement of an input of the loss: that of the prediction, which follows from the model's inputs and ops.
// For example, for logits [batch * words, classes], each rank has the rows of its sentences, and gets the labels of
// these. If every rank computes the whole prediction, or its placement is not known, labels are split like the batch.
PlacementMap PlacementOfInput(const Graph& graph, const Call& call, const TensorType& type) {
  const Shape& shape = call.predictions[0].shape();
  const auto along_data = [](int64_t dim) { return PlacementMap{{std::string(kDataAxis), Placement::Split(dim)}}; };
  if (!call.placement.ok() || !call.placement->is_split())
    return IsBatch(graph, shape) ? along_data(0) : PlacementMap{};
  const int64_t dim = call.placement->dim();
  const bool is_same_dim =
      dim == 0 || type.shape.rank() == shape.rank();  // else the target has no dimension of classes
  return is_same_dim && type.shape[dim] == shape[dim] ? along_data(dim) : PlacementMap{};
}

// Returns the input of this name; adds it unless the model has it.
absl::StatusOr<Value> AddLossInput(Graph& graph, const Call& call, std::string_view what, const std::string& name,
                                   const TensorType& type) {
  if (call.rows && name == kRows)
    return InvalidArgument() << call.name() << ": " << what << " is named %" << name << ", as the input of an uneven "
                             << "step that tells which rows pad: give it another name, or set uneven=False";
  const Input* const input = graph.FindInput(name);
  if (!input) {
    const absl::StatusOr<Value> added = graph.AddInput(name, type, false, PlacementOfInput(graph, call, type));
    if (!added.ok()) return Annotate(added.status(), call.name() + ": " + std::string(what));
    return added;
  }
  if (input->value.type() == type) return input->value;
  return InvalidArgument() << call.name() << ": " << what << " %" << name << " is " << input->value.type()
                           << ", expected " << type;
}

absl::StatusOr<std::vector<Value>> AddInputs(Graph& graph, const Call& call) {
  std::vector<Value> inputs;
  if (call.loss.inputs.empty()) return inputs;
  RETURN_IF_ERROR(CheckCount(call.loss, call.spec.inputs, NamesOf(call.loss.inputs), "inputs"));
  for (size_t i = 0; i < call.loss.inputs.size(); ++i) {
    const LossInput& input = call.loss.inputs[i];
    const absl::StatusOr<TensorType> type = input.type(call.predictions[0].type(), call.options);
    if (!type.ok()) return Annotate(type.status(), call.what());
    ASSIGN_OR_RETURN(const Value value, AddLossInput(graph, call, input.argument.name, call.spec.inputs[i], *type));
    inputs.push_back(value);
  }
  return inputs;
}

// Returns weights of samples that are 0 for padding rows.
absl::StatusOr<Value> WeightsOfRows(Builder& b, const Call& call, const Shape& losses) {
  // In a batch of one row every value belongs to that row, and nothing can be split.
  const bool holds_rows = call.rows.shape()[0] == 1 || (call.placement.ok() && call.placement->is_split(0));
  if (!holds_rows || losses.rank() == 0)
    return InvalidArgument() << call.what() << ", whose dimension 0 is not the batch, as uneven requires";
  const absl::StatusOr<Value> rows = RowsOf(b, call.rows, losses[0]);
  if (!rows.ok()) return Annotate(rows.status(), call.what());
  return b.Convert(*rows, call.predictions[0].dtype());
}

// Adds the inputs for weights. Nodes that compute weights are inserted before `before`.
absl::StatusOr<LossWeights> AddWeights(Graph& graph, const Call& call, const Shape& losses, Node* before) {
  LossWeights weights;
  const DType dtype = call.predictions[0].dtype();
  if (const auto name = call.options.find("sample_weight"); name != call.options.end()) {
    const TensorType type{dtype, Shape({losses[0]})};
    ASSIGN_OR_RETURN(weights.samples,
                     AddLossInput(graph, call, name->first, std::get<std::string>(name->second), type));
  }
  if (const auto name = call.options.find("element_weight"); name != call.options.end()) {
    const TensorType type{dtype, losses};
    ASSIGN_OR_RETURN(weights.elements,
                     AddLossInput(graph, call, name->first, std::get<std::string>(name->second), type));
  }
  if (!call.rows) return weights;
  Builder b(graph, before, "loss");
  ASSIGN_OR_RETURN(const Value rows, WeightsOfRows(b, call, losses));
  weights.samples = weights.samples ? b.Mul(weights.samples, rows) : rows;
  RETURN_IF_ERROR(b.status());
  return weights;
}

// Converts values of 16 bits to f32: 16 bits are not exact enough for formulas, and sums may overflow.
Value Widened(Builder& b, Value x) {
  return x && IsFloat(x.dtype()) && SizeOf(x.dtype()) == 2 ? b.Convert(x, DType::kF32) : x;
}

// Returns `x` with 0 where the weight is 0, so that a NaN or an invalid label there has no effect. Returns `x` itself
// if the weights do not apply to its elements.
Value ZeroWhereWeightIsZero(Builder& b, Value x, const LossWeights& weights) {
  const Shape& shape = x.shape();
  const auto masked = [&](Value value, Value weight, std::vector<int64_t> dims) {
    const Value is_nothing = b.Compare(weight, b.SplatLike(0, weight), "eq");
    return b.Select(b.Broadcast(is_nothing, shape, std::move(dims)), b.SplatLike(0, value), value);
  };
  if (weights.samples && shape.rank() > 0 && shape[0] == weights.samples.shape()[0])
    x = masked(x, weights.samples, {0});
  if (!weights.elements) return x;
  std::vector<int64_t> dims(static_cast<size_t>(shape.rank()));
  std::iota(dims.begin(), dims.end(), 0);
  if (weights.elements.shape() == shape) return masked(x, weights.elements, dims);
  if (shape.rank() < 2 || !(weights.elements.shape() == shape.Without({1}))) return x;
  dims.erase(dims.begin() + 1);  // the dimension of classes
  return masked(x, weights.elements, std::move(dims));
}

// Replaces `stand_in` by `given` with 0 where the weight is 0.
absl::Status Replace(Graph& graph, Value stand_in, Value given, const LossWeights& weights) {
  Builder b(graph, stand_in.node, "loss");
  const Value value = ZeroWhereWeightIsZero(b, given, weights);
  RETURN_IF_ERROR(b.status());
  graph.ReplaceUses(stand_in, value);
  graph.Erase(stand_in.node);
  return absl::OkStatus();
}

bool HasWeights(const Call& call) {
  return call.rows || call.options.contains("sample_weight") || call.options.contains("element_weight");
}

// Checks the call, adds the inputs of the loss and returns them.
absl::StatusOr<std::vector<Value>> CheckAndAddInputs(Graph& graph, const Call& call) {
  RETURN_IF_ERROR(CheckPrediction(call));
  if (call.options.contains("element_weight") && ReductionOf(call.options) == LossReduction::kBatchMean)
    return InvalidArgument() << call.name()
                             << ": batchmean divides by the number of samples, which element_weight does "
                             << "not change; use sample_weight";
  return AddInputs(graph, call);
}

// The losses of the elements, and their weights.
struct WeighedLosses {
  LossElements elements;
  LossWeights weights;
};

absl::StatusOr<WeighedLosses> AddElements(Graph& graph, Builder& b, const Call& call, std::vector<Value> inputs) {
  const bool has_weights = HasWeights(call);
  const std::vector<Value> given = inputs;
  if (has_weights) {  // weights have the shape of the losses; until that is known, stand-ins replace the inputs
    for (Value& value : inputs) value = b.Op("reshape", {value}, {{"shape", value.shape().dims()}});
    RETURN_IF_ERROR(b.status());
  }
  const std::vector<Value> stand_ins = inputs;
  std::vector<Value> predictions = call.predictions;
  for (Value& value : predictions) value = Widened(b, value);
  for (Value& value : inputs) value = Widened(b, value);
  const LossElements elements = call.loss.elements({b, std::move(predictions), std::move(inputs), call.options});
  RETURN_IF_ERROR(Annotate(b.status(), call.name()));
  ASSIGN_OR_RETURN(LossWeights weights,
                   AddWeights(graph, call, elements.losses.shape(), stand_ins.empty() ? nullptr : stand_ins[0].node));
  for (size_t i = 0; has_weights && i < given.size(); ++i)
    RETURN_IF_ERROR(Replace(graph, stand_ins[i], given[i], weights));
  return WeighedLosses{elements, {Widened(b, weights.samples), Widened(b, weights.elements)}};
}

absl::StatusOr<Value> AddReduced(Graph& graph, const Call& call) {
  ASSIGN_OR_RETURN(std::vector<Value> inputs, CheckAndAddInputs(graph, call));
  const LossReduction reduction = ReductionOf(call.options);
  Builder b(graph, nullptr, "loss");
  if (call.loss.whole && !HasWeights(call)) {
    const Value value = call.loss.whole({b, call.predictions, inputs, call.options}, reduction);
    RETURN_IF_ERROR(Annotate(b.status(), call.name()));
    if (value) return value;
  }
  ASSIGN_OR_RETURN(const WeighedLosses losses, AddElements(graph, b, call, std::move(inputs)));
  const Value value =
      b.Convert(ReduceLosses(b, losses.elements, losses.weights, reduction), call.predictions[0].dtype());
  RETURN_IF_ERROR(Annotate(b.status(), call.name()));
  return value;
}

absl::StatusOr<LossSum> AddSummed(Graph& graph, const Call& call) {
  ASSIGN_OR_RETURN(std::vector<Value> inputs, CheckAndAddInputs(graph, call));
  Builder b(graph, nullptr, "loss");
  ASSIGN_OR_RETURN(const WeighedLosses losses, AddElements(graph, b, call, std::move(inputs)));
  const LossSum sum = SumLosses(b, losses.elements, losses.weights, ReductionOf(call.options));
  RETURN_IF_ERROR(Annotate(b.status(), call.name()));
  return sum;
}

void AddReductionOptions(Loss& loss) {
  if (!loss.elements) return;
  const std::vector<OptionDef> shared = ReductionOptions(loss.has_batchmean);
  loss.options.insert(loss.options.end(), shared.begin(), shared.end());
}

const Loss* Find(const std::vector<Loss>& list, std::string_view name) {
  const auto it = std::find_if(list.begin(), list.end(), [&](const Loss& loss) { return loss.name == name; });
  return it == list.end() ? nullptr : &*it;
}

absl::StatusOr<AttributeMap> CompleteOptionsOf(const Loss& loss, const LossSpec& spec) {
  if (!std::isfinite(spec.factor))
    return InvalidArgument() << "loss " << loss.name << ": its factor is " << spec.factor
                             << ", expected a finite number";
  return CompleteOptions("loss " + loss.name, loss.options, spec.options);
}

absl::StatusOr<Call> CallOf(const Graph& graph, const Loss& loss, const LossSpec& spec, Value rows) {
  ASSIGN_OR_RETURN(AttributeMap options, CompleteOptionsOf(loss, spec));
  ASSIGN_OR_RETURN(std::vector<Value> predictions, FindPredictions(graph, loss, spec));
  Call call{loss,
            spec,
            std::move(options),
            std::move(predictions),
            loss.elements ? PlacementOfResult(graph, spec.predictions[0], std::string(kDataAxis)) : Placement(),
            rows};
  if (!loss.elements && rows)
    return InvalidArgument() << call.what() << ", which the model reduces itself, including rows that pad; uneven "
                             << "needs a loss of each row, and uneven=False takes full batches";
  return call;
}

absl::StatusOr<Value> TimesFactor(Graph& graph, const Call& call, Value value) {
  if (call.spec.factor == 1) return value;
  if (!IsFloat(value.dtype())) return InvalidArgument() << call.what() << ", expected floats";
  Builder b(graph, nullptr, "loss");
  value = b.Scale(value, call.spec.factor);
  RETURN_IF_ERROR(b.status());
  return value;
}

//===-- result: the one loss without a formula ------------------------------------------------------------------===//
Loss ResultItself() {
  return {.name = "result",
          .doc = "A float scalar that the model itself computes.",
          .predictions = {{"name", "the name of the result"}}};
}

}  // namespace

Formula LossContext::list(std::string_view option, int64_t length, std::string_view one_for_each) const {
  const Tensor& given = std::get<Tensor>(options_.find(option)->second);
  if (given.num_elements() == length) return {b_, b_.Constant(given.Converted(predictions_[0].dtype()))};
  b_.Fail(InvalidArgument() << option << " has " << given.num_elements()
                            << (given.num_elements() == 1 ? " number" : " numbers") << ", expected " << length
                            << ", one " << one_for_each);
  return {b_, Value()};
}

const std::vector<Loss>& AllLosses() {
  static const std::vector<Loss> all = [] {
    std::vector<Loss> list = {
        losses::SoftmaxCrossEntropy(),
        losses::NegativeLogLikelihood(),
        losses::BinaryCrossEntropyWithLogits(),
        losses::KlDiv(),
        losses::MeanSquaredError(),
        losses::L1(),
        losses::Huber(),
        losses::SmoothL1(),
        losses::HingeEmbedding(),
        losses::CosineEmbedding(),
        losses::TripletMargin(),
        losses::Ctc(),
        ResultItself(),
    };
    for (Loss& loss : list) AddReductionOptions(loss);
    return list;
  }();
  return all;
}

const std::vector<Loss>& AllMetrics() {
  static const std::vector<Loss> all = [] {
    std::vector<Loss> list = {losses::Accuracy()};
    for (Loss& loss : list) AddReductionOptions(loss);
    return list;
  }();
  return all;
}

absl::StatusOr<const Loss*> FindLoss(std::string_view name) {
  if (const Loss* const loss = Find(AllLosses(), name)) return loss;
  std::vector<std::string> names;
  for (const Loss& loss : AllLosses()) names.push_back(loss.name);
  return NotFound() << "unknown loss '" << name << "'; there are " << Joined(names);
}

absl::StatusOr<AttributeMap> ResolveLoss(const LossSpec& spec) {
  ASSIGN_OR_RETURN(const Loss* const loss, FindLoss(spec.name));
  return CompleteOptionsOf(*loss, spec);
}

absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec, Value rows) {
  ASSIGN_OR_RETURN(const Loss* const loss, FindLoss(spec.name));
  ASSIGN_OR_RETURN(const Call call, CallOf(graph, *loss, spec, rows));
  Value value = call.predictions[0];
  if (loss->elements) {
    ASSIGN_OR_RETURN(value, AddReduced(graph, call));
  }
  return TimesFactor(graph, call, value);
}

absl::StatusOr<LossSum> AddLossSum(Graph& graph, const LossSpec& spec, Value rows) {
  const Loss* loss = Find(AllMetrics(), spec.name);
  if (loss == nullptr) {
    ASSIGN_OR_RETURN(loss, FindLoss(spec.name));
  }
  ASSIGN_OR_RETURN(const Call call, CallOf(graph, *loss, spec, rows));
  LossSum sum{call.predictions[0], {}};
  if (loss->elements) {
    ASSIGN_OR_RETURN(sum, AddSummed(graph, call));
  } else if (sum.sum.shape().rank() > 0 || !IsFloat(sum.sum.dtype())) {
    return InvalidArgument() << call.what() << ", expected a float scalar";
  } else {  // one number for each batch
    Builder b(graph, nullptr, "loss");
    sum.count = b.SplatLike(1, sum.sum);
    RETURN_IF_ERROR(b.status());
  }
  ASSIGN_OR_RETURN(sum.sum, TimesFactor(graph, call, sum.sum));
  return sum;
}

absl::StatusOr<Value> AddLosses(Graph& graph, const std::vector<LossSpec>& specs, Value rows) {
  if (specs.empty()) return InvalidArgument() << "there is no loss";
  Builder b(graph, nullptr, "loss");
  Value sum;
  for (const LossSpec& spec : specs) {
    ASSIGN_OR_RETURN(const Value value, AddLoss(graph, spec, rows));
    if (sum && value.type() != sum.type()) {
      return InvalidArgument() << "loss " << spec.name << " of result " << spec.predictions[0] << " is " << value.type()
                               << ", and the losses before it are " << sum.type();
    }
    sum = sum ? b.Add(sum, value) : value;
    RETURN_IF_ERROR(b.status());
  }
  return sum;
}

}  // namespace lockstep::passes
