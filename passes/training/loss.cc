#include "passes/training/loss.h"

#include <algorithm>
#include <numeric>

#include "passes/distribute/distribute.h"

namespace lockstep::passes {
namespace {

absl::StatusOr<Value> Target(Graph& graph, const std::string& name, const TensorType& type,
                             const PlacementMap& placements) {
  if (const Input* input = graph.FindInput(name)) {
    if (input->value.type() != type) {
      return InvalidArgument() << "loss target %" << name << " is " << input->value.type() << ", expected " << type;
    }
    return input->value;
  }
  return graph.AddInput(name, type, false, placements);
}

// Whether a data input is cut by rows, as many as `shape` has.
bool IsBatch(const Graph& graph, const Shape& shape) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(), [&](const Input& input) {
    return !input.is_state && input.value.placement(kDataAxis).is_split(0) && shape.rank() > 0 &&
           input.value.shape()[0] == shape[0];
  });
}

// The target is shared as the prediction is, which the model's inputs and ops decide: of logits that are rows of a
// batch of sentences, [batch * words, classes], each rank has those of its sentences, and takes the labels of those.
// Where every rank computes the whole prediction, or nobody knows, labels are cut as the batch is.
PlacementMap TargetPlacement(const Graph& graph, const std::string& result, const TensorType& type) {
  const Shape& shape = graph.FindResult(result)->value.shape();
  const auto along_data = [](int64_t dim) { return PlacementMap{{std::string(kDataAxis), Placement::Split(dim)}}; };
  const absl::StatusOr<Placement> prediction = PlacementOfResult(graph, result, std::string(kDataAxis));
  if (!prediction.ok() || !prediction->is_split()) return IsBatch(graph, shape) ? along_data(0) : PlacementMap{};
  const int64_t dim = prediction->dim();
  const bool is_same_dim = dim == 0 || type.shape.rank() == shape.rank();  // else the target lacks one, of classes
  return is_same_dim && type.shape[dim] == shape[dim] ? along_data(dim) : PlacementMap{};
}

absl::StatusOr<Value> Prediction(const Graph& graph, const std::string& name) {
  if (const Result* result = graph.FindResult(name)) return result->value;
  std::vector<std::string> names;
  for (const Result& r : graph.results()) {
    if (!r.is_state) names.push_back(r.name);
  }
  return NotFound() << "loss: the model has no result '" << name << "'; it has: " << Joined(names);
}

}  // namespace

Value LossContext::Mean(Value x) const {
  if (!x) return x;
  std::vector<int64_t> dims(static_cast<size_t>(x.shape().rank()));
  std::iota(dims.begin(), dims.end(), 0);
  return b.ReduceMean(x, dims);
}

absl::StatusOr<const Loss*> FindLoss(std::string_view name) {
  std::vector<std::string> names;
  for (const Loss& loss : AllLosses()) {
    if (loss.name == name) return &loss;
    names.push_back(loss.name);
  }
  return NotFound() << "unknown loss '" << name << "'; there are " << Joined(names);
}

absl::StatusOr<AttributeMap> ResolveLoss(const LossSpec& spec) {
  ASSIGN_OR_RETURN(const Loss* const loss, FindLoss(spec.name));
  return CompleteOptions("loss " + loss->name, loss->options, spec.options);
}

absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec) {
  ASSIGN_OR_RETURN(const Loss* const loss, FindLoss(spec.name));
  ASSIGN_OR_RETURN(const AttributeMap options, ResolveLoss(spec));
  ASSIGN_OR_RETURN(const Value prediction, Prediction(graph, spec.prediction));
  Value target;
  if (loss->target_type) {
    const std::string what = "loss " + loss->name + ": result " + spec.prediction + " is ";
    if (!IsFloat(prediction.dtype())) return InvalidArgument() << what << prediction.type() << ", expected floats";
    if (prediction.shape().rank() < 1) return InvalidArgument() << what << "the scalar " << prediction.type();
    absl::StatusOr<TensorType> type = loss->target_type(prediction.type());
    if (!type.ok()) return Annotate(type.status(), what + prediction.type().ToString());
    ASSIGN_OR_RETURN(target, Target(graph, spec.target, *type, TargetPlacement(graph, spec.prediction, *type)));
  }
  Builder b(graph, nullptr, "loss");
  const Value value = loss->build({b, prediction, target, options});
  RETURN_IF_ERROR(b.status());
  return value;
}

}  // namespace lockstep::passes
