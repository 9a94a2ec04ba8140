// What an op is: one OpDef, written as one block in core/ops/<family>.cc. It is the single source for the documentation
// (docs/ops.md), inference and verification, reference meaning, gradient, placement rule and decomposition.
// OpDefs are immutable once made; any thread may use them.

#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/affine.h"
#include "core/attributes.h"
#include "core/collective_op.h"
#include "core/graph.h"
#include "core/op_traits.h"
#include "core/optimizer.h"
#include "core/placement.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

class Builder;
class OpDef;

// What every context knows of a node: the op and the attributes, with defaults filled in.
class NodeContext {
 public:
  NodeContext(const OpDef& op, const AttributeMap& attributes) : op_(op), attributes_(attributes) {}
  const OpDef& op() const { return op_; }
  const AttributeMap& attributes() const { return attributes_; }
  template <typename T>
  const T& attr(std::string_view name) const {
    const auto it = attributes_.find(name);
    LOCKSTEP_CHECK(it != attributes_.end() && std::holds_alternative<T>(it->second)) << "attribute " << name;
    return std::get<T>(it->second);
  }
  // Starts a message "<op> (C1): ". The source of the node is appended by the caller of the rule.
  ErrorStream Error(std::string_view constraint) const;

 protected:
  const OpDef& op_;
  const AttributeMap& attributes_;
};

// Inference: operand types and attributes in, result types out.
class InferContext : public NodeContext {
 public:
  InferContext(const OpDef& op, const AttributeMap& attributes, std::span<const TensorType> operands, const Mesh& mesh,
               bool is_local)
      : NodeContext(op, attributes), operands_(operands), mesh_(mesh), is_local_(is_local) {}
  size_t num_operands() const { return operands_.size(); }
  const TensorType& operand(size_t i) const { return operands_[i]; }
  const Shape& shape(size_t i) const { return operands_[i].shape; }
  DType dtype(size_t i) const { return operands_[i].dtype; }
  const Mesh& mesh() const { return mesh_; }
  // The size of the mesh axis that the attribute `axis` names.
  absl::StatusOr<int64_t> axis_size() const { return mesh_.axis_size(attr<std::string>("axis")); }
  // Whether types are those of one rank: global types say what all ranks hold, and a collective does not change them.
  bool is_local() const { return is_local_; }

  absl::Status SetResult(TensorType type) { return SetResults({std::move(type)}); }
  absl::Status SetResult(DType dtype, Shape shape) { return SetResult(TensorType{dtype, std::move(shape)}); }
  absl::Status SetResults(std::vector<TensorType> types) {
    results_ = std::move(types);
    return absl::OkStatus();
  }
  std::vector<TensorType>& results() { return results_; }

 private:
  std::span<const TensorType> operands_;
  const Mesh& mesh_;
  const bool is_local_;
  std::vector<TensorType> results_;
};

// Reference meaning on one rank: operand tensors in, result tensors (allocated, zero) out. Clarity before speed.
class EvalContext : public NodeContext {
 public:
  EvalContext(const OpDef& op, const AttributeMap& attributes, std::span<const Tensor* const> operands,
              std::span<Tensor> results)
      : NodeContext(op, attributes), operands_(operands), results_(results) {}
  size_t num_operands() const { return operands_.size(); }
  const Tensor& operand(size_t i) const { return *operands_[i]; }
  Tensor& result(size_t i = 0) const { return results_[i]; }

 private:
  std::span<const Tensor* const> operands_;
  std::span<Tensor> results_;
};

// Reference meaning of a collective: the tensors of all ranks of one group along the mesh axis, in order of the
// coordinate.
class RanksEvalContext : public NodeContext {
 public:
  RanksEvalContext(const OpDef& op, const AttributeMap& attributes,
                   std::span<const std::vector<const Tensor*>> operands, std::span<std::vector<Tensor>> results)
      : NodeContext(op, attributes), operands_(operands), results_(results) {}
  size_t num_ranks() const { return operands_.size(); }
  size_t num_operands() const { return operands_[0].size(); }
  const Tensor& operand(size_t rank, size_t i) const { return *operands_[rank][i]; }
  Tensor& result(size_t rank, size_t i = 0) const { return results_[rank][i]; }

 private:
  std::span<const std::vector<const Tensor*>> operands_;
  std::span<std::vector<Tensor>> results_;
};

// Gradient (vector-Jacobian product). grad(i) is the gradient of the loss with respect to result i, of the result's
// type; it is null where nothing flows back through that result. Contribute(i, v) adds v to the gradient of operand i.
// Errors stay in the builder.
class VjpContext : public NodeContext {
 public:
  // `needed` says of which operands the gradient is wanted; empty: of all.
  VjpContext(Node& node, std::span<const Value> grads, Builder& builder, std::vector<std::vector<Value>>& contributions,
             std::vector<bool> needed = {})
      : NodeContext(node.op(), node.attributes()),
        node_(node),
        grads_(grads),
        builder_(builder),
        contributions_(contributions),
        needed_(std::move(needed)) {}
  Value operand(size_t i) const { return node_.operand(i); }
  size_t num_operands() const { return node_.operands().size(); }
  Value result(size_t i = 0) const { return node_.result(i); }
  Value grad(size_t i = 0) const { return grads_[i]; }
  Builder& b() const { return builder_; }
  // Whether the gradient of operand i is wanted: others may be contributed, and are dropped.
  bool is_needed(size_t i) const { return needed_.empty() || needed_[i]; }
  // `value` must have the type of operand i.
  void Contribute(size_t i, Value value);
  // Puts a node that keeps more for its gradient in the place of this one: `results` are its, for each of this node's.
  absl::StatusOr<Node*> Replace(NodeSpec spec, const std::vector<size_t>& results);
  bool is_replaced() const { return is_replaced_; }
  // Says that the gradient cannot be derived for this node and why, e.g. for an unusual attribute.
  void Fail(std::string reason);

 private:
  Node& node_;
  std::span<const Value> grads_;
  Builder& builder_;
  std::vector<std::vector<Value>>& contributions_;
  const std::vector<bool> needed_;
  bool is_replaced_ = false;
};

// Decomposition into simpler ops with the same results.
class DecomposeContext : public NodeContext {
 public:
  DecomposeContext(Node& node, Builder& builder)
      : NodeContext(node.op(), node.attributes()), node_(node), builder_(builder) {}
  Value operand(size_t i) const { return node_.operand(i); }
  size_t num_operands() const { return node_.operands().size(); }
  Builder& b() const { return builder_; }

 private:
  Node& node_;
  Builder& builder_;
};

// Placement rule, for one mesh axis at a time. Given where the operands are, the rule says where the op needs them
// (default: where they are) and where its results then are (default: replicated). Types are those of the one-rank
// program, whoever asks: the distribute pass, which moves operands to where they are required; a placed graph, when a
// node is inserted; the verifier, which refuses a node whose operands are elsewhere.
//
// wanted() is set when a consumer wants the result split although all operands are replicated: a cheap op such as
// `broadcast` then may produce just its slice by Require and Result; an op that ignores it gets a `shard` after it.
class PlacementContext : public NodeContext {
 public:
  // All that is given is borrowed, and outlives the context.
  PlacementContext(const OpDef& op, const AttributeMap& attributes, std::span<const TensorType> operand_types,
                   std::span<const TensorType> result_types, std::span<const Placement> operands,
                   const MeshAxis& mesh_axis, std::optional<Placement> wanted);
  size_t num_operands() const { return operands_.size(); }
  size_t num_results() const { return results_.size(); }
  const Placement& operand(size_t i) const { return operands_[i]; }
  const Shape& shape(size_t i) const { return operand_types_[i].shape; }
  DType dtype(size_t i) const { return operand_types_[i].dtype; }
  const TensorType& result_type(size_t i = 0) const { return result_types_[i]; }
  int64_t axis_size() const { return mesh_axis_.size; }
  const MeshAxis& mesh_axis() const { return mesh_axis_; }  // the axis that is being placed
  const std::optional<Placement>& wanted() const { return wanted_; }

  void Require(size_t i, Placement placement) { required_[i] = placement; }
  void RequireAll(Placement placement) { required_.assign(required_.size(), placement); }
  void Result(size_t i, Placement placement) { results_[i] = placement; }
  void Result(Placement placement) { results_.assign(results_.size(), placement); }
  // The op cannot be placed like this as a whole: distribute its decomposition, with these attributes changed before,
  // of operands that are where they are required.
  void Decompose(AttributeMap with = {}) {
    decompose_ = true;
    decompose_with_ = std::move(with);
  }
  // The placement is impossible; `reason` ends the message "<op> ... along axis data: <reason>".
  void Fail(std::string reason) { failure_ = std::move(reason); }

  const std::vector<Placement>& required() const { return required_; }
  const std::vector<Placement>& results() const { return results_; }
  bool decompose() const { return decompose_; }
  const AttributeMap& decompose_with() const { return decompose_with_; }
  const std::string& failure() const { return failure_; }

 private:
  std::span<const TensorType> operand_types_, result_types_;
  std::span<const Placement> operands_;
  const MeshAxis& mesh_axis_;
  std::optional<Placement> wanted_;
  std::vector<Placement> required_, results_;
  bool decompose_ = false;
  AttributeMap decompose_with_;
  std::string failure_;
};

// What the index functions of an op are asked about: its attributes, and the shapes of its first operand, if it has
// one, and of its first result.
class IndexContext : public NodeContext {
 public:
  explicit IndexContext(const Node& node);
  const Shape& operand() const { return operand_; }
  const Shape& result() const { return result_; }

 private:
  const Shape &operand_, &result_;
};

// The least and the largest element of an operand.
struct ValueRange {
  double low, high;
};

class OpDef {
 public:
  struct AttributeDef {
    std::string name;
    Attribute example;  // of the attribute's type
    bool required = true;
    std::string doc;
    bool is_per_dim = false;
    std::optional<NumberRange> range = {};  // of a float or an int
    bool may_be_operand = false;            // of a float
    std::vector<std::string> choices = {};  // of a string: those that it may be; any if empty
  };
  struct ConstraintDef {
    std::string id, text;
  };
  using InferFn = std::function<absl::Status(InferContext&)>;
  using EvalFn = std::function<absl::Status(EvalContext&)>;
  using RanksEvalFn = std::function<absl::Status(RanksEvalContext&)>;
  using VjpFn = std::function<void(VjpContext&)>;
  using DecomposeFn = std::function<std::vector<Value>(DecomposeContext&)>;
  using PlaceFn = std::function<void(PlacementContext&)>;
  using MoveFn = std::function<IndexMap(const IndexContext&)>;
  using CountFn = std::function<Affine(const IndexContext&)>;
  using DomainFn = std::function<bool(std::span<const ValueRange> operands)>;
  using RefusalFn = std::function<std::string(const AttributeMap&)>;
  using FlopsFn = std::function<double(const Node& node)>;

  explicit OpDef(std::string name) : name_(std::move(name)) {}

  // --- Writing an op. Every setter returns *this by value-friendly reference, for one chained block. -----------------
  OpDef& Doc(std::string text) { return doc_ = std::move(text), *this; }
  OpDef& Operand(std::string name) { return operands_.push_back(std::move(name)), *this; }
  OpDef& Variadic(std::string name) {
    return variadic_ = true, Operand(std::move(name));
  }  // the last operand: one or more
  OpDef& VariadicOrNone(std::string name) { return may_be_none_ = true, Variadic(std::move(name)); }
  OpDef& Result(std::string name) { return results_.push_back(std::move(name)), *this; }  // default: one, "result"
  template <typename T>
  OpDef& Attr(std::string name, std::string doc = "") {
    attributes_.push_back({std::move(name), Attribute(T()), true, std::move(doc)});
    return *this;
  }
  template <typename T>
  OpDef& OptionalAttr(std::string name, T default_value, std::string doc = "") {
    attributes_.push_back({std::move(name), Attribute(std::move(default_value)), false, std::move(doc)});
    return *this;
  }
  // Entry d of the attribute, a list, counts elements along dimension d of the first result, such as a broadcast's
  // `shape`: where types are local it says the rank's share.
  OpDef& PerDim(std::string_view attribute);
  // Which numbers the attribute before it, a float or an int, may be. InferTypes refuses others: the constraint
  // (range).
  OpDef& In(NumberRange range);
  // Which strings the attribute before it may be. InferTypes refuses others: the constraint (choice).
  OpDef& OneOf(std::vector<std::string> choices);
  // The attribute before it, a float, may be an operand instead: an OperandRef to an f64 scalar after the op's own
  // operands. Whoever computes such a number keeps it within the range.
  OpDef& OrOperand();
  OpDef& Trait(OpTrait trait) { return traits_ |= trait, *this; }
  OpDef& Precision(PrecisionRule rule) { return precision_ = rule, *this; }  // without this, kFull
  // A movement of one operand: result element i is the operand's element at this map of i. Loops then fuse the op by
  // themselves.
  OpDef& MovesFrom(MoveFn fn) { return index_map_ = std::move(fn), Trait(kMovement); }
  // A generator: result element i is this number, in the result's dtype.
  OpDef& Counts(CountFn fn) { return count_ = std::move(fn), Trait(kGenerator); }
  // Combines by `kind`, which is no mean, the elements of its one operand along the dimensions of the attribute
  // `dims`, a list that increases, and removes these.
  OpDef& Reduces(ReduceKind kind);
  // What the communicator has to do for it. Its attribute `axis` names the mesh axis; a reduction's `kind`, the `root`,
  // the `dim` of what gathers or scatters (`split_dim` and `concat_dim` of what does both), the `sources` and `targets`
  // of pairs, and the `bucket` of what may be in one are attributes too.
  OpDef& Communicates(CollectiveOp op) { return collective_ = op, Trait(kCollective).Trait(kOneRankIdentity); }
  // Of an elementwise op: in f32 the results of any backend are at most so many units in the last place from those of
  // the reference meaning for the same operands; without this, none. Of other ops nothing as exact is said.
  OpDef& F32Error(int64_t ulps) { return f32_ulps_ = ulps, *this; }
  // Whether the op, an elementwise one of one or two floats, is defined, and not steep, for operands in these ranges:
  // tests that draw operands stay where it is.
  OpDef& Domain(DomainFn fn) { return domain_ = std::move(fn), *this; }
  // Of an elementwise op that has no result for some operands: what is wrong with them, without the operands themselves
  // ("integer division by zero"). Evaluation refuses them with the same; a loop knows no more than this.
  OpDef& Refuses(RefusalFn fn) { return refusal_ = std::move(fn), *this; }
  // How many operations on numbers the node needs, for people; without this, what FlopsOf says of its traits.
  OpDef& Flops(FlopsFn fn) { return flops_ = std::move(fn), *this; }
  OpDef& Constraint(std::string id, std::string text) {
    return constraints_.push_back({std::move(id), std::move(text)}), *this;
  }
  OpDef& Infer(InferFn fn) { return infer_ = std::move(fn), *this; }
  OpDef& Eval(EvalFn fn) { return eval_ = std::move(fn), *this; }
  OpDef& EvalAcrossRanks(RanksEvalFn fn) { return ranks_eval_ = std::move(fn), *this; }
  OpDef& Vjp(VjpFn fn) { return vjp_ = std::move(fn), *this; }
  OpDef& NoGradient(std::string reason) { return no_gradient_ = std::move(reason), *this; }
  OpDef& Place(PlaceFn fn) { return place_ = std::move(fn), *this; }
  OpDef& Decompose(DecomposeFn fn) { return decompose_ = std::move(fn), *this; }
  // Of an optimizer (core/optimizer.h): a state, in order of the operands; the variables that it updates, if not all;
  // and a name by which users ask for it.
  OpDef& State(OptimizerState state) { return optimizer_.states.push_back(std::move(state)), *this; }
  OpDef& Updates(VariableRanks ranks) {
    return optimizer_.ranks = ranks, Constraint("rank", "w has " + ranks.ToString());
  }
  OpDef& KnownAs(OptimizerName name) { return optimizer_.names.push_back(std::move(name)), *this; }

  // --- Reading it. ---------------------------------------------------------------------------------------------------
  const std::string& name() const { return name_; }
  const std::string& doc() const { return doc_; }
  const std::vector<std::string>& operand_names() const { return operands_; }
  bool is_variadic() const { return variadic_; }
  std::vector<std::string> result_names() const {
    return results_.empty() ? std::vector<std::string>{"result"} : results_;
  }
  const std::vector<AttributeDef>& attribute_defs() const { return attributes_; }
  const AttributeDef* FindAttribute(std::string_view name) const;
  const std::vector<ConstraintDef>& constraints() const { return constraints_; }
  bool has_trait(OpTrait trait) const { return (traits_ & trait) != 0; }
  PrecisionRule precision() const { return precision_; }
  const MoveFn& index_map() const { return index_map_; }  // empty for an op that is not MovesFrom; see IndexMapOf
  const CountFn& count() const { return count_; }         // empty for an op that is not Counts; see CountOf
  // Whether each result element is one of the one operand, of which others can say where it is.
  bool is_mover() const { return index_map_ || has_trait(kKeepsOrder); }
  std::optional<ReduceKind> reduction() const { return reduction_; }
  std::optional<CollectiveOp> collective() const { return collective_; }
  int64_t f32_ulps() const { return f32_ulps_; }
  bool has_domain() const { return static_cast<bool>(domain_); }
  bool InDomain(std::span<const ValueRange> operands) const { return !domain_ || domain_(operands); }
  const RefusalFn& refusal() const { return refusal_; }  // empty for most
  const FlopsFn& flops() const { return flops_; }        // empty for most; see FlopsOf
  const EvalFn& eval() const { return eval_; }
  const RanksEvalFn& ranks_eval() const { return ranks_eval_; }
  const VjpFn& vjp() const { return vjp_; }  // empty: see no_gradient()
  const std::string& no_gradient() const { return no_gradient_; }
  const PlaceFn& place() const { return place_; }
  const DecomposeFn& decompose() const { return decompose_; }  // empty for a primitive op
  const OptimizerInfo& optimizer() const { return optimizer_; }

  // Fills in defaults; refuses unknown, missing or mistyped attributes (an int where a float is due is converted).
  // Whether an attribute refers to an operand that there is, InferTypes says.
  absl::StatusOr<AttributeMap> CompleteAttributes(AttributeMap attributes) const;

  // Number of operands, ranges and choices of attributes, then the op's own rule. `attributes` must be complete.
  absl::StatusOr<std::vector<TensorType>> InferTypes(std::span<const TensorType> operands,
                                                     const AttributeMap& attributes, const Mesh& mesh = {},
                                                     bool is_local = false) const;

 private:
  std::string name_, doc_;
  std::vector<std::string> operands_, results_;
  bool variadic_ = false, may_be_none_ = false;
  std::vector<AttributeDef> attributes_;
  std::vector<ConstraintDef> constraints_;
  uint32_t traits_ = 0;
  PrecisionRule precision_ = PrecisionRule::kFull;
  MoveFn index_map_;
  CountFn count_;
  std::optional<ReduceKind> reduction_;
  std::optional<CollectiveOp> collective_;
  int64_t f32_ulps_ = 0;
  DomainFn domain_;
  RefusalFn refusal_;
  FlopsFn flops_;
  InferFn infer_;
  EvalFn eval_;
  RanksEvalFn ranks_eval_;
  VjpFn vjp_;
  std::string no_gradient_;
  PlaceFn place_;
  DecomposeFn decompose_;
  OptimizerInfo optimizer_;
};

// The functions of the node's op, for this node. They require that it has them.
IndexMap IndexMapOf(const Node& node);
Affine CountOf(const Node& node);

// How many operations on numbers the node needs: an addition, a comparison or a function such as exp is one, a product
// that is added to a sum two. Matrix products, convolutions and pools say it; otherwise an elementwise op has one for
// each element of its result, what moves elements, generates or communicates has none, and every other op, such as a
// reduction or a normalisation, one for each element of its largest operand or result.
double FlopsOf(const Node& node);

// The list of all ops, in the order of docs/ops.md; one line each in core/ops/op_list.h.
const std::vector<const OpDef*>& AllOps();
const OpDef* FindOp(std::string_view name);  // null if there is none
const OpDef& GetOp(std::string_view name);   // requires that there is one

// The pseudo-op of a graph's inputs; it is in no list and cannot be inserted.
const OpDef& InputOp();

}  // namespace lockstep
