#include "backends/planning/collective_labels.h"

#include <string_view>

#include "core/op_def.h"

namespace lockstep {
namespace {

constexpr std::string_view kGradient = "gradient of ", kResult = "result ";

void Append(std::string& list, const std::string& name) { list += (list.empty() ? "" : ", ") + name; }

std::string NameOf(const Node& node, Value value) { return node.source().empty() ? "%" + value.name() : node.source(); }

}  // namespace

std::string LabelOfTransfer(const Node& node) {
  const auto& axis = node.attr<std::string>("axis");
  const bool is_to_one = node.op().collective() == CollectiveOp::kPermute;
  const int64_t from =
      is_to_one ? node.attr<std::vector<int64_t>>("sources")[0] : node.operand(0).placement(axis).rank();
  const std::string to = is_to_one ? std::to_string(node.attr<std::vector<int64_t>>("targets")[0]) : "all";
  return axis + " " + std::to_string(from) + " to " + to + ", " + NameOf(node, node.operand(0));
}

std::string LabelOfReduction(const Node& node, const std::vector<size_t>& positions) {
  std::string gradients, others;
  size_t num_gradients = 0;
  for (size_t i : positions) {
    const std::string& name = const_cast<Node&>(node).result(i).name();
    if (name.starts_with(kGradient)) {
      Append(gradients, name.substr(kGradient.size()));
      ++num_gradients;
    } else {
      Append(others, name.starts_with(kResult) ? name : NameOf(node, node.operand(i)));
    }
  }
  if (num_gradients > 0) gradients = (num_gradients > 1 ? "gradients of " : "gradient of ") + gradients;
  if (!gradients.empty() && !others.empty()) gradients += ", and ";
  return gradients + others;
}

}  // namespace lockstep
