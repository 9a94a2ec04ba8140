#include "test/random_graph/draft.h"

#include <algorithm>
#include <cmath>

#include "core/interpreter.h"
#include "core/op_def.h"

namespace lockstep {

Draft::Draft(uint64_t seed, const RandomGraphOptions& options)
    : random_(seed), options_(options), graph_("random"), b_(graph_) {}

// --- Inputs ----------------------------------------------------------------------------------------------------------

Tensor Draft::RandomTensor(const TensorType& type, double low, double high) {
  Tensor tensor(type);
  const bool coarse = random_.Chance(30);
  DispatchDType(type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (T& element : tensor.mutable_data<T>()) {
      double number = IsFloat(type.dtype) ? random_.In(low, high) : std::floor(random_.In(low, high + 1));
      if (coarse && IsFloat(type.dtype)) number = std::max(low, std::floor(number * 2) / 2);
      element = ConvertElement<T>(number);
    }
  });
  return tensor;
}

Value Draft::AddInput(Tensor tensor) {
  const bool is_state = random_.Chance(30);
  PlacementMap placements = RandomPlacements(tensor.shape(), is_state);
  return AddInput(std::move(tensor), is_state, std::move(placements));
}

Value Draft::AddInput(Tensor tensor, bool is_state, PlacementMap placements) {
  const absl::StatusOr<Value> value =
      graph_.AddInput("x" + std::to_string(inputs_.size()), tensor.type(), is_state, std::move(placements));
  LOCKSTEP_CHECK(value.ok()) << value.status();
  inputs_.push_back(tensor);
  values_.push_back(*value);
  const bool is_exact = !IsFloat(tensor.dtype()) || IsCoarse(tensor);
  known_.emplace(*value, KnownTensor{std::move(tensor), is_exact});
  return *value;
}

PlacementMap Draft::RandomPlacements(const Shape& shape, bool is_state) {
  PlacementMap placements;
  const bool is_batch = shape.rank() > 0 && options_.batch > 0 && shape[0] == options_.batch;
  // A split state needs a split next value, and not every value of its type is split.
  if (is_batch && !is_state && random_.Chance(80)) placements["data"] = Placement::Split(0);
  if (options_.model > 0 && random_.Chance(80)) SplitAlongModel(shape, placements);
  return placements;
}

void Draft::SplitAlongModel(const Shape& shape, PlacementMap& placements) {
  std::vector<int64_t> dims;
  for (int64_t dim = placements.empty() ? 0 : 1; dim < shape.rank(); ++dim) {
    if (shape[dim] % options_.model == 0) dims.push_back(dim);
  }
  if (!dims.empty()) placements["model"] = Placement::Split(random_.Of(dims));
}

double Draft::RandomElement(DType dtype) {
  if (dtype == DType::kBool) return static_cast<double>(random_.Below(2));
  if (!IsFloat(dtype)) return std::floor(random_.In(IsSigned(dtype) ? -5 : 0, 6));
  return random_.In(-2, 2);
}

int64_t Draft::RandomExtent() {
  if (options_.model == 0 || random_.Chance(20)) return 1 + random_.Below(options_.max_extent);
  return options_.model * (1 + random_.Below(options_.max_extent / options_.model));
}

Shape Draft::RandomShape() {
  std::vector<int64_t> extents;
  const int64_t rank = random_.Below(4);
  for (int64_t i = 0; i < rank; ++i) extents.push_back(RandomExtent());
  if (options_.batch > 0 && rank > 0 && random_.Chance(60)) extents[0] = options_.batch;
  return Shape(extents);
}

Value Draft::Constant(const TensorType& type) {
  static const std::vector<double> numbers = {0, 1, -1, 2, 0.5, 4, 0.3, 3};
  double number = random_.Of(numbers);
  if (!IsFloat(type.dtype)) number = type.dtype == DType::kBool ? number != 0 : std::trunc(number);
  if (!IsSigned(type.dtype)) number = std::abs(number);
  Value value;
  if (random_.Chance(80)) {
    value = b_.Splat(number, type);
  } else {
    Tensor tensor(type);
    DispatchDType(type.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (T& element : tensor.mutable_data<T>()) element = ConvertElement<T>(RandomElement(type.dtype));
    });
    value = b_.Constant(std::move(tensor));
  }
  KeepSteadyNodes();
  return value;
}

// --- Choosing operands -----------------------------------------------------------------------------------------------

Value Draft::Pick(const Filter& filter) {
  std::vector<Value> fitting;
  for (Value value : values_) {
    if (filter(value)) fitting.push_back(value);
  }
  if (fitting.empty()) return Value();
  // Often one of the latest values, so that chains grow.
  if (random_.Chance(50))
    return fitting[fitting.size() - 1 -
                   static_cast<size_t>(random_.Below(std::min<int64_t>(3, static_cast<int64_t>(fitting.size()))))];
  return random_.Of(fitting);
}

Value Draft::PickOf(const TensorType& type) {
  return Pick([&](Value value) { return value.type() == type; });
}

Value Draft::PickNumber() {
  return Pick([](Value value) { return value.dtype() != DType::kBool; });
}

// --- Growing ---------------------------------------------------------------------------------------------------------

bool Draft::Keep(Node& node) {
  std::vector<const KnownTensor*> operands;
  std::vector<const Tensor*> tensors;
  for (Value operand : node.operands()) {
    const auto known = known_.find(operand);
    if (known == known_.end()) return false;
    operands.push_back(&known->second);
    tensors.push_back(&known->second.tensor);
  }
  absl::StatusOr<std::vector<Tensor>> results = EvaluateNode(node, tensors);
  if (!results.ok() || !std::all_of(results->begin(), results->end(), IsTame) || !IsSteady(node, operands, *results))
    return false;
  for (size_t i = 0; i < results->size(); ++i) {
    const bool is_exact = IsExact(node, operands, (*results)[i]);
    values_.push_back(node.result(i));
    known_.emplace(node.result(i), KnownTensor{std::move((*results)[i]), is_exact});
  }
  return true;
}

void Draft::KeepSteadyNodes() {
  LOCKSTEP_CHECK(b_.status().ok()) << b_.status();
  std::vector<Node*> erased;
  for (Node& node : graph_.nodes()) {
    if (!Has(node.result()) && !Keep(node)) erased.push_back(&node);
  }
  for (auto it = erased.rbegin(); it != erased.rend(); ++it) graph_.Erase(*it);
}

RandomProgram Draft::Finish() {
  for (Node* node : of_ranks_) {
    const int64_t groups = node->attr<int64_t>("groups") / std::max<int64_t>(options_.data, 1);
    for (const absl::Status& set :
         {graph_.SetAttribute(node, "groups", groups), graph_.SetAttribute(node, "statistics", std::string("rank"))})
      LOCKSTEP_CHECK(set.ok()) << set;
  }
  for (const Input& input : graph_.inputs()) {
    if (!input.is_state) continue;
    const auto next = next_.find(input.value);
    const bool is_updated = next != next_.end() && Has(next->second) && !random_.Chance(10);
    const Value value = is_updated ? next->second : PickOf(input.value.type());
    LOCKSTEP_CHECK(graph_.AddStateResult(input.name(), value).ok()) << input.name();
  }
  int64_t count = 0;
  for (Value value : values_) {
    if (value.node->is_input() || (graph_.IsUsed(value) && !random_.Chance(10)) || random_.Chance(10)) continue;
    LOCKSTEP_CHECK(graph_.AddResult("y" + std::to_string(count++), value).ok()) << count;
  }
  return {std::move(graph_), std::move(inputs_)};
}

}  // namespace lockstep
