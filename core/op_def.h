// The definition of an op: one OpDef, written as one block in core/ops/<family>.cc. It is the single source of the op's
// documentation (docs/ops.md), inference and verification, reference meaning, gradient, placement rule and
// decomposition. OpDefs are immutable once made; any thread may use them.

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

// The common part of all contexts of a node: the op and the attributes, with defaults filled in.
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
  // Starts the message of an error: "<op> (C1): ". The caller of the rule appends the source of the node.
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
  // True if types are those of the part that one rank holds. Else types are global, and collectives do not change them.
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

// Reference meaning on one rank: operand tensors in, result tensors (allocated, zero) out. Clear rather than fast.
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

// Reference meaning of a collective: the tensors of all ranks of one group along the mesh axis, in order of their
// coordinates.
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

// Gradient (vector-Jacobian product). grad(i) is the gradient of the loss with respect to result i and has the result's
// type. It is null if no gradient flows back through that result. Contribute(i, v) adds v to the gradient of operand i.
// Errors are kept in the builder.
class VjpContext : public NodeContext {
 public:
  // `needed[i]` is true if the gradient of operand i is wanted. If empty, all are wanted.
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
  // True if the gradient of operand i is wanted. Contributions to other operands are allowed and dropped.
  bool is_needed(size_t i) const { return needed_.empty() || needed_[i]; }
  // Requires that `value` is null or has the type of operand i.
  void Contribute(size_t i, Value value);
  // Replaces this node by the new node `spec`, which has more results, for use by the gradient. Result i of this node
  // is replaced by result results[i] of the new one.
  absl::StatusOr<Node*> Replace(NodeSpec spec, const std::vector<size_t>& results);
  bool is_replaced() const { return is_replaced_; }
  // Reports that this node has no gradient, and the reason, such as the value of an attribute.
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

// Placement rule, for one mesh axis at a time. Given the placements of the operands, the rule sets the placements that
// the op requires of them (default: as they are) and the resulting placements of its results (default: replicated).
// Types are always those of the one-rank program. The rule is used by the distribute pass, which moves operands as
// required; by a placed graph, when a node is inserted; and by the verifier, which refuses a node whose operands are
// not placed as required.
//
// wanted() is set if a consumer wants the result split although all operands are replicated. A cheap op such as
// `broadcast` can then compute only its slice by calling Require and Result. After an op that ignores it a `shard` is
// inserted.
class PlacementContext : public NodeContext {
 public:
  // All arguments are borrowed and must outlive the context.
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
  // The op as a whole cannot be placed like this. Its decomposition is distributed instead, with the attributes `with`
  // changed before and the operands placed as required.
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

// The arguments of an op's index functions: its attributes, the shape of its first operand, if it has one, and the
// shape of its first result.
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
    std::vector<std::string> choices = {};  // allowed values of a string; any if empty
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

  // --- Writing an op. Every setter returns *this, so that an op is one chained expression. ---------------------------
  OpDef& Doc(std::string text) { return doc_ = std::move(text), *this; }
  OpDef& Operand(std::string name) { return operands_.push_back(std::move(name)), *this; }
  OpDef& Variadic(std::string name) {
    return variadic_ = true, Operand(std::move(name));
  }  // the last operand, repeated once or more
  OpDef& VariadicOrNone(std::string name) { return may_be_none_ = true, Variadic(std::move(name)); }
  OpDef& Result(std::string name) { return results_.push_back(std::move(name)), *this; }  // default: one named "result"
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
  // Entry d of the attribute, a list, is a number of elements along dimension d of the first result, as in the `shape`
  // of a broadcast. In a local graph it counts the elements of one rank's part.
  OpDef& PerDim(std::string_view attribute);
  // The range of the attribute declared last, a float or an int. InferTypes refuses other numbers by the constraint
  // (range).
  OpDef& In(NumberRange range);
  // The allowed strings of the attribute declared last. InferTypes refuses others by the constraint (choice).
  OpDef& OneOf(std::vector<std::string> choices);
  // The attribute declared last, a float, may be an operand instead: an OperandRef to an f64 scalar after the op's own
  // operands. The producer of such a number must keep it within the range.
  OpDef& OrOperand();
  OpDef& Trait(OpTrait trait) { return traits_ |= trait, *this; }
  OpDef& Precision(PrecisionRule rule) { return precision_ = rule, *this; }  // without this, kFull
  // A movement of one operand: result element i is the operand's element at the index that the map gives for i. Such an
  // op is fused into loops without further code.
  OpDef& MovesFrom(MoveFn fn) { return index_map_ = std::move(fn), Trait(kMovement); }
  // A generator: result element i is the value of this function at i, in the result's dtype.
  OpDef& Counts(CountFn fn) { return count_ = std::move(fn), Trait(kGenerator); }
  // A reduction by `kind`, which must not be kMean, of its one operand over the dimensions in the attribute `dims`, an
  // increasing list. The result does not have these dimensions.
  OpDef& Reduces(ReduceKind kind);
  // A collective, which the communicator runs as `op`. Its attribute `axis` names the mesh axis. Further attributes, as
  // CollectiveTraits require: `kind` of a reduction, `root`, `dim` if it gathers or scatters (`split_dim` and
  // `concat_dim` if it does both), `sources` and `targets` of pairs, and `bucket` if it may be in one.
  OpDef& Communicates(CollectiveOp op) { return collective_ = op, Trait(kCollective).Trait(kOneRankIdentity); }
  // The error bound of an elementwise op in f32: the greatest difference of any backend's results from the reference
  // meaning for the same operands, in units in the last place (default: 0). Other ops have no such bound.
  OpDef& F32Error(int64_t ulps) { return f32_ulps_ = ulps, *this; }
  // The domain of an elementwise op of one or two floats: `fn` returns true if the op is defined, and not steep, for
  // operands in the given ranges. Tests draw operands within the domain.
  OpDef& Domain(DomainFn fn) { return domain_ = std::move(fn), *this; }
  // The error of an elementwise op that has no result for some operands, such as "integer division by zero". It does
  // not name the operands, because a loop does not know them. Evaluation fails with the same text.
  OpDef& ChecksData(RefusalFn fn) { return refusal_ = std::move(fn), *this; }
  // The number of arithmetic operations of a node, for reports. Default: by its traits, see FlopsOf.
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
  // The data of an optimizer (core/optimizer.h): a state, in order of the operands; the ranks of the variables that it
  // updates, if not all; and a name by which users choose it.
  OpDef& State(OptimizerState state) { return optimizer_.states.push_back(std::move(state)), *this; }
  OpDef& Updates(VariableRanks ranks) {
    return optimizer_.ranks = ranks, Constraint("rank", "w has " + ranks.ToString());
  }
  OpDef& UserName(OptimizerName name) { return optimizer_.names.push_back(std::move(name)), *this; }

  // --- Reading an op. ------------------------------------------------------------------------------------------------
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
  // True if each result element is an element of the one operand whose index is known: by index_map(), or by the
  // row-major order that kKeepsOrder keeps.
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
  const VjpFn& vjp() const { return vjp_; }  // empty for an op without a gradient; see no_gradient()
  const std::string& no_gradient() const { return no_gradient_; }
  const PlaceFn& place() const { return place_; }
  const DecomposeFn& decompose() const { return decompose_; }  // empty for a primitive op
  const OptimizerInfo& optimizer() const { return optimizer_; }

  // Fills in defaults. Unknown, missing or mistyped attributes are errors, but an int is converted if a float is
  // expected. InferTypes checks that the operands to which attributes refer exist.
  absl::StatusOr<AttributeMap> CompleteAttributes(AttributeMap attributes) const;

  // Checks the number of operands and the ranges and choices of attributes, then applies the op's own rule.
  // `attributes` must be complete.
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

// The index map and the count of the node's op, for this node. Require that the op has them.
IndexMap IndexMapOf(const Node& node);
Affine CountOf(const Node& node);

// The number of arithmetic operations of the node. An addition, a comparison or a function such as exp counts as one, a
// multiplication followed by an addition as two. Ops such as matrix products, convolutions and pools define the number
// by Flops. Otherwise an elementwise op has one operation for each element of its result. Movements, generators and
// collectives have none. Every other op, such as a reduction or a normalisation, has one for each element of its
// largest operand or result.
double FlopsOf(const Node& node);

// The number of elements of operand `i` that the node reads: all of them, but of a movement, such as a slice or a
// gather, no more than it has results. A fusion reads what the nodes in its body read.
int64_t ElementsRead(const Node& node, size_t i);

// All ops, in the order of docs/ops.md. Each is one line in core/ops/op_list.h.
const std::vector<const OpDef*>& AllOps();
const OpDef* FindOp(std::string_view name);  // null if there is none
const OpDef& GetOp(std::string_view name);   // requires that there is one

// The pseudo-op of a graph's inputs. It is not in AllOps() and cannot be inserted.
const OpDef& InputOp();

}  // namespace lockstep
