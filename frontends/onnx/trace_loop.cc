// Imports a body as one iteration of a loop, for the core op `scan`: imports it once into the graph around it, with
// placeholders as inputs, then moves its nodes to a graph of their own.

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "frontends/onnx/onnx_node.h"
#include "frontends/onnx/subgraph.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

using Kind = OnnxLoopInput::Kind;

constexpr int64_t kMostCopiedElements = 16;  // elements of a constant that is copied into the body

// The nodes after `last_before` that depend on placeholders, in order. All nodes are considered if `last_before` is
// null.
std::vector<Node*> Dependent(Graph& graph, const Node* last_before, const std::vector<Value>& placeholders) {
  std::unordered_set<const Node*> changing;
  for (Value placeholder : placeholders) changing.insert(placeholder.node);
  std::vector<Node*> nodes;
  bool is_new = last_before == nullptr;
  for (Node& node : graph.nodes()) {
    const auto changes = [&](Value operand) { return changing.contains(operand.node); };
    if (is_new && std::any_of(node.operands().begin(), node.operands().end(), changes)) {
      changing.insert(&node);
      nodes.push_back(&node);
    }
    is_new = is_new || &node == last_before;
  }
  return nodes;
}

// Each iteration must draw its own random numbers, but nodes that do not depend on the placeholders are computed once
// for all iterations. Returns an error if a node after `last_before` draws, or is a dropout that is not in `dependent`.
absl::Status CheckDraws(const Graph& graph, const Node* last_before, const std::vector<Node*>& dependent) {
  bool is_new = last_before == nullptr;
  for (const Node& node : graph.nodes()) {
    const bool is_shared = std::find(dependent.begin(), dependent.end(), &node) == dependent.end();
    if (is_new && (node.Is("random_bits") || (node.Is("dropout") && is_shared)))
      return Unimplemented() << "its body draws random numbers, at " << node.source();
    is_new = is_new || &node == last_before;
  }
  return absl::OkStatus();
}

// Copies nodes from a graph to the body of a loop, with the values that they need.
class Extraction {
 public:
  explicit Extraction(std::string name) : body_(std::move(name)) {}

  absl::Status AddPlaceholder(Value placeholder, const OnnxLoopInput& input) {
    auto& group = input.kind == Kind::kCarried ? parts_.carried : parts_.scanned;
    return AddInput(group, placeholder, input.outer);
  }
  absl::Status AddNode(const Node& node) {
    for (Value operand : node.operands()) RETURN_IF_ERROR(Enter(operand).status());
    return body_.InsertCopy(node, map_).status();
  }
  // Makes a value of the graph available in the body: as a copy if that is cheap, else as a constant input of the loop.
  absl::StatusOr<Value> Enter(Value value) {
    if (const auto it = map_.find(value); it != map_.end()) return it->second;
    const Node& node = *value.node;
    const bool is_small = node.is_constant() && value.type().num_elements() <= kMostCopiedElements;
    const bool is_copied = is_small || node.op().has_trait(kRematerialised);
    RETURN_IF_ERROR(is_copied ? AddNode(node) : AddInput(parts_.constants, value, value));
    return map_.at(value);
  }
  OnnxLoopBody Take(std::vector<Value> outputs, std::vector<bool> is_true) {
    return {std::move(body_), std::move(parts_), std::move(outputs), std::move(is_true)};
  }

 private:
  absl::Status AddInput(std::vector<ScanParts::Operand>& group, Value value, Value outer) {
    const std::string name = "in/" + std::to_string(body_.inputs().size());
    ASSIGN_OR_RETURN(map_[value], body_.AddInput(name, value.type()));
    group.push_back({outer, map_[value]});
    return absl::OkStatus();
  }

  Graph body_;
  ScanParts parts_;
  ValueMap map_;
};

}  // namespace

void SubgraphImporter::EraseTraced(Node* last_before, const std::vector<Value>& placeholders) {
  Graph& graph = model_.graph;
  std::vector<Node*> nodes = Dependent(graph, last_before, placeholders);
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    values_.Forget(**it);
    graph.Erase(*it);
  }
  for (Value placeholder : placeholders) {
    values_.Forget(*placeholder.node);
    const absl::Status removed = graph.RemoveInput(std::string(placeholder.name()));
    LOCKSTEP_CHECK(removed.ok()) << removed;
  }
  last_folded_ = graph.nodes().empty() ? nullptr : &graph.nodes().back();
}

absl::StatusOr<OnnxLoopBody> SubgraphImporter::TraceLoop(const OnnxNode& n, const onnx::GraphProto& body,
                                                         const std::vector<OnnxLoopInput>& inputs) {
  RETURN_IF_ERROR(builder_.status());
  RETURN_IF_ERROR(FoldNewNodes());
  Graph& graph = model_.graph;
  Node* const last_before = graph.nodes().empty() ? nullptr : &graph.nodes().back();
  const size_t notes = model_.notes.size();
  const bool error_had_source = error_has_source_;
  std::vector<OnnxValue> given;
  std::vector<Value> placeholders;
  for (const OnnxLoopInput& input : inputs) {
    given.emplace_back(input.outer);
    if (input.kind == Kind::kConstant) continue;
    TensorType type = input.outer.type();
    if (input.kind == Kind::kScanned) type.shape = type.shape.Without({0});
    const std::string name = n.source() + "[i]/" + std::to_string(frames_.size()) + "/" + std::to_string(given.size());
    ASSIGN_OR_RETURN(const Value placeholder, graph.AddInput(name, type));
    placeholders.push_back(placeholder);
    given.back() = placeholder;
  }
  const auto trace = [&]() -> absl::StatusOr<OnnxLoopBody> {
    ASSIGN_OR_RETURN(const std::vector<OnnxValue> outputs, ImportBody(n, body, given, "[i]"));
    Extraction extraction(n.op_type());
    for (size_t i = 0, at = 0; i < inputs.size(); ++i) {
      if (inputs[i].kind != Kind::kConstant) {
        RETURN_IF_ERROR(extraction.AddPlaceholder(placeholders[at++], inputs[i]));
      }
    }
    RETURN_IF_ERROR(CheckDraws(graph, last_before, Dependent(graph, last_before, placeholders)));
    for (const Node* node : Dependent(graph, last_before, placeholders)) RETURN_IF_ERROR(extraction.AddNode(*node));
    std::vector<Value> inner;
    std::vector<bool> is_true;
    for (const OnnxValue& output : outputs) {
      const Value* value = std::get_if<Value>(&output);
      if (value == nullptr) return n.Error() << "an output of the body is " << KindOf(output) << ", expected a tensor";
      const bool is_condition = value->dtype() == DType::kBool && value->type().num_elements() == 1;
      const Tensor* known = is_condition ? values_.FindConstant(*value) : nullptr;
      is_true.push_back(known != nullptr && known->At(0) != 0);
      ASSIGN_OR_RETURN(inner.emplace_back(), extraction.Enter(*value));
    }
    return extraction.Take(std::move(inner), std::move(is_true));
  };
  absl::StatusOr<OnnxLoopBody> traced = trace();
  EraseTraced(last_before, placeholders);
  if (!traced.ok()) {
    builder_.ClearError();
    error_has_source_ = error_had_source;
    model_.notes.resize(notes);
  }
  return traced;
}

}  // namespace lockstep
