// The rules of tangents (verify/tangent.h), of which each file tangent_*.cc has those of one kind. Any thread.

#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "verify/exact_tensor.h"
#include "verify/meaning.h"

namespace lockstep::verify {

// A node on its one rank: its operands x and results y, the tangents dx of operands, null if zero, and those of
// results, which a rule writes.
struct Forward {
  const Node& node;
  std::vector<const ExactTensor*> x, y, dx;
  std::vector<bool> is_wanted;  // which results
  Assumptions& assumptions;
  std::vector<std::optional<ExactTensor>> dy = std::vector<std::optional<ExactTensor>>(node.num_results());

  template <typename T>
  const T& attr(std::string_view name) const {
    return node.attr<T>(name);
  }
  const std::vector<Exact>& tangents(size_t i) const { return dx[i]->numbers(); }
  // The tangent of result i, zeros at first.
  std::vector<Exact>& out(size_t i = 0) {
    if (!dy[i]) dy[i].emplace(node.type(i));
    return dy[i]->numbers();
  }
  // The tangent of element `at` of operand i.
  Exact TangentAt(size_t i, size_t at) const { return dx[i] ? dx[i]->numbers()[at] : Exact(); }
};

using Rule = absl::Status (*)(Forward&);

// The rows of one file each, by the name of the op.
std::map<std::string_view, Rule> LinearRules();     // in all operands together, or in each
std::map<std::string_view, Rule> ReductionRules();  // products, and ops that choose among elements
std::map<std::string_view, Rule> RegionRules();     // that have a graph: scan, and batch_norm_training

// The rule of a movement, and of other ops that are linear in all operands together.
absl::Status Linear(Forward& f);
// The rule of an elementwise op: each operand's tangent times a slope. An op without a row is an error.
absl::Status BySlopes(Forward& f);
// The rule of an op with a decomposition. It is an assumption that the op means that.
absl::Status ThroughDecomposition(Forward& f);

// The error of an op without a rule.
absl::Status Unruled(const Forward& f);

// Adds the terms to the elements of a sum.
void AddTo(std::vector<Exact>& sum, const std::vector<Exact>& terms);

}  // namespace lockstep::verify
