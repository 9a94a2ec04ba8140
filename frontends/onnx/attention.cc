// Attention: the core op `attention`, with ONNX's masks, past keys and values, and numbers of heads.

#include <cmath>
#include <limits>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;
constexpr double kInf = std::numeric_limits<double>::infinity();

enum AttentionInput { kQ, kK, kV, kMask, kPastKey, kPastValue, kLengths };
enum Output { kY, kPresentKey, kPresentValue, kScores };

// The operands: q, k and v as [batch, heads, length, size]. k and v include the past ones, which come first.
struct Heads {
  Value q, k, v;
  bool in_rank_3 = false;
  int64_t past = 0;

  int64_t batch() const { return q.shape()[0]; }
  int64_t queries() const { return q.shape()[2]; }
  int64_t keys() const { return k.shape()[2]; }
};

// Input i as [batch, heads, length, size]. If `heads` is given, the input is [batch, length, heads * size].
absl::StatusOr<Value> ByHead(OnnxNode& n, int i, int64_t heads) {
  RETURN_IF_ERROR(n.RequireRank(i, 3));
  const Value x = n.input(i);
  const Shape& shape = x.shape();
  if (shape.rank() == 4 && heads == 0) return x;
  if (shape.rank() != 3 || heads < 1 || shape[2] % heads != 0) {
    return n.Error()
           << "input " << i << " is " << x.type() << " with " << heads
           << " heads given, expected rank 4, or rank 3 and a number of heads that divides the last dimension";
  }
  return n.b().Transpose(n.b().Reshape(x, Shape({shape[0], shape[1], heads, shape[2] / heads})), {0, 2, 1, 3});
}

absl::StatusOr<Heads> HeadsOf(OnnxNode& n) {
  Heads h;
  RETURN_IF_ERROR(n.RequireRank(kQ, 3));
  h.in_rank_3 = n.shape(kQ).rank() == 3;
  const int64_t q_heads = n.Int("q_num_heads", 0), kv_heads = n.Int("kv_num_heads", 0);
  // In opsets 23 and 24 the numbers of heads may be given also with inputs of rank 4, where they are redundant.
  const auto heads_of = [&](int i, int64_t heads) { return n.input(i) && n.shape(i).rank() == 4 ? 0 : heads; };
  ASSIGN_OR_RETURN(h.q, ByHead(n, kQ, heads_of(kQ, q_heads)));
  ASSIGN_OR_RETURN(h.k, ByHead(n, kK, heads_of(kK, kv_heads)));
  ASSIGN_OR_RETURN(h.v, ByHead(n, kV, heads_of(kV, kv_heads)));
  if (n.has_input(kPastKey) != n.has_input(kPastValue))
    return n.Error() << "one of past_key and past_value is given, expected both or none";
  if (n.has_input(kPastKey)) {
    RETURN_IF_ERROR(n.RequireRank(kPastKey, 4));
    h.past = n.shape(kPastKey)[2];
    h.k = n.b().Concat({n.input(kPastKey), h.k}, 2);
    h.v = n.b().Concat({n.input(kPastValue), h.v}, 2);
  }
  RETURN_IF_ERROR(n.b().status());
  return h;
}

// attn_mask as [batch or 1, heads or 1, queries or 1, keys]. Keys beyond its last dimension are masked out.
absl::StatusOr<Value> GivenMask(OnnxNode& n, const Heads& h) {
  Builder& b = n.b();
  Value mask = n.input(kMask);
  RETURN_IF_ERROR(b.status());
  const int64_t rank = mask.shape().rank();
  if (rank < 1 || rank > 4) return n.Error() << "attn_mask is " << mask.type() << ", expected rank 1 to 4";
  Ints dims(static_cast<size_t>(4 - rank), 1);
  dims.insert(dims.end(), mask.shape().dims().begin(), mask.shape().dims().end());
  mask = b.Reshape(mask, Shape(dims));
  const int64_t missing = h.keys() - dims[3];
  if (missing < 0) return n.Error() << "attn_mask is " << n.type(kMask) << " for " << h.keys() << " keys";
  if (missing == 0) return mask;
  const Shape rest({dims[0], dims[1], dims[2], missing});
  const bool is_bool = mask.dtype() == DType::kBool;
  return b.Concat({mask, b.Splat(is_bool ? 0 : -kInf, {mask.dtype(), rest})}, 3);
}

// The mask of the keys that queries may see, by lengths of sequences and windows: bools, or null if all are true. Sets
// `causal` if the op has to apply the causal mask, which is possible if there are no lengths.
absl::StatusOr<Value> Seen(OnnxNode& n, const Heads& h, bool& causal) {
  Builder& b = n.b();
  const bool is_causal = n.Flag("is_causal", false), has_lengths = n.has_input(kLengths);
  const int64_t left = n.Int("left_window_size", -1), right = n.Int("right_window_size", -1);
  if (left < -1 || right < -1)
    return n.Error() << "windows of " << left << " and " << right << ", expected at least -1";
  causal = is_causal && !has_lengths;
  if (!has_lengths && left < 0 && right < 0) return Value();
  const TensorType type{DType::kI64, Shape({h.batch(), 1, h.queries(), h.keys()})};
  const Value key = b.Iota(type, 3);
  Value seen, offset = b.Splat(static_cast<double>(h.past), type);
  const auto restrict_to = [&](Value condition) { seen = seen ? b.Op("and", {seen, condition}) : condition; };
  if (has_lengths) {
    if (h.past > 0) return n.Error() << "nonpad_kv_seqlen is given with past_key, expected one of them";
    if (n.input(kLengths) && n.shape(kLengths) != Shape({h.batch()}))
      return n.Error() << "nonpad_kv_seqlen is " << n.type(kLengths) << ", expected shape [" << h.batch() << "]";
    const Value lengths = b.Broadcast(b.Convert(n.input(kLengths), DType::kI64), type.shape, {0});
    restrict_to(b.Compare(key, lengths, "lt"));
    offset = b.AddScalar(lengths, -static_cast<double>(h.queries()));
  }
  const Value position = b.Add(b.Iota(type, 2), offset);
  if (is_causal && has_lengths) restrict_to(b.Compare(key, position, "le"));
  if (left >= 0) restrict_to(b.Compare(b.Sub(position, key), b.Splat(static_cast<double>(left), type), "le"));
  if (right >= 0) restrict_to(b.Compare(b.Sub(key, position), b.Splat(static_cast<double>(right), type), "le"));
  RETURN_IF_ERROR(b.status());
  return seen;
}

// Combines attn_mask and `seen` into one mask. Null if neither is given.
absl::StatusOr<Value> CombinedMask(OnnxNode& n, const Heads& h, Value seen) {
  if (!n.has_input(kMask)) return seen;
  Builder& b = n.b();
  ASSIGN_OR_RETURN(Value mask, GivenMask(n, h));
  if (!seen) return mask;
  ASSIGN_OR_RETURN(const Shape shape, BroadcastShapes(n, {mask, seen}));
  mask = BroadcastTo(b, mask, shape);
  seen = BroadcastTo(b, seen, shape);
  return mask.dtype() == DType::kBool ? b.Op("and", {mask, seen}) : b.Select(seen, mask, b.SplatLike(-kInf, mask));
}

// Sets output 3: the products of queries and keys, after the part of the softmax that `mode` says. Computed separately,
// because the op `attention` does not store them.
absl::Status SetScores(OnnxNode& n, const Heads& h, Value mask, Value log_sum_exp, const AttributeMap& attributes) {
  Builder& b = n.b();
  const int64_t mode = n.Int("qk_matmul_output_mode", 0);
  if (!n.has_output(kScores)) return absl::OkStatus();
  if (mode < 0 || mode > 3) return n.Error() << "qk_matmul_output_mode is " << mode << ", expected 0 to 3";
  const Shape shape({h.batch(), h.q.shape()[1], h.queries(), h.keys()});
  const int64_t heads = h.k.shape()[1], group = heads == 0 ? 1 : h.q.shape()[1] / heads, size = h.k.shape()[3];
  Value k = b.Broadcast(h.k, Shape({h.batch(), heads, group, h.keys(), size}), {0, 1, 3, 4});
  k = b.Reshape(k, Shape({h.batch(), heads * group, h.keys(), size}));
  Value scores = b.Scale(b.MatMul(h.q, k, false, true), std::get<double>(attributes.at("scale")));
  const double softcap = std::get<double>(attributes.at("softcap"));
  if (mode > 0 && softcap > 0) scores = b.Scale(b.Tanh(b.Scale(scores, 1 / softcap)), softcap);
  if (mode > 1) {
    const Value far = b.SplatLike(-kInf, scores);
    if (mask) {
      const Value wide = BroadcastTo(b, mask, shape);
      scores = wide && wide.dtype() == DType::kBool ? b.Select(wide, scores, far) : b.Add(scores, wide);
    }
    if (std::get<bool>(attributes.at("causal"))) {
      const TensorType type{DType::kI64, shape};
      const Value position = b.AddScalar(b.Iota(type, 2), static_cast<double>(h.past));
      scores = b.Select(b.Compare(b.Iota(type, 3), position, "le"), scores, far);
    }
  }
  if (mode == 3) {
    const Value log = b.Broadcast(b.Convert(log_sum_exp, h.q.dtype()), shape, {0, 1, 2});
    const Value p = b.Exp(b.Sub(scores, log));
    scores = b.Select(b.Compare(log, b.SplatLike(-kInf, log), "eq"), b.SplatLike(0, p), p);
  }
  n.SetOutput(kScores, scores);
  return b.status();
}

absl::Status Attention(OnnxNode& n) {
  Builder& b = n.b();
  ASSIGN_OR_RETURN(const Heads h, HeadsOf(n));
  bool causal = false;
  ASSIGN_OR_RETURN(const Value seen, Seen(n, h, causal));
  ASSIGN_OR_RETURN(const Value mask, CombinedMask(n, h, seen));
  n.Ignore("softmax_precision");  // computed in f32 or f64
  const int64_t size = h.q.shape()[3];
  double scale = n.Float("scale", 0);
  if (!n.has_attr("scale")) scale = size == 0 ? 1 : 1 / std::sqrt(static_cast<double>(size));
  const AttributeMap attributes = {
      {"scale", scale}, {"causal", causal}, {"past", h.past}, {"softcap", n.Float("softcap", 0)}};
  std::vector<Value> operands = {h.q, h.k, h.v};
  if (mask) operands.push_back(mask);
  const std::vector<Value> results = b.Ops("attention", operands, attributes);
  RETURN_IF_ERROR(b.status());
  Value y = results[0];
  if (h.in_rank_3) {
    y = b.Transpose(y, {0, 2, 1, 3});
    y = b.Reshape(y, Shape({h.batch(), h.queries(), y.shape()[2] * y.shape()[3]}));
  }
  n.SetOutput(kY, y);
  n.SetOutput(kPresentKey, h.k);
  n.SetOutput(kPresentValue, h.v);
  return SetScores(n, h, mask, results[1], attributes);
}

}  // namespace

std::vector<OnnxOp> AttentionOps() { return {{"Attention", 23, kNoEnd, 3, 7, Attention}}; }

}  // namespace lockstep
