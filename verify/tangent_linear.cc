// Ops that are linear, and padding.

#include <algorithm>
#include <functional>

#include "verify/tangent_rule.h"

namespace lockstep::verify {
namespace {

absl::Status SetToResults(Forward& f, const Node& node, const std::vector<const ExactTensor*>& operands) {
  ASSIGN_OR_RETURN(std::vector<ExactTensor> results, EvaluateExactly(node, operands, f.assumptions));
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].is_exact()) AddTo(f.out(i), results[i].numbers());
  }
  return absl::OkStatus();
}

// The operands, with tangents in the place of numbers.
std::vector<const ExactTensor*> TangentsOfAll(const Forward& f, std::vector<ExactTensor>& zeros) {
  std::vector<const ExactTensor*> operands = f.x;
  zeros.reserve(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (f.dx[i]) operands[i] = f.dx[i];
    else if (f.x[i]->is_exact()) operands[i] = &zeros.emplace_back(f.x[i]->type());
  }
  return operands;
}

// Linear in each operand.
absl::Status LinearInEach(Forward& f) {
  for (size_t i = 0; i < f.x.size(); ++i) {
    if (!f.dx[i]) continue;
    std::vector<const ExactTensor*> operands = f.x;
    operands[i] = f.dx[i];
    RETURN_IF_ERROR(SetToResults(f, f.node, operands));
  }
  return absl::OkStatus();
}

// Linear but for the padding, which does not move.
absl::Status PadWithZeros(Forward& f) {
  Graph graph;
  ASSIGN_OR_RETURN(const Value x, graph.AddInput("x", f.x[0]->type()));
  AttributeMap attributes = f.node.attributes();
  attributes["value"] = 0.0;
  ASSIGN_OR_RETURN(const Node* const node, graph.Insert({&f.node.op(), {x}, std::move(attributes), "", {}}));
  return SetToResults(f, *node, {f.dx[0]});
}

}  // namespace

void AddTo(std::vector<Exact>& sum, const std::vector<Exact>& terms) {
  std::transform(sum.begin(), sum.end(), terms.begin(), sum.begin(), std::plus<>());
}

absl::Status Linear(Forward& f) {
  std::vector<ExactTensor> zeros;
  return SetToResults(f, f.node, TangentsOfAll(f, zeros));
}

std::map<std::string_view, Rule> LinearRules() {
  return {
      {"neg", Linear},
      {"add", Linear},
      {"sub", Linear},
      {"convert", Linear},
      {"select", Linear},
      {"reduce_sum", Linear},
      {"cumulative_sum", Linear},
      {"scatter_sum", Linear},
      {"overlap_add", Linear},
      {"avg_pool", Linear},
      {"avg_pool_grad", Linear},
      {"pad", PadWithZeros},
      {"mul", LinearInEach},
      {"matmul", LinearInEach},
      {"convolution", LinearInEach},
      {"convolution_grad_input", LinearInEach},
      {"convolution_grad_filter", LinearInEach},
  };
}

}  // namespace lockstep::verify
