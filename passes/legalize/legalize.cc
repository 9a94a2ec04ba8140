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

struct Kernels {
  std::function<bool(const Node&)> supports, rounds_sum;
};

// Replaces a sum of products in 16 bits with an f32 result by one of operands that are converted to f32, whose products
// are equally exact, or by one that is rounded and then converted. Returns false for other nodes, or if the target has
// no kernel for the new one either.
absl::StatusOr<bool> ReplaceWideSum(Graph& graph, Node& node, const Kernels& kernels) {
  const auto wide = node.attributes().find("wide_result");
  if (wide == node.attributes().end() || wide->second != Attribute(true)) return false;
  const DType dtype = node.type().dtype;
  if (dtype == node.operand(0).dtype()) return false;
  Builder b(graph, &node, node.source());
  std::vector<Value> operands(node.operands().begin(), node.operands().end());
  AttributeMap attributes = node.attributes();
  if (kernels.rounds_sum && kernels.rounds_sum(node)) {
    attributes.erase("wide_result");
  } else {
    for (Value& operand : operands) operand = b.Convert(operand, dtype);
  }
  const Value sum = b.Op(node.op_name(), std::move(operands), std::move(attributes));
  RETURN_IF_ERROR(b.status());
  if (!kernels.supports(*sum.node)) return false;  // the caller then fails, so the new nodes can stay
  const Value result = b.Convert(sum, dtype);
  RETURN_IF_ERROR(b.status());
  const std::string name = node.result_name();
  graph.ReplaceUses(node.result(), result);
  graph.Erase(&node);
  graph.SetName(result, name);
  return true;
}

// Returns the error for a node without a kernel. `whole` describes the node of the program from whose decomposition it
// came; empty if it came from none.
absl::Status NoKernel(const Node& node, const std::string& whole) {
  return Unimplemented() << "the target has no kernel for " << node.Describe() << " of " << TypesOf(node)
                         << (whole.empty() ? "" : ", a part of " + whole) << ", and the op has no decomposition";
}

absl::StatusOr<bool> LegalizeGraph(Graph& graph, const Kernels& kernels) {
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, [&](Graph& body) { return LegalizeGraph(body, kernels); }));
  std::string whole;  // the node whose decomposition the nodes before `rest` came from; empty: none
  auto rest = graph.nodes().begin();
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    if (it == rest) {
      whole.clear();
      ++rest;
    }
    if (kernels.supports(*it)) {
      ++it;
      continue;
    }
    const auto next = std::next(it);
    ASSIGN_OR_RETURN(const bool is_replaced, ReplaceWideSum(graph, *it, kernels));
    if (is_replaced) {
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

Pass Legalize(std::function<bool(const Node&)> supports, std::function<bool(const Node&)> rounds_sum) {
  const Kernels kernels = {std::move(supports), std::move(rounds_sum)};
  return {"legalize", [kernels](Graph& graph) { return LegalizeGraph(graph, kernels); }};
}

}  // namespace lockstep::passes
