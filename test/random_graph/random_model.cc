#include "test/random_graph/random_model.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "core/op_def.h"
#include "test/op_cases/op_case_graph.h"
#include "test/random_graph/draft.h"
#include "test/random_graph/op_nodes.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;
using ValueSet = std::unordered_set<Value, ValueHash>;

bool IsOfRows(const Shape& shape) { return shape.rank() > 0 && shape[0] > 0 && shape[0] % kModelRows == 0; }

bool IsWideFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

class ModelGenerator {
 public:
  explicit ModelGenerator(uint64_t seed)
      : draft_(seed, {.max_extent = 4, .batch = kModelRows}), random_(draft_.random()), b_(draft_.b()) {}

  std::optional<RandomModel> Make() {
    dtype_ = random_.Chance(70) ? DType::kF32 : DType::kF64;
    AddBatch();
    if (random_.Chance(30)) AddBatch();
    for (int64_t layers = 3 + random_.Below(12); layers > 0; --layers) {
      AddLayer();
      draft_.KeepSteadyNodes();
    }
    return Finish();
  }

 private:
  void AddBatch() {
    switch (random_.Below(4)) {
      case 0: return Batch({dtype_, {kModelRows, Extent()}}, -2, 2);
      case 1: return Batch({dtype_, {kModelRows, Extent(), Extent()}}, -2, 2);
      case 2: return Batch({dtype_, {kModelRows, 1 + random_.Below(2), 4, 4}}, -2, 2);
      default: return Batch({DType::kI64, {kModelRows, Extent()}}, 0, kWords - 1);
    }
  }

  void Batch(const TensorType& type, double low, double high) {
    const Value batch = draft_.AddInput(draft_.RandomTensor(type, low, high), false, {{"data", Placement::Split(0)}});
    if (!IsFloat(type.dtype)) Embedding(batch);
    draft_.KeepSteadyNodes();
  }

  int64_t Extent() { return 1 + random_.Below(4); }

  Value State(const Shape& shape, double low = -1, double high = 1) {
    return draft_.AddInput(draft_.RandomTensor({dtype_, shape}, low, high), /*is_state=*/true, {});
  }

  Value PickRows(int64_t min_rank, int64_t max_rank) {
    return draft_.Pick([&](Value value) {
      const int64_t rank = value.shape().rank();
      return value.dtype() == dtype_ && IsOfRows(value.shape()) && rank >= min_rank && rank <= max_rank;
    });
  }

  void Embedding(Value words) { b_.Gather(State({kWords, Extent()}), words, 0); }

  void Dense() {
    const Value x = PickRows(2, 3);
    if (x) b_.MatMul(x, State({x.shape()[x.shape().rank() - 1], Extent()}));
  }

  // A bias or a scale for each channel, or for each element of the last dimension.
  void Affine() {
    const Value x = PickRows(2, 4);
    if (!x) return;
    const int64_t dim = random_.Chance(50) ? 1 : x.shape().rank() - 1;
    const Value of_channels = b_.BroadcastAlong(State({x.shape()[dim]}), x.shape(), dim);
    if (random_.Chance(50)) b_.Add(x, of_channels);
    else b_.Mul(x, of_channels);
  }

  void Normalize() {
    const Value x = PickRows(2, 4);
    if (!x) return;
    const Shape channels({x.shape()[1]});
    const Value scale = State(channels, 0.5, 1.5), bias = State(channels);
    const Value mean = State(channels, -0.5, 0.5), variance = State(channels, 0.5, 1.5);
    b_.Op("batch_norm_inference", {x, scale, bias, mean, variance}, {{"epsilon", 1e-5}});
  }

  void Convolve() {
    const Value x = PickRows(4, 4);
    if (!x || x.shape()[2] < 2 || x.shape()[3] < 2) return;
    const Ints ones = {1, 1}, zeros = {0, 0};
    b_.Op("convolution", {x, State({1 + random_.Below(3), x.shape()[1], 2, 2})},
          {{"stride", ones},
           {"padding_low", random_.Chance(50) ? ones : zeros},
           {"padding_high", zeros},
           {"dilation", ones}});
  }

  void Unary() {
    static const std::vector<std::string> ops = ElementwiseOpsOfFloats(1);
    if (const Value x = PickRows(1, 4)) b_.Unary(random_.Of(ops), x);
  }

  void Binary() {
    static const std::vector<std::string> ops = {"add", "sub", "mul", "div", "max"};
    const Value x = PickRows(1, 4);
    if (x) b_.Op(random_.Of(ops), {x, draft_.PickOf(x.type())});
  }

  // A softmax within each row.
  void Softmax() {
    const Value x = PickRows(2, 4);
    if (x)
      b_.Op(random_.Chance(50) ? "softmax" : "log_softmax", {x}, {{"dim", 1 + random_.Below(x.shape().rank() - 1)}});
  }

  void Reduce() {
    const Value x = PickRows(2, 4);
    if (!x) return;
    const int64_t dim = 1 + random_.Below(x.shape().rank() - 1);
    if (random_.Chance(50)) b_.ReduceMean(x, {dim});
    else b_.ReduceMax(x, {dim});
  }

  // Makes the words of a sentence rows of their own, or flattens a row to one dimension.
  void Reshape() {
    const Value x = PickRows(3, 4);
    if (!x) return;
    Ints extents = x.shape().dims();
    if (random_.Chance(50)) extents[0] *= extents[1], extents.erase(extents.begin() + 1);
    else extents = {extents[0], x.shape().num_elements() / extents[0]};
    b_.Reshape(x, Shape(extents));
  }

  void Transpose() {
    const Value x = PickRows(3, 4);
    if (!x) return;
    Ints permutation;
    for (int64_t i = 0; i < x.shape().rank(); ++i) permutation.push_back(i);
    std::swap(permutation[1], permutation[2]);
    b_.Transpose(x, permutation);
  }

  void AddLayer() {
    const int64_t kind = random_.Below(100);
    if (kind < 20) Dense();
    else if (kind < 30) Affine();
    else if (kind < 40) Normalize();
    else if (kind < 45) Convolve();
    else if (kind < 58) Unary();
    else if (kind < 66) Binary();
    else if (kind < 71) Softmax();
    else if (kind < 76) Reduce();
    else if (kind < 80) Reshape();
    else if (kind < 83) Transpose();
    else AddNodeOfRow(draft_);
  }

  // The last value that depends on a batch and, through floats, on a state.
  Value Prediction() {
    ValueSet of_batch, of_state;
    for (const Input& input : draft_.graph().inputs()) {
      if (input.is_data() && input.value.placement("data").is_split(0)) of_batch.insert(input.value);
      if (input.is_state && IsFloat(input.value.dtype())) of_state.insert(input.value);
    }
    Value prediction;
    for (Node& node : draft_.graph().nodes()) {
      const auto uses = [&](const ValueSet& set) {
        return std::any_of(node.operands().begin(), node.operands().end(), [&](Value x) { return set.contains(x); });
      };
      const bool is_of_batch = uses(of_batch), is_of_state = uses(of_state);
      for (size_t i = 0; i < node.num_results(); ++i) {
        const Value value = node.result(i);
        if (is_of_batch) of_batch.insert(value);
        if (is_of_state && IsFloat(value.dtype())) of_state.insert(value);
        if (of_batch.contains(value) && of_state.contains(value) && IsOfRows(value.shape()) &&
            IsWideFloat(value.dtype()))
          prediction = value;
      }
    }
    return prediction;
  }

  std::optional<RandomModel> Finish() {
    const Value prediction = Prediction();
    if (!prediction) return std::nullopt;
    std::map<std::string, Tensor> inputs;
    for (const Input& input : draft_.graph().inputs()) inputs.emplace(input.name(), draft_.TensorOf(input.value));
    LOCKSTEP_CHECK(draft_.graph().AddResult("prediction", prediction).ok()) << prediction.name();
    return RandomModel{std::move(draft_.graph()), std::move(inputs)};
  }

  static constexpr int64_t kWords = 5;  // size of the vocabulary

  Draft draft_;
  Random& random_;
  Builder& b_;
  DType dtype_ = DType::kF32;
};

// --- Other batches ---------------------------------------------------------------------------------------------------

int64_t Scaled(int64_t extent, int64_t rows) {
  return extent > 0 && extent % kModelRows == 0 ? extent / kModelRows * rows : extent;
}

Ints Scaled(Ints extents, int64_t rows) {
  for (int64_t& extent : extents) extent = Scaled(extent, rows);
  return extents;
}

TensorType Scaled(const TensorType& type, int64_t rows) { return {type.dtype, Shape(Scaled(type.shape.dims(), rows))}; }

absl::StatusOr<Attribute> Scaled(const Node& node, const Attribute& attribute, int64_t rows) {
  if (const Ints* const ints = std::get_if<Ints>(&attribute)) return Attribute(Scaled(*ints, rows));
  if (const int64_t* const number = std::get_if<int64_t>(&attribute)) return Attribute(Scaled(*number, rows));
  const Tensor* const tensor = std::get_if<Tensor>(&attribute);
  if (tensor == nullptr || Scaled(tensor->type(), rows) == tensor->type()) return attribute;
  return InvalidArgument() << node.Describe() << " has a value for each row";
}

absl::Status AddScaled(const Input& input, int64_t rows, Graph& graph, ValueMap& map) {
  const TensorType type = Scaled(input.value.type(), rows);
  if (type != input.value.type() && !(input.is_data() && input.value.placement("data").is_split(0)))
    return InvalidArgument() << "input %" << input.name() << " " << input.value.type() << " is not a batch";
  ASSIGN_OR_RETURN(map[input.value], graph.AddInput(input.name(), type, input.is_state, input.placements()));
  return absl::OkStatus();
}

absl::Status AddScaled(Node& node, int64_t rows, Graph& graph, ValueMap& map) {
  NodeSpec spec = CopyOf(node, map);
  for (auto& [name, attribute] : spec.attributes) {
    ASSIGN_OR_RETURN(attribute, Scaled(node, attribute, rows));
  }
  ASSIGN_OR_RETURN(Node* const made, graph.Insert(std::move(spec)));
  for (size_t i = 0; i < node.num_results(); ++i) {
    if (made->type(i) != Scaled(node.type(i), rows))
      return InvalidArgument() << node.Describe() << " is " << node.type(i) << " and becomes " << made->type(i);
    map[node.result(i)] = made->result(i);
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<RandomModel> MakeRandomModel(uint64_t seed) { return ModelGenerator(seed).Make(); }

absl::StatusOr<Graph> WithRows(const Graph& model, int64_t rows) {
  Graph from = model.Clone();
  std::unordered_set<const Node*> needed;
  for (const Result& result : from.results()) needed.insert(result.value.node);
  for (auto it = from.nodes().rbegin(); it != from.nodes().rend(); ++it) {
    if (!needed.contains(&*it)) continue;
    for (Value operand : it->operands()) needed.insert(operand.node);
  }
  Graph graph(from.name());
  ValueMap map;
  for (const Input& input : from.inputs()) {
    if (needed.contains(input.value.node)) RETURN_IF_ERROR(AddScaled(input, rows, graph, map));
  }
  for (Node& node : from.nodes()) {
    if (needed.contains(&node)) RETURN_IF_ERROR(AddScaled(node, rows, graph, map));
  }
  for (const Result& result : from.results()) RETURN_IF_ERROR(graph.AddResult(result.name, map.at(result.value)));
  return graph;
}

Tensor TakeRows(const Tensor& batch, const std::vector<int64_t>& rows) {
  LOCKSTEP_CHECK(IsOfRows(batch.shape())) << batch.type().ToString();
  Ints extents = batch.shape().dims();
  extents[0] = extents[0] / kModelRows * static_cast<int64_t>(rows.size());
  Tensor taken({batch.dtype(), Shape(extents)});
  const size_t row_bytes = batch.num_bytes() / kModelRows;
  for (size_t i = 0; row_bytes > 0 && i < rows.size(); ++i)
    std::memcpy(taken.mutable_bytes() + i * row_bytes, batch.bytes() + static_cast<size_t>(rows[i]) * row_bytes,
                row_bytes);
  return taken;
}

}  // namespace lockstep
