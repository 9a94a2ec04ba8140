#include "passes/training/precision.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/optimize/dce.h"

namespace lockstep::passes {
namespace {

using ValueSet = std::unordered_set<Value, ValueHash>;

bool IsF32(Value value) { return value.dtype() == DType::kF32; }

// Returns true if the value is a constant, perhaps moved, with a finite number out of the range of `low`. An example is
// the lowest f32 that masks elements in attention.
bool IsOutOfRange(Value value, DType low) {
  const Node& node = *value.node;
  if (node.op().has_trait(kMovement) && node.operands().size() == 1) return IsOutOfRange(node.operand(0), low);
  if (!node.is_constant() || value.dtype() != DType::kF32) return false;
  const Tensor& constant = node.attr<Tensor>("value");
  const double largest = low == DType::kF16 ? 65504 : 0x1.fep127;
  for (int64_t i = 0; i < constant.num_elements(); ++i) {
    if (std::isfinite(constant.At(i)) && std::abs(constant.At(i)) > largest) return true;
  }
  return false;
}

// The values that depend only on states, settings and constants.
class Parameters {
 public:
  explicit Parameters(Graph& graph) {
    for (const Input& input : graph.inputs()) {
      if (!input.is_data()) values_.insert(input.value);
    }
    for (Node& node : graph.nodes()) {
      const auto is_parameter = [&](Value operand) { return values_.contains(operand); };
      if (!std::all_of(node.operands().begin(), node.operands().end(), is_parameter)) continue;
      for (size_t i = 0; i < node.num_results(); ++i) values_.insert(node.result(i));
    }
  }
  bool Contains(Value value) const { return values_.contains(value); }

 private:
  ValueSet values_;
};

// Recomputes values of 16 bits in f32 if they were rounded from f32.
class Widening {
 public:
  explicit Widening(Graph& graph) : graph_(graph), b_(graph) {}

  // Returns `value` in f32 without the rounding. Returns null if it was not rounded from f32, or if more than `users`
  // nodes use it.
  absl::StatusOr<Value> Widen(Value value, size_t users) {
    Node& node = *value.node;
    if (node.users().size() > users || SizeOf(value.dtype()) != 2) return Value();
    b_.set_before(&node);
    b_.set_source(node.source());
    if (node.op().FindAttribute("wide_result") != nullptr) {
      AttributeMap attributes = node.attributes();
      attributes["wide_result"] = true;
      const Value wide = b_.Op(node.op_name(), node.operands(), std::move(attributes));
      RETURN_IF_ERROR(b_.status());
      rounded_.push_back(&node);
      return wide;
    }
    if (node.Is("convert") && node.operand(0).dtype() == DType::kF32) {
      rounded_.push_back(&node);
      return node.operand(0);
    }
    if (!node.Is("add")) return Value();
    std::vector<Value> terms;
    for (const Value operand : node.operands()) {
      ASSIGN_OR_RETURN(Value term, Widen(operand, 1));
      b_.set_before(&node);
      terms.push_back(term ? term : b_.Convert(operand, DType::kF32));
    }
    const Value sum = b_.Add(terms[0], terms[1]);
    RETURN_IF_ERROR(b_.status());
    rounded_.push_back(&node);
    return sum;
  }

  // Removes the rounded nodes that are not used any more.
  void Clean() { RemoveDeadNodesAmong(graph_, rounded_); }

 private:
  Graph& graph_;
  Builder b_;
  std::vector<Node*> rounded_;
};

// Visits the nodes of the model in order, and maps each value of the model to the value that replaces it, which has the
// same dtype, or the low one if the original is f32.
class Lowering {
 public:
  Lowering(Graph& graph, DType low) : graph_(graph), low_(low), parameters_(graph), b_(graph), widening_(graph) {}

  absl::Status Run() {
    std::vector<Node*> nodes;
    for (Node& node : graph_.nodes()) nodes.push_back(&node);
    for (Node* node : nodes) {
      b_.set_before(node);
      b_.set_source(node->source());
      RETURN_IF_ERROR(Annotate(Visit(*node), node->Describe()));
    }
    RETURN_IF_ERROR(RestoreResults());
    for (auto it = replaced_.rbegin(); it != replaced_.rend(); ++it) graph_.Erase(it->node);
    SetNames();
    return absl::OkStatus();
  }

 private:
  using Values = std::vector<Value>;
  struct Replaced {
    Node* node;
    Values results;
    std::vector<std::string> names;
  };

  // Gives replacements the names of the original values, and conversions the name followed by the dtype.
  void SetNames() {
    for (const Replaced& each : replaced_) {
      for (size_t i = 0; i < each.results.size(); ++i) graph_.SetName(each.results[i], each.names[i]);
    }
    for (const auto& [value, converted] : conversions_)
      graph_.SetName(converted, value.name() + "." + std::string(DTypeName(converted.dtype())));
    widening_.Clean();
    for (const auto& [value, name] : unrounded_) {
      if (value.name() != name) graph_.SetName(value, name);
    }
  }

  // Converts results back to their dtypes. A result that is a product, or a sum of these, is recomputed without
  // rounding.
  absl::Status RestoreResults() {
    b_.set_before(nullptr);
    for (size_t i = 0; i < graph_.results().size(); ++i) {
      const Value value = graph_.results()[i].value, now = Now(value);
      if (now.dtype() == value.dtype()) {
        graph_.set_result_value(i, now);
        continue;
      }
      Value& restored = restored_[value];
      if (!restored) {
        ASSIGN_OR_RETURN(restored, widening_.Widen(now, 0));
        if (restored) unrounded_.emplace_back(restored, value.name());
      }
      b_.set_source(value.node->source());
      if (!restored) restored = As(value.dtype(), now);
      RETURN_IF_ERROR(b_.status());
      graph_.set_result_value(i, restored);
    }
    return absl::OkStatus();
  }

  Value Now(Value value) const {
    const auto it = now_.find(value);
    return it == now_.end() ? value : it->second;
  }

  // Returns a float value in another precision; all users share one conversion.
  Value As(DType dtype, Value value) {
    if (!value || value.dtype() == dtype) return value;
    if (const auto it = converted_.find(value); it != converted_.end()) return it->second;
    const Value converted = b_.Convert(value, dtype);
    if (!converted) return converted;
    converted_[value] = converted;
    conversions_.emplace_back(value, converted);
    return converted;
  }

  // Returns true if all floats of the node are f32, so that the pass may change it.
  static bool IsOnF32(Node& node) {
    const auto fits = [](const TensorType& type) { return !IsFloat(type.dtype) || type.dtype == DType::kF32; };
    bool all = true;
    for (Value operand : node.operands()) all = all && fits(operand.type());
    for (size_t i = 0; i < node.num_results(); ++i) all = all && fits(node.type(i));
    return all;
  }

  absl::Status Visit(Node& node) {
    const PrecisionRule rule = node.op().precision();
    if (rule == PrecisionRule::kAsDeclared) return Replace(node, Operands(node));
    if (!IsOnF32(node)) return Replace(node, InFull(node));
    switch (rule) {
      case PrecisionRule::kLow: return Replace(node, In(low_, node));
      case PrecisionRule::kFollows: return Follow(node);
      case PrecisionRule::kComputesInF32:
        return Replace(node, InFull(node), Now(node.operand(0)).dtype() == low_ ? 1 : 0);
      default: return Replace(node, InFull(node));
    }
  }

  absl::Status Follow(Node& node) {
    bool any_low = false, any_full = false, is_mixed = false;
    for (Value operand : node.operands()) {
      if (!IsF32(operand)) continue;
      const bool is_low = Now(operand).dtype() == low_;
      any_low |= is_low;
      any_full |= !is_low && (!parameters_.Contains(operand) || IsOutOfRange(operand, low_));
      is_mixed |= !is_low;
    }
    if (!any_low || any_full) return Replace(node, InFull(node));
    if (!is_mixed || !node.op().has_trait(kElementwise)) return Replace(node, In(low_, node));
    return Replace(node, InFull(node), node.num_results());
  }

  Values Operands(Node& node) const {
    Values operands;
    for (Value operand : node.operands()) operands.push_back(Now(operand));
    return operands;
  }
  Values InFull(Node& node) {
    Values operands;
    for (Value operand : node.operands()) operands.push_back(As(operand.dtype(), Now(operand)));
    return operands;
  }
  Values In(DType dtype, Node& node) {
    Values operands;
    for (Value operand : node.operands()) operands.push_back(IsF32(operand) ? As(dtype, Now(operand)) : Now(operand));
    return operands;
  }

  // Replaces the node by one with these operands. The first `rounded` results are rounded if they are f32.
  absl::Status Replace(Node& node, const Values& operands, size_t rounded = 0) {
    RETURN_IF_ERROR(b_.status());
    if (operands == node.operands() && rounded == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(Node* const copy,
                     graph_.Insert({&node.op(), operands, node.attributes(), node.source(), {}}, &node));
    Replaced& replaced = replaced_.emplace_back(Replaced{&node, {}, {}});
    for (size_t i = 0; i < node.num_results(); ++i) {
      const Value result = copy->result(i);
      replaced.results.push_back(result);
      replaced.names.push_back(node.result_name(i));
      now_[node.result(i)] = i < rounded && IsF32(result) ? As(low_, result) : result;
    }
    return b_.status();
  }

  Graph& graph_;
  const DType low_;
  const Parameters parameters_;
  Builder b_;
  Widening widening_;
  std::vector<std::pair<Value, std::string>> unrounded_;  // unrounded results, and their names in the model
  std::unordered_map<Value, Value, ValueHash> now_, converted_, restored_;
  std::vector<std::pair<Value, Value>> conversions_;  // in order: value, conversion
  std::vector<Replaced> replaced_;
};

// Finds the conversions to f32 from which `value` is computed by adding and moving elements. For example, the gradient
// of a weight that is transposed before its conversion is transposed after the conversion.
void FindConversions(Value value, ValueSet& seen, std::vector<Node*>& conversions) {
  Node& node = *value.node;
  if (value.dtype() != DType::kF32 || !seen.insert(value).second) return;
  if (node.Is("convert")) conversions.push_back(&node);
  if (!node.Is("add") && !node.op().has_trait(kMovement)) return;
  for (const Value operand : node.operands()) FindConversions(operand, seen, conversions);
}

}  // namespace

absl::Status LowerPrecision(Graph& graph, DType low) {
  LOCKSTEP_CHECK(low == DType::kBF16 || low == DType::kF16) << low;
  return Lowering(graph, low).Run();
}

absl::Status KeepSumsWide(Graph& graph, std::vector<Value>& gradients) {
  std::vector<Node*> conversions;
  ValueSet seen;
  for (const Value gradient : gradients) FindConversions(gradient, seen, conversions);
  Widening widening(graph);
  std::unordered_map<Value, Value, ValueHash> replaced;
  for (Node* const convert : conversions) {
    ASSIGN_OR_RETURN(const Value wide, widening.Widen(convert->operand(0), 1));
    if (!wide) continue;
    const std::string name = convert->result_name();
    replaced[convert->result()] = wide;
    graph.ReplaceUses(convert->result(), wide);
    graph.Erase(convert);
    graph.SetName(wide, name);
  }
  for (Value& gradient : gradients) {
    if (const auto it = replaced.find(gradient); it != replaced.end()) gradient = it->second;
  }
  widening.Clean();
  return absl::OkStatus();
}

}  // namespace lockstep::passes
