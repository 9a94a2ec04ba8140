#include "passes/simplify/notation.h"

#include <algorithm>
#include <bit>

#include "core/ops/op_list.h"
#include "passes/simplify/constants.h"

namespace lockstep::passes {

bool SameAttribute(const Attribute& a, const Attribute& b) {
  const double *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
  return x && y ? std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y) : a == b;
}

namespace {

int CountCommutative(const Expr& e) {
  int count = e.kind() == Expr::Kind::kOp && e.op().has_trait(kCommutative);
  for (const Expr& operand : e.operands()) count += CountCommutative(operand);
  return count;
}

// Returns the dtype of the first splat in `e`.
std::optional<DType> DTypeOf(const Expr& e, const Match& match) {
  if (e.kind() == Expr::Kind::kSplat) return match[AnySplat{e.slot()}].dtype();
  for (const Expr& operand : e.operands()) {
    if (const std::optional<DType> dtype = DTypeOf(operand, match)) return dtype;
  }
  return std::nullopt;
}

// Evaluates an expression of splats and numbers of this dtype by the reference meanings of its ops; returns nullopt if
// that fails.
std::optional<Tensor> Evaluate(const Expr& e, const Match& match, DType dtype) {
  if (e.kind() == Expr::Kind::kSplat) return match[AnySplat{e.slot()}];
  if (e.kind() == Expr::Kind::kNumber) return Tensor::Scalar(dtype, e.number());
  LOCKSTEP_CHECK(e.kind() == Expr::Kind::kOp) << "Fold is of constants alone";
  std::vector<Tensor> tensors;
  for (const Expr& operand : e.operands()) {
    std::optional<Tensor> tensor = Evaluate(operand, match, dtype);
    if (!tensor) return std::nullopt;
    tensors.push_back(*std::move(tensor));
  }
  std::vector<const Tensor*> operands;
  std::vector<TensorType> types;
  for (const Tensor& tensor : tensors) {
    operands.push_back(&tensor);
    types.push_back(tensor.type());
  }
  const absl::StatusOr<std::vector<TensorType>> result_types = e.op().InferTypes(types, {}, Mesh());
  if (!result_types.ok()) return std::nullopt;
  std::vector<Tensor> results = {Tensor((*result_types)[0])};
  const AttributeMap no_attributes;
  EvalContext context(e.op(), no_attributes, operands, results);
  if (!e.op().eval()(context).ok()) return std::nullopt;
  return std::move(results[0]);
}

std::optional<Tensor> EvaluateFold(const Expr& fold, const Match& match) {
  const Expr& e = fold.operands()[0];
  const std::optional<DType> dtype = DTypeOf(e, match);
  LOCKSTEP_CHECK(dtype.has_value()) << "Fold of numbers alone";
  return Evaluate(e, match, *dtype);
}

bool CanFold(const Expr& e, const Match& match) {
  if (e.kind() == Expr::Kind::kFold) return EvaluateFold(e, match).has_value();
  return std::all_of(e.operands().begin(), e.operands().end(),
                     [&](const Expr& operand) { return CanFold(operand, match); });
}

}  // namespace

// Matches with one order of the operands of each commutative op: bit i of `swapped` is set if the operands of the i-th
// commutative op in the pattern are swapped.
class Matcher {
 public:
  Matcher(Node& node, const Graph& graph, unsigned swapped) : match_(node), graph_(graph), swapped_(swapped) {}

  const Match& match() const { return match_; }

  bool Matches(const Expr& e, Value value) {
    if (e.only_use() && !HasOneUse(graph_, value)) return false;
    if (e.name() >= 0 && !Bind(AnyValue{e.name()}, value)) return false;
    switch (e.kind()) {
      case Expr::Kind::kValue: return Bind(AnyValue{e.slot()}, value);
      case Expr::Kind::kSplat: return Bind(AnySplat{e.slot()}, value);
      case Expr::Kind::kNumber: match_.numbers_.push_back(value); return IsSplat(value, e.number());
      case Expr::Kind::kOp: return MatchesOp(e, value);
      case Expr::Kind::kFold:
      case Expr::Kind::kComputed: break;
    }
    LOCKSTEP_CHECK(false) << "a pattern has no computed constants";
    return false;
  }

 private:
  bool MatchesOp(const Expr& e, Value value) {
    Node* const node = value.node;
    if (&node->op() != &e.op() || node->operands().size() != e.operands().size()) return false;
    for (const Expr::Attr& attr : e.attrs()) {
      if (!attr.implied && !Bind(attr, node->attributes().at(attr.name))) return false;
    }
    const bool swap = e.op().has_trait(kCommutative) && (swapped_ >> num_commutative_++ & 1) != 0;
    for (size_t i = 0; i < e.operands().size(); ++i) {
      if (!Matches(e.operands()[i], node->operand(swap ? 1 - i : i))) return false;
    }
    return true;
  }

  bool Bind(AnyValue x, Value value) {
    Value& found = match_.values_[static_cast<size_t>(x.slot)];
    if (!found) found = value;
    return found == value;
  }

  bool Bind(AnySplat c, Value value) {
    std::optional<Tensor> scalar = SplatOf(value);
    if (!scalar) return false;
    Match::Splat& found = match_.splats_[static_cast<size_t>(c.slot)];
    if (!found.scalar) found = {value, std::move(scalar)};
    else return *found.scalar == *scalar;
    return true;
  }

  bool Bind(const Expr::Attr& attr, const Attribute& value) {
    if (attr.slot < 0) return SameAttribute(attr.value(match_), value);
    std::optional<Attribute>& found = match_.attrs_[static_cast<size_t>(attr.slot)];
    if (!found) found = value;
    return SameAttribute(*found, value);
  }

  Match match_;
  const Graph& graph_;
  const unsigned swapped_;
  int num_commutative_ = 0;  // the number of commutative ops visited so far
};

class Replacer {
 public:
  Replacer(const Match& match, Builder& b) : match_(match), b_(b) {}

  // Builds `e`. `type` is the type of the value that it replaces or of the operand beside it. Returns null after an
  // error of the builder.
  Value Build(const Expr& e, const TensorType& type) {
    switch (e.kind()) {
      case Expr::Kind::kValue: return match_[AnyValue{e.slot()}];
      case Expr::Kind::kSplat: {
        const Match::Splat& splat = match_.splats_[static_cast<size_t>(e.slot())];
        return splat.value.type() == type ? splat.value : Splat(b_, *splat.scalar, type.shape);
      }
      case Expr::Kind::kNumber: return Number(e.number(), type);
      case Expr::Kind::kFold: return Splat(b_, *EvaluateFold(e, match_), type.shape);
      case Expr::Kind::kComputed: return Number(e.computed()(match_), type);
      case Expr::Kind::kOp: break;
    }
    std::vector<Value> operands;
    for (const Expr& operand : e.operands()) {
      operands.push_back(Build(operand, operands.empty() ? type : operands[0].type()));
      if (!operands.back()) return Value();
    }
    AttributeMap attributes;
    for (const Expr::Attr& attr : e.attrs()) attributes.emplace(attr.name, attr.value(match_));
    if (e.is_identity() && e.is_identity()(operands[0], attributes)) return operands[0];
    return b_.Op(e.op().name(), std::move(operands), std::move(attributes));
  }

 private:
  // Returns a matched constant of this number, or a new one.
  Value Number(double number, const TensorType& type) {
    for (const Value value : match_.numbers_) {
      if (value.type() == type && IsSplat(value, number)) return value;
    }
    return Splat(b_, Tensor::Scalar(type.dtype, number), type.shape);
  }

  const Match& match_;
  Builder& b_;
};

std::optional<Match> FindMatch(const Expr& pattern, const Condition& condition, Node& node, const Graph& graph) {
  LOCKSTEP_CHECK(pattern.kind() == Expr::Kind::kOp) << "a pattern is of an op";
  if (&node.op() != &pattern.op()) return std::nullopt;
  const unsigned num_orders = 1U << CountCommutative(pattern);
  for (unsigned swapped = 0; swapped < num_orders; ++swapped) {
    Matcher matcher(node, graph, swapped);
    if (matcher.Matches(pattern, node.result()) && (!condition || condition(matcher.match()))) return matcher.match();
  }
  return std::nullopt;
}

Value BuildReplacement(const Expr& replacement, const Match& match, Builder& b) {
  if (!CanFold(replacement, match)) return Value();
  return Replacer(match, b).Build(replacement, match.node().type());
}

}  // namespace lockstep::passes
