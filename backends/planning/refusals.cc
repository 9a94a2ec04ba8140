#include "backends/planning/refusals.h"

#include <algorithm>

#include "core/op_def.h"

namespace lockstep {
namespace {

bool MayRefuse(const Node& node) {
  if (node.op().has_trait(kChecksData)) return true;
  if (node.op().FindAttribute("body") == nullptr) return false;
  const Graph& body = node.attr<Region>("body").graph();
  return std::any_of(body.nodes().begin(), body.nodes().end(), MayRefuse);
}

}  // namespace

FirstRefusals::FirstRefusals(const Graph& graph) {
  for (const Input& input : graph.inputs()) {
    if (!input.is_state && IsInteger(input.value.dtype())) sources_[input.value.node] = {input.value.node};
  }
}

bool FirstRefusals::Contain(const Node& node) {
  std::set<const Node*> sources;
  for (Value operand : node.operands()) {
    if (const auto it = sources_.find(operand.node); it != sources_.end())
      sources.insert(it->second.begin(), it->second.end());
  }
  bool has_integers = false;
  for (size_t i = 0; i < node.num_results(); ++i) has_integers = has_integers || IsInteger(node.type(i).dtype);
  if (has_integers && !sources.empty()) sources_.emplace(&node, sources);
  if (!MayRefuse(node)) return false;
  const size_t known = refused_.size();
  refused_.insert(sources.begin(), sources.end());
  return refused_.size() > known;
}

}  // namespace lockstep
