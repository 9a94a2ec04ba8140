// The meaning of ops in exact arithmetic: for each op, its results as a function of its operands. It depends on no
// placement rule, pass or kernel.
//
//  * Movements, generators and ops of integers mean what the reference meaning of the op says (core/op_def.h).
//  * Arithmetic, reductions, matrix products, convolutions, pools and collectives are written here.
//  * An elementwise function without a row here is a random function of its operands (verify/exact.h).
//  * An op that is none of these means its decomposition. This is an assumption, which is reported: that the
//    decomposition of an op and its kernel agree is the subject of other tests.

#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/op_def.h"
#include "core/status.h"
#include "verify/exact_tensor.h"

namespace lockstep::verify {

// What a comparison of programs took for granted, each a sentence such as "adam means its decomposition".
class Assumptions : public std::set<std::string> {
 public:
  // Codes of the int8 wire are rounded: by an error that is a random function of the number. False: they lose nothing.
  bool wire_rounds = false;
};

// A node on one rank: its op, attributes and operands; and its results, which are zeros at first.
class Meaning : public NodeContext {
 public:
  Meaning(const OpDef& op, const AttributeMap& attributes, std::span<const ExactTensor* const> operands,
          std::span<ExactTensor> results, Assumptions& assumptions)
      : NodeContext(op, attributes), operands_(operands), results_(results), assumptions_(assumptions) {}
  size_t num_operands() const { return operands_.size(); }
  const ExactTensor& operand(size_t i) const { return *operands_[i]; }
  const std::vector<Exact>& x(size_t i = 0) const { return operands_[i]->numbers(); }  // of an operand of exact numbers
  size_t num_results() const { return results_.size(); }
  ExactTensor& result(size_t i = 0) const { return results_[i]; }
  std::vector<Exact>& y(size_t i = 0) const { return results_[i].numbers(); }  // of a result of exact numbers
  void Assume(std::string assumption) const { assumptions_.insert(std::move(assumption)); }
  Assumptions& assumptions() const { return assumptions_; }

 private:
  std::span<const ExactTensor* const> operands_;
  std::span<ExactTensor> results_;
  Assumptions& assumptions_;
};

using MeaningFn = absl::Status (*)(Meaning&);

// The rows of one file each, by the name of the op.
std::map<std::string_view, MeaningFn> ElementwiseMeanings();
std::map<std::string_view, MeaningFn> ReductionMeanings();  // and sums at positions that data or windows give
std::map<std::string_view, MeaningFn> ProductMeanings();    // matrix products and convolutions
std::map<std::string_view, MeaningFn> PoolMeanings();
std::map<std::string_view, MeaningFn> OrderMeanings();  // argmax, argmin, top_k

// Evaluates a node that is not a collective on one rank.
absl::StatusOr<std::vector<ExactTensor>> EvaluateExactly(const Node& node,
                                                         const std::vector<const ExactTensor*>& operands,
                                                         Assumptions& assumptions);

// Evaluates a collective on the ranks of a group along its axis: operands[rank][i].
absl::StatusOr<std::vector<std::vector<ExactTensor>>> EvaluateExactlyAcrossRanks(
    const Node& node, const std::vector<std::vector<const ExactTensor*>>& operands, Assumptions& assumptions);

// The graph of the node's decomposition, with inputs x0, x1, … for its operands and results y0, y1, … . Results that
// the decomposition leaves out are missing.
absl::StatusOr<Graph> DecompositionOf(const Node& node);

// The positions that a movement reads: result i is the element of a tensor of shape `from` at position i of these. The
// operands after the first, which are integers, are `others`.
absl::StatusOr<std::vector<size_t>> PositionsReadBy(std::string_view op, const AttributeMap& attributes,
                                                    const Shape& from, std::vector<const Tensor*> others,
                                                    const Shape& result);

// For each window of a max_pool of x with a result of the shape y, the position of its first largest element; null if
// it has none.
std::vector<std::optional<size_t>> PositionsOfMaxima(const NodeContext& max_pool, const ExactTensor& x, const Shape& y);

// The combination of two elements of a reduction. A mean combines as a sum. A NaN stays one.
Exact Combined(ReduceKind kind, const Exact& x, const Exact& y);

// The value whose terms the ranks of a group have.
ExactTensor WholeOf(ReduceKind kind, const std::vector<const ExactTensor*>& terms);

}  // namespace lockstep::verify
