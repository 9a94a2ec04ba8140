// Attention and its gradients: values weighted by a softmax of the scaled products of queries and keys.

#include "core/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace ops {

AttentionDims::AttentionDims(const AttributeMap& attributes, const Shape& q, const Shape& k, const Shape& v,
                             const Shape* mask) {
  const int64_t rank = q.rank();
  for (int64_t i = 0; i < rank - 2; ++i) heads *= q[i];
  if (rank > 2 && k[rank - 3] > 0) group = q[rank - 3] / k[rank - 3];
  queries = q[rank - 2];
  keys = k[rank - 2];
  size = q[rank - 1];
  value_size = v[rank - 1];
  causal = std::get<bool>(attributes.at("causal"));
  past = std::get<int64_t>(attributes.at("past"));
  scale = std::get<double>(attributes.at("scale"));
  softcap = std::get<double>(attributes.at("softcap"));
  if (mask == nullptr) return;
  mask_row = (*mask)[rank - 2] > 1 ? keys : 0;
  const std::vector<int64_t> strides = mask->Strides();
  for (int64_t head = 0; head < heads; ++head) {
    int64_t offset = 0, rest = head;
    for (int64_t i = rank - 3; i >= 0; --i) {
      if ((*mask)[i] > 1) offset += rest % q[i] * strides[static_cast<size_t>(i)];
      rest /= q[i];
    }
    mask_offsets.push_back(offset);
  }
}

}  // namespace ops

namespace {

DType StatisticsType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

TensorType StatisticsOf(const TensorType& q) {
  return {StatisticsType(q.dtype), q.shape.Without({q.shape.rank() - 1})};
}

absl::Status CheckQueriesKeysValues(const InferContext& c) {
  const TensorType &q = c.operand(0), &k = c.operand(1), &v = c.operand(2);
  if (!IsFloat(q.dtype) || k.dtype != q.dtype || v.dtype != q.dtype) {
    return c.Error("C1") << "q, k and v are " << q << ", " << k << " and " << v
                         << ", expected one floating-point dtype";
  }
  const int64_t rank = q.shape.rank();
  if (rank < 2 || k.shape.rank() != rank || v.shape.rank() != rank) {
    return c.Error("C2") << "ranks of q " << q << ", k " << k << " and v " << v
                         << ", expected equal ranks of at least 2";
  }
  for (int64_t i = 0; i < rank - 2; ++i) {
    const int64_t of_q = q.shape[i], of_k = k.shape[i];
    const bool fits = of_q == of_k || (i == rank - 3 && of_k > 0 && of_q > 0 && of_q % of_k == 0);
    if (!fits || v.shape[i] != of_k) {
      return c.Error("C3") << "dimension " << i << " of q " << q << ", k " << k << " and v " << v
                           << ", expected equal ones" << (i == rank - 3 ? ", or a positive multiple in q" : "");
    }
  }
  if (k.shape[rank - 1] != q.shape[rank - 1]) {
    return c.Error("C4") << "the last dimensions of q " << q << " and k " << k << " differ";
  }
  if (k.shape[rank - 2] != v.shape[rank - 2]) {
    return c.Error("C4") << "the numbers of keys, " << k << ", and of values, " << v << ", differ";
  }
  return absl::OkStatus();
}

absl::Status CheckMask(const InferContext& c, size_t operand) {
  if (c.num_operands() <= operand) return absl::OkStatus();
  const TensorType &q = c.operand(0), &mask = c.operand(operand);
  if (c.num_operands() > operand + 1) return c.Error("C5") << c.num_operands() - operand << " masks, expected one";
  if (mask.dtype != DType::kBool && mask.dtype != q.dtype) {
    return c.Error("C5") << "the mask is " << mask << ", expected bool or the dtype of q " << q;
  }
  const int64_t rank = q.shape.rank(), keys = c.shape(1)[rank - 2];
  bool fits = mask.shape.rank() == rank && mask.shape[rank - 1] == keys;
  for (int64_t i = 0; fits && i < rank - 1; ++i) fits = mask.shape[i] == q.shape[i] || mask.shape[i] == 1;
  if (fits) return absl::OkStatus();
  return c.Error("C6") << "the mask is " << mask << ", expected " << q.shape.WithDim(rank - 1, keys)
                       << ", of which all dimensions but the last may be 1";
}

absl::Status CheckAttributes(const InferContext& c) {
  if (!std::isfinite(c.attr<double>("scale"))) {
    return c.Error("C7") << "scale is " << c.attr<double>("scale") << ", expected a finite number";
  }
  const int64_t past = c.attr<int64_t>("past");
  constexpr int64_t kMost = int64_t{1} << 40;
  if (past < -kMost || past > kMost) return c.Error("C7") << "past is " << past << ", expected at most 2^40";
  return absl::OkStatus();
}

absl::Status CheckAttention(const InferContext& c, size_t mask) {
  RETURN_IF_ERROR(CheckQueriesKeysValues(c));
  RETURN_IF_ERROR(CheckMask(c, mask));
  return CheckAttributes(c);
}

absl::Status InferAttention(InferContext& c) {
  RETURN_IF_ERROR(CheckAttention(c, ops::kForwardOperands.mask));
  const TensorType& q = c.operand(0);
  const int64_t last = q.shape.rank() - 1;
  return c.SetResults({{q.dtype, q.shape.WithDim(last, c.shape(2)[last])}, StatisticsOf(q)});
}

absl::Status CheckGradOperands(const InferContext& c) {
  RETURN_IF_ERROR(CheckAttention(c, ops::kGradOperands.mask));
  const TensorType& q = c.operand(0);
  const int64_t last = q.shape.rank() - 1;
  const TensorType statistics = StatisticsOf(q), y = {q.dtype, q.shape.WithDim(last, c.shape(2)[last])};
  for (const size_t i : {ops::kGradOperands.log_sum_exp, ops::kGradOperands.dy, ops::kGradOperands.delta}) {
    const TensorType& expected = i == ops::kGradOperands.dy ? y : statistics;
    if (c.operand(i) != expected)
      return c.Error("C8") << c.op().operand_names()[i] << " is " << c.operand(i) << ", expected " << expected;
  }
  return absl::OkStatus();
}

absl::Status InferAttentionGrad(InferContext& c) {
  RETURN_IF_ERROR(CheckGradOperands(c));
  return c.SetResults({c.operand(0), c.operand(1), c.operand(2)});
}

absl::Status InferAttentionMaskGrad(InferContext& c) {
  RETURN_IF_ERROR(CheckGradOperands(c));
  if (c.num_operands() <= ops::kGradOperands.mask || c.dtype(ops::kGradOperands.mask) == DType::kBool)
    return c.Error("C9") << "there is no mask of the dtype of q " << c.operand(0);
  return c.SetResult(c.operand(ops::kGradOperands.mask));
}

// With the softmax P, dS = P * (dy V^T - delta), where delta is the sum of dy * y over a row less the gradient of
// log_sum_exp, which adds P times itself to dS.
void AttentionVjp(VjpContext& c) {
  if (!c.grad(0) && !c.grad(1)) return;
  Builder& b = c.b();
  const Value y = c.result(0), log_sum_exp = c.result(1);
  const Value dy = c.grad(0) ? c.grad(0) : b.SplatLike(0.0, y);
  Value delta = b.SplatLike(0.0, log_sum_exp);
  if (c.grad(0)) {
    const DType dtype = log_sum_exp.dtype();
    delta = b.ReduceSum(b.Mul(b.Convert(dy, dtype), b.Convert(y, dtype)), {y.shape().rank() - 1});
  }
  if (c.grad(1)) delta = b.Sub(delta, c.grad(1));
  std::vector<Value> operands = {c.operand(0), c.operand(1), c.operand(2), log_sum_exp, dy, delta};
  const bool has_mask = c.num_operands() > ops::kForwardOperands.mask;
  if (has_mask) operands.push_back(c.operand(ops::kForwardOperands.mask));
  const std::vector<Value> grads = b.Ops("attention_grad", operands, c.attributes());
  for (size_t i = 0; i < grads.size(); ++i) c.Contribute(i, grads[i]);
  if (has_mask && operands.back().dtype() != DType::kBool)
    c.Contribute(ops::kForwardOperands.mask, b.Op("attention_mask_grad", operands, c.attributes()));
}

// The number of pairs of a query and a key that it may see, in all heads. Masks are ignored.
double Pairs(const Node& node) {
  const ops::AttentionDims dims(node.attributes(), node.operand(0).shape(), node.operand(1).shape(),
                                node.operand(2).shape(), nullptr);
  int64_t some = 0, all = 0;  // the first query that sees a key, and the first that sees all keys
  if (dims.causal) {
    some = std::clamp<int64_t>(-dims.past, 0, dims.queries);
    all = std::clamp<int64_t>(dims.keys - 1 - dims.past, some, dims.queries);
  }
  // Between the two, each query sees one key more than the query before.
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  const double rising = count(all - some) * (count(some + dims.past + 1) + count(all + dims.past)) / 2;
  return count(dims.heads) * (rising + count(dims.queries - all) * count(dims.keys));
}

// The operations of `by_size` products over the size of a key and `by_value` products over the size of a value for each
// pair. Each element of a product is a multiplication and an addition.
double Products(const Node& node, double by_size, double by_value) {
  const auto last = [&](size_t i) { return static_cast<double>(node.operand(i).shape().dims().back()); };
  return 2 * Pairs(node) * (by_size * last(0) + by_value * last(2));
}

double AttentionFlops(const Node& node) { return Products(node, 1, 1); }
// By size: the scaled products again, dq and dk. By value: dy v^T and dv.
double AttentionGradFlops(const Node& node) { return Products(node, 3, 2); }
double AttentionMaskGradFlops(const Node& node) { return Products(node, 1, 1); }

// The attributes and constraints of all three ops.
OpDef WithAttributes(OpDef def) {
  return def.Attr<double>("scale", "the factor of the products of queries and keys")
      .OptionalAttr<bool>("causal", false, "query i sees only the keys [0, i + past]")
      .OptionalAttr<int64_t>("past", 0, "if causal: the number of keys before that of the first query")
      .OptionalAttr<double>("softcap", 0.0, "if not 0: a scaled product s becomes softcap * tanh(s / softcap)")
      .In(AtLeast(0.0))
      .Constraint("C1", "q, k and v have the same floating-point dtype")
      .Constraint("C2", "q, k and v have the same rank, at least 2")
      .Constraint("C3",
                  "the leading dimensions are equal, except that the last of them may be a positive multiple in q")
      .Constraint("C4", "q and k have the same last dimension; there are as many values as keys")
      .Constraint("C5", "there is at most one mask, of bool or the dtype of q")
      .Constraint("C6", "the mask has the shape of q with the keys last; each dimension except the last may be 1")
      .Constraint("C7", "scale is finite, past is at most 2^40 or at least -2^40");
}

OpDef WithGradOperands(OpDef def) {
  return WithAttributes(std::move(def)
                            .Operand("q")
                            .Operand("k")
                            .Operand("v")
                            .Operand("log_sum_exp")
                            .Operand("dy")
                            .Operand("delta")
                            .VariadicOrNone("mask"))
      .Constraint("C8", "dy has the type of y, log_sum_exp and delta that of attention's log_sum_exp")
      .Trait(kOpaque)
      .NoGradient("second derivatives of attention are not needed by any optimizer here");
}

}  // namespace

//===-- attention -----------------------------------------------------------------------------------------------===//
const OpDef& AttentionOp() {
  static const OpDef def =
      WithAttributes(OpDef("attention").Operand("q").Operand("k").Operand("v").VariadicOrNone("mask"))
          .Doc(
              "y = softmax(scale * q k^T + mask) v for each index of the leading dimensions: q is [..., queries, "
              "size], k [..., keys, size], v [..., keys, value size]. The last leading dimension is the heads. Their "
              "number in q may be a multiple of that in k and v: consecutive heads of q then share a head of k and v. "
              "A query does not see a key where a bool mask is false or `causal` excludes it; a float mask is added. A "
              "query that sees no key, because all are masked or minus infinity is added to all, has y = 0. The "
              "softmax is computed in f32, or in f64 if q is f64. log_sum_exp is the logarithm of its denominator, "
              "minus infinity if no key is seen. NaN or an infinity in keys and values that no query sees may still "
              "make results NaN.")
          .Result("y")
          .Result("log_sum_exp")
          .Trait(kOpaque)
          .Infer(InferAttention)
          .Eval(ops::EvalAttention)
          .Flops(AttentionFlops)
          .Precision(PrecisionRule::kLow)
          .Vjp(AttentionVjp)
          .Decompose(ops::DecomposeAttention)
          .Place(ops::PlaceAttention);
  return def;
}

//===-- attention_grad ------------------------------------------------------------------------------------------===//
const OpDef& AttentionGradOp() {
  static const OpDef def =
      WithGradOperands(OpDef("attention_grad"))
          .Doc(
              "The gradients of attention(q, k, v, mask). dy is the gradient of its result y, and delta the sum of dy "
              "* y over the last dimension less the gradient of log_sum_exp. With P = exp(scale * q k^T + mask - "
              "log_sum_exp), which is 0 where a key is not seen or log_sum_exp is minus infinity, and dS = P * (dy v^T "
              "- delta): dq = scale * dS k, dk = scale * dS^T q, dv = P^T dy.")
          .Result("dq")
          .Result("dk")
          .Result("dv")
          .Infer(InferAttentionGrad)
          .Eval(ops::EvalAttentionGrad)
          .Flops(AttentionGradFlops)
          .Decompose(ops::DecomposeAttentionGrad)
          .Place(ops::PlaceAttentionGrad);
  return def;
}

//===-- attention_mask_grad -------------------------------------------------------------------------------------===//
const OpDef& AttentionMaskGradOp() {
  static const OpDef def =
      WithGradOperands(OpDef("attention_mask_grad"))
          .Doc(
              "The gradient of attention with respect to a float mask: the dS of attention_grad, summed over all "
              "elements that share an element of the mask. A separate op, because masks are seldom trained.")
          .Constraint("C9", "there is a mask, of the dtype of q")
          .Infer(InferAttentionMaskGrad)
          .Eval(ops::EvalAttentionMaskGrad)
          .Flops(AttentionMaskGradFlops)
          .Decompose(ops::DecomposeAttentionMaskGrad)
          .Place(ops::PlaceAttentionMaskGrad);
  return def;
}

}  // namespace lockstep
