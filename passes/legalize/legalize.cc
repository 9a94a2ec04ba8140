#include "passes/legalize/legalize.h"

#include <string>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/bodies.h"
#include "passes/legalize/decompose.h"

namespace lockstep::passes {

namespace {

// Returns the types of the node's operands; the type of its result if it has none.
std::string TypesOf(const Node& node) {
  std::string types;
  for (const Value& operand : node.operands()) types += (types.empty() ? "" : ", ") + operand.type().ToString();
  return node.operands().empty() ? node.type().ToString() : types;
}

// Replaces a sum of products in 16 bits with an f32 result by one of operands that are converted to f32, whose products
// are equally exact. Returns the new node; null for other nodes, or if the target has no kernel for the new one either.
absl::StatusOr<Node*> ReplaceByProductOfF32(Graph& graph, Node& node,
                                            const std::function<bool(const Node&)>& supports) {
  const auto wide = node.attributes().find("wide_result");
  if (wide == node.attributes().end() || wide->second != Attribute(true)) return nullptr;
  if (node.type().dtype == node.operand(0).dtype()) return nullptr;
  Builder b(graph, &node, node.source());
  std::vector<Value> operands;
  for (const Value operand : node.operands()) operands.push_back(b.Convert(operand, node.type().dtype));
  const Value sum = b.Op(node.op_name(), std::move(operands), node.attributes());
  RETURN_IF_ERROR(b.status());
  if (!supports(*sum.node)) return nullptr;  // the caller then fails, so the new nodes can stay
  const std::string name = node.result_name();
  graph.ReplaceUses(node.result(), sum);
  graph.Erase(&node);
  graph.SetName(sum, name);
  return sum.node;
}

// Returns the error for a node without a kernel. `whole` describes the node of the program from whose decomposition it
// came; empty if it came from none.
absl::Status NoKernel(const Node& node, const std::string& whole) {
  return Unimplemented() << "the target has no kernel for " << node.Describe() << " of " << TypesOf(node)
                         << (whole.empty() ? "" : ", a part of " + whole) << ", and the op has no decomposition";
}

absl::StatusOr<bool> LegalizeGraph(Graph& graph, const std::function<bool(const Node&)>& supports) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, [&](Graph& body) { return LegalizeGraph(body, supports); }));
  std::string whole;  // the node whose decomposition the nodes before `rest` came from; empty: none
  auto rest = graph.nodes().begin();
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    if (it == rest) {
      whole.clear();
      ++rest;
    }
    if (supports(*it)) {
      ++it;
      continue;
    }
    const auto next = std::next(it);
    ASSIGN_OR_RETURN(const Node* const product, ReplaceByProductOfF32(graph, *it, supports));
    if (product != nullptr) {
      it = next;
      changed = true;
      continue;
    }
    if (!it->op().decompose()) return NoKernel(*it, whole);
    if (whole.empty()) whole = it->Describe();
    ASSIGN_OR_RETURN(it, ReplaceByDecomposition(graph, it));
    changed = true;
  }
  return changed;
}

}  // namespace

Pass Legalize(std::function<bool(const Node&)> supports) {
  return {"legalize", [supports = std::move(supports)](Graph& graph) { return LegalizeGraph(graph, supports); }};
}

}  // namespace lockstep::passes
