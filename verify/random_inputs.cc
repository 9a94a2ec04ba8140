#include "verify/random_inputs.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "core/op_def.h"
#include "passes/training/uneven.h"

namespace lockstep::verify {
namespace {

constexpr int64_t kLargestInteger = 4;  // of an input that no op restricts

std::vector<int64_t> LimitsOfIntegers(const Graph& graph);

// For each operand of the node, one more than the largest integer that it accepts: a position, a class.
std::vector<int64_t> LimitsOfOperands(const Node& node) {
  std::vector<int64_t> limits(node.operands().size(), kLargestInteger + 1);
  const auto extent = [&](int64_t dim) { return node.operand(0).shape()[dim]; };
  if (node.Is("gather") || node.Is("scatter")) limits[1] = extent(node.attr<int64_t>("dim"));
  if (node.Is("scatter_sum")) limits[0] = node.attr<int64_t>("size");
  if (node.Is("softmax_cross_entropy")) limits[1] = extent(1);
  if (node.Is("within")) limits[0] = node.attr<int64_t>("high");
  for (const auto& [name, value] : node.attributes()) {
    if (const Region* region = std::get_if<Region>(&value)) limits = LimitsOfIntegers(region->graph());
  }
  return limits;
}

// For each input of a graph, one more than the largest integer that all ops accept which use it, or integers made of
// it.
std::vector<int64_t> LimitsOfIntegers(const Graph& graph) {
  std::unordered_map<Value, std::set<size_t>, ValueHash> made_of;  // the inputs that a value of integers is made of
  std::vector<int64_t> limits(graph.inputs().size(), kLargestInteger + 1);
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    if (IsInteger(graph.inputs()[i].value.dtype())) made_of[graph.inputs()[i].value] = {i};
  }
  for (const Node& node : graph.nodes()) {
    std::set<size_t> inputs;
    const std::vector<int64_t> of_operands = LimitsOfOperands(node);
    for (size_t i = 0; i < node.operands().size(); ++i) {
      const std::set<size_t>& of_operand = made_of[node.operand(i)];
      for (size_t input : of_operand) limits[input] = std::min(limits[input], of_operands[i]);
      inputs.insert(of_operand.begin(), of_operand.end());
    }
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (IsInteger(node.type(i).dtype)) made_of[const_cast<Node&>(node).result(i)] = inputs;
    }
  }
  return limits;
}

// Which rows of a batch that need not be full are rows, 1, and which pad, 0: the first is one.
void CountRows(ExactTensor& rows) {
  for (size_t i = 0; i < rows.numbers().size(); ++i)
    rows.numbers()[i] = Exact::Of(i == 0 ? 1 : static_cast<int64_t>(rows.numbers()[i].Hash() % 2));
}

}  // namespace

ExactTensor RandomTensor(const TensorType& type, int64_t limit, uint64_t seed) {
  ExactTensor tensor(type);
  if (tensor.is_exact()) {
    for (Exact& number : tensor.numbers()) number = Exact::Random(seed = MixedBits(seed));
    return tensor;
  }
  Tensor wide({DType::kF64, type.shape});
  if (type.dtype == DType::kBool) limit = 2;
  for (double& integer : wide.mutable_data<double>())
    integer = static_cast<double>((seed = MixedBits(seed)) % static_cast<uint64_t>(std::max<int64_t>(limit, 1)));
  tensor.integers() = wide.Converted(type.dtype);
  return tensor;
}

std::vector<ExactTensor> RandomInputs(const Graph& graph, uint64_t seed) {
  const std::vector<int64_t> limits = LimitsOfIntegers(graph);
  std::vector<ExactTensor> inputs;
  for (size_t i = 0; i < limits.size(); ++i) {
    const Input& input = graph.inputs()[i];
    seed = MixedBits(seed);
    inputs.push_back(input.setting ? ExactTensor::Of(Tensor::Scalar(DType::kF64, input.setting->value))
                                   : RandomTensor(input.value.type(), limits[i], seed));
    if (input.is_data() && input.name() == passes::kRows) CountRows(inputs.back());
  }
  return inputs;
}

}  // namespace lockstep::verify
