#include "test/random_graph/steady.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/interpreter.h"
#include "core/op_def.h"
#include "test/random_graph/random.h"

namespace lockstep {
namespace {

bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// The minimal distance of a value of this dtype from a jump, so that rounding cannot cross it.
double Margin(DType dtype) {
  if (IsHalf(dtype)) return 0.1;
  return IsFloat(dtype) ? 1e-3 : 0.5;
}

bool NearlyEqual(const Tensor& a, const Tensor& b) {
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    if (std::abs(a.At(i) - b.At(i)) < Margin(a.dtype())) return true;
  }
  return false;
}

double LargestMagnitude(const Tensor& tensor) { return std::max(-SmallestOf(tensor), LargestOf(tensor)); }

bool MayBeRounded(const KnownTensor& known) { return IsFloat(known.tensor.dtype()) && !known.is_exact; }

// Moves each element up or down by the margin of its dtype.
Tensor Moved(const Tensor& tensor, Random& random) {
  Tensor moved(tensor.type());
  DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t i = 0;
    for (T& element : moved.mutable_data<T>()) {
      const double by = Margin(tensor.dtype()) * std::max(1.0, std::abs(tensor.At(i)));
      element = ConvertElement<T>(tensor.At(i++) + (random.Chance(50) ? by : -by));
    }
  });
  return moved;
}

// True if `moved` differs from `result` by no more than `margin` times the amplification that an op may have.
bool MovedLittle(const Tensor& result, const Tensor& moved, double margin) {
  if (!IsFloat(result.dtype())) return moved == result;
  const double gain = margin > 0.01 ? 4 : 20;  // 16-bit results have few digits to lose
  const double allowed = gain * margin * std::max(1.0, LargestMagnitude(result));
  for (int64_t i = 0; i < result.num_elements(); ++i) {
    if (!(std::abs(moved.At(i) - result.At(i)) <= allowed)) return false;
  }
  return true;
}

// Tests an op without known properties: compares its results when operands move up or down.
bool WithstandsRounding(const Node& node, const std::vector<const KnownTensor*>& operands,
                        const std::vector<Tensor>& results) {
  constexpr int kTrials = 6;  // in half of the trials, two almost equal elements move apart
  double margin = 0;
  for (const KnownTensor* operand : operands) {
    if (MayBeRounded(*operand)) margin = std::max(margin, Margin(operand->tensor.dtype()));
  }
  if (margin == 0) return true;
  Random random(static_cast<uint64_t>(node.id()));
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<Tensor> moved;
    for (const KnownTensor* operand : operands)
      moved.push_back(MayBeRounded(*operand) ? Moved(operand->tensor, random) : operand->tensor);
    std::vector<const Tensor*> pointers;
    for (const Tensor& tensor : moved) pointers.push_back(&tensor);
    const absl::StatusOr<std::vector<Tensor>> found = EvaluateNode(node, pointers);
    if (!found.ok()) return false;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!MovedLittle(results[i], (*found)[i], margin)) return false;
    }
  }
  return true;
}

// True if the op, if it decides between numbers (a comparison, a step, a conversion to integers), does so with a
// margin.
bool DecidesClearly(const Node& node, const std::vector<const KnownTensor*>& operands) {
  if (operands.empty() ||
      std::none_of(operands.begin(), operands.end(), [](const KnownTensor* operand) { return MayBeRounded(*operand); }))
    return true;
  if (node.Is("bitcast")) return false;  // its result shows all bits
  const Tensor& x = operands[0]->tensor;
  const bool is_decision = IsFloat(x.dtype()) && !IsFloat(node.type().dtype);
  if (is_decision && operands.size() == 2)
    return node.operand(0) == node.operand(1) || !NearlyEqual(x, operands[1]->tensor);
  return !(is_decision || node.op().has_trait(kSteps)) || !NearJump(x);
}

}  // namespace

bool IsTame(const Tensor& tensor) {
  if (tensor.num_elements() > kMostElements) return false;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (!(std::abs(tensor.At(i)) < kTooLarge)) return false;
  }
  return true;
}

bool IsCoarse(const Tensor& tensor) {
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    const double eighths = tensor.At(i) * 8;
    if (eighths != std::floor(eighths) || std::abs(eighths) > 128) return false;
  }
  return true;
}

bool IsExact(const Node& node, const std::vector<const KnownTensor*>& operands, const Tensor& result) {
  if (!IsFloat(result.dtype())) return true;
  const OpDef& op = node.op();
  const bool keeps = op.has_trait(kMovement) || op.has_trait(kGenerator) || op.reduction() == ReduceKind::kMax ||
                     op.reduction() == ReduceKind::kMin || (op.has_trait(kElementwise) && op.f32_ulps() == 0);
  return keeps && IsCoarse(result) &&
         std::all_of(operands.begin(), operands.end(), [](const KnownTensor* operand) { return operand->is_exact; });
}

bool IsSteady(const Node& node, const std::vector<const KnownTensor*>& operands, const std::vector<Tensor>& results) {
  const OpDef& op = node.op();
  std::vector<ValueRange> ranges;
  for (const KnownTensor* operand : operands)
    ranges.push_back({SmallestOf(operand->tensor), LargestOf(operand->tensor)});
  if (!op.InDomain(ranges)) return false;
  if (op.has_trait(kElementwise)) return DecidesClearly(node, operands);
  return !op.has_trait(kOpaque) || WithstandsRounding(node, operands, results);
}

bool IsSteadyProgram(const Graph& graph, const std::vector<Tensor>& inputs) {
  std::map<std::string, KnownTensor> known;  // by name
  for (size_t i = 0; i < inputs.size(); ++i)
    known[graph.inputs()[i].name()] = {inputs[i], !IsFloat(inputs[i].dtype()) || IsCoarse(inputs[i])};
  for (const Node& node : graph.nodes()) {
    std::vector<const KnownTensor*> operands;
    std::vector<const Tensor*> tensors;
    for (Value operand : node.operands()) {
      operands.push_back(&known.at(operand.name()));
      tensors.push_back(&operands.back()->tensor);
    }
    const absl::StatusOr<std::vector<Tensor>> results = EvaluateNode(node, tensors);
    if (!results.ok()) return false;
    for (const Tensor& result : *results) {
      for (int64_t i = 0; i < result.num_elements(); ++i) {
        if (!(std::abs(result.At(i)) < kTooLarge)) return false;
      }
    }
    if (!IsSteady(node, operands, *results)) return false;
    for (size_t i = 0; i < results->size(); ++i)
      known[node.result_name(i)] = {(*results)[i], IsExact(node, operands, (*results)[i])};
  }
  return true;
}

bool NearJump(const Tensor& tensor) {
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (std::abs(tensor.At(i) - std::round(tensor.At(i) * 2) / 2) < Margin(tensor.dtype())) return true;
  }
  return false;
}

double SmallestOf(const Tensor& tensor) {
  double found = tensor.num_elements() > 0 ? tensor.At(0) : 0;
  for (int64_t i = 1; i < tensor.num_elements(); ++i) found = std::min(found, tensor.At(i));
  return found;
}

double LargestOf(const Tensor& tensor) {
  double found = tensor.num_elements() > 0 ? tensor.At(0) : 0;
  for (int64_t i = 1; i < tensor.num_elements(); ++i) found = std::max(found, tensor.At(i));
  return found;
}

}  // namespace lockstep
