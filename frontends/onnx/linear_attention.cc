// Linear attention: each head carries a matrix along the sequence. Keys and values write to it, queries read from it.

#include <cmath>

#include "core/builder.h"
#include "core/ops/scan_parts.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/unroll.h"

namespace lockstep {
namespace {

enum LinearAttentionInput { kQuery, kKey, kValue, kPastState, kDecay, kBeta };

struct LinearAttentionForm {
  int64_t q_heads = 0, heads = 0;  // heads of queries; heads of keys and values
  int64_t batch = 0, length = 0, key_size = 0, value_size = 0;
  bool has_decay = false, has_beta = false;
  DType dtype = DType::kF32;  // dtype of the computation
  double scale = 1;

  int64_t group() const { return q_heads / heads; }
  Shape state() const { return Shape({batch, heads, key_size, value_size}); }
};

// Returns an error unless input i is present exactly if the rule uses it.
absl::Status CheckPresence(OnnxNode& n, int i, std::string_view name, bool wanted, const std::string& rule) {
  if (n.has_input(i) == wanted) return absl::OkStatus();
  return n.Error() << "input " << i << " (" << name << ") is " << (wanted ? "missing" : "given")
                   << ", which update_rule '" << rule << "' " << (wanted ? "needs" : "does not have");
}

absl::Status ReadRule(OnnxNode& n, LinearAttentionForm& form) {
  const std::string rule = n.String("update_rule", "gated_delta");
  RETURN_IF_ERROR(n.b().status());
  if (rule != "linear" && rule != "gated" && rule != "delta" && rule != "gated_delta") {
    return n.Error() << "attribute update_rule is '" << rule << "', expected linear, gated, delta or gated_delta";
  }
  form.has_decay = rule.starts_with("gated");
  form.has_beta = rule.ends_with("delta");
  RETURN_IF_ERROR(CheckPresence(n, kDecay, "decay", form.has_decay, rule));
  return CheckPresence(n, kBeta, "beta", form.has_beta, rule);
}

// Returns an error unless input i is floats of [batch, length, size] with one of `sizes`.
absl::Status CheckPacked(OnnxNode& n, int i, const LinearAttentionForm& form, const std::vector<int64_t>& sizes) {
  const Value x = n.input(i);
  RETURN_IF_ERROR(n.b().status());
  for (int64_t size : sizes)
    if (x.shape() == Shape({form.batch, form.length, size}) && IsFloat(x.dtype())) return absl::OkStatus();
  return n.Error() << "input " << i << " is " << x.type() << ", expected floats of shape [" << form.batch << ", "
                   << form.length << ", " << sizes[0] << "]"
                   << (sizes.size() > 1 ? " or with " + std::to_string(sizes[1]) + " in the last dimension" : "");
}

absl::StatusOr<LinearAttentionForm> ReadAttentionForm(OnnxNode& n) {
  LinearAttentionForm form;
  RETURN_IF_ERROR(ReadRule(n, form));
  n.Ignore("chunk_size");  // a hint for other implementations
  form.q_heads = n.Int("q_num_heads", 0);
  form.heads = n.Int("kv_num_heads", 0);
  if (form.q_heads < 1 || form.heads < 1 || form.q_heads % form.heads != 0) {
    return n.Error() << "q_num_heads is " << form.q_heads << " and kv_num_heads " << form.heads
                     << ", expected a multiple and a divisor of at least 1";
  }
  for (int i : {kQuery, kKey, kValue}) RETURN_IF_ERROR(n.RequireRank(i, 3));
  const Shape &query = n.shape(kQuery), &value = n.shape(kValue);
  form.batch = query[0];
  form.length = query[1];
  form.key_size = query.dims().back() / form.q_heads;
  form.value_size = value.dims().back() / form.heads;
  form.dtype = n.type(kQuery).dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  RETURN_IF_ERROR(CheckPacked(n, kQuery, form, {form.q_heads * form.key_size}));
  RETURN_IF_ERROR(CheckPacked(n, kKey, form, {form.heads * form.key_size}));
  RETURN_IF_ERROR(CheckPacked(n, kValue, form, {form.heads * form.value_size}));
  if (form.has_decay) RETURN_IF_ERROR(CheckPacked(n, kDecay, form, {form.heads, form.heads * form.key_size}));
  if (form.has_beta) RETURN_IF_ERROR(CheckPacked(n, kBeta, form, {form.heads, 1}));
  if (n.has_input(kPastState)) {
    const Value past = n.input(kPastState);
    RETURN_IF_ERROR(n.b().status());
    if (past.shape() != form.state() || !IsFloat(past.dtype()))
      return n.Error() << "input 3 (past_state) is " << past.type() << ", expected floats of shape " << form.state();
  }
  form.scale = n.Float("scale", 0);
  if (form.scale == 0) form.scale = form.key_size == 0 ? 1 : 1 / std::sqrt(static_cast<double>(form.key_size));
  return form;
}

// Input i, [batch, length, heads * rows * columns], as [length, batch, heads, rows, columns], to be scanned along the
// length.
Value Unpacked(OnnxNode& n, int i, const LinearAttentionForm& form, int64_t heads, int64_t rows, int64_t columns) {
  Builder& b = n.b();
  const Value x = b.Convert(n.input(i), form.dtype);
  return b.Transpose(b.Reshape(x, Shape({form.batch, form.length, heads, rows, columns})), {1, 0, 2, 3, 4});
}

// The loop over the sequence. At one position all values are [batch, heads, rows, columns]; decay and beta may have
// extents of 1.
class AttentionRecurrence {
 public:
  AttentionRecurrence(OnnxNode& n, const LinearAttentionForm& form)
      : n_(n), form_(form), body_("linear_attention"), b_(body_, nullptr, n.source()) {}

  // Returns the last state, and the values that the queries read: [length, batch, heads, group, value_size].
  absl::StatusOr<std::vector<Value>> Run();

 private:
  absl::StatusOr<Value> Enter(std::vector<ScanParts::Operand>& group, Value outer, const std::string& name);
  absl::Status EnterAll();

  OnnxNode& n_;
  const LinearAttentionForm& form_;
  Graph body_;
  Builder b_;
  ScanParts parts_;
  Value state_, q_, k_, v_, decay_, beta_;
};

absl::StatusOr<Value> AttentionRecurrence::Enter(std::vector<ScanParts::Operand>& group, Value outer,
                                                 const std::string& name) {
  RETURN_IF_ERROR(n_.b().status());
  const bool is_scanned = &group == &parts_.scanned;
  const TensorType type = is_scanned ? TensorType{outer.dtype(), outer.shape().Without({0})} : outer.type();
  ASSIGN_OR_RETURN(const Value inner, body_.AddInput(name, type));
  group.push_back({outer, inner});
  return inner;
}

absl::Status AttentionRecurrence::EnterAll() {
  Builder& b = n_.b();
  const LinearAttentionForm& f = form_;
  const Value first = n_.has_input(kPastState) ? b.Convert(n_.input(kPastState), f.dtype)
                                               : b.Splat(0.0, TensorType{f.dtype, f.state()});
  ASSIGN_OR_RETURN(state_, Enter(parts_.carried, first, "state"));
  ASSIGN_OR_RETURN(q_, Enter(parts_.scanned, Unpacked(n_, kQuery, f, f.heads, f.group(), f.key_size), "q"));
  ASSIGN_OR_RETURN(k_, Enter(parts_.scanned, Unpacked(n_, kKey, f, f.heads, 1, f.key_size), "k"));
  ASSIGN_OR_RETURN(v_, Enter(parts_.scanned, Unpacked(n_, kValue, f, f.heads, 1, f.value_size), "v"));
  if (f.has_decay) {  // one per row of the state, or one for all rows
    const Value decay = b.Exp(Unpacked(n_, kDecay, f, f.heads, n_.shape(kDecay)[2] / f.heads, 1));
    ASSIGN_OR_RETURN(decay_, Enter(parts_.scanned, decay, "decay"));
  }
  if (f.has_beta) {
    ASSIGN_OR_RETURN(beta_, Enter(parts_.scanned, Unpacked(n_, kBeta, f, n_.shape(kBeta)[2], 1, 1), "beta"));
  }
  return n_.b().status();
}

absl::StatusOr<std::vector<Value>> AttentionRecurrence::Run() {
  RETURN_IF_ERROR(EnterAll());
  Value state = state_, written = v_;
  if (form_.has_decay) state = b_.Mul(state, BroadcastTo(b_, decay_, form_.state()));
  // The delta rule: the value that the state already has for this key is subtracted first.
  if (form_.has_beta) written = b_.Mul(BroadcastTo(b_, beta_, v_.shape()), b_.Sub(v_, b_.MatMul(k_, state)));
  state = b_.Add(state, b_.MatMul(k_, written, /*transpose_a=*/true));
  parts_.next_carried = {state};
  parts_.stacked = {b_.MatMul(q_, state)};
  RETURN_IF_ERROR(b_.status());
  return AddScan(n_, body_, parts_, form_.length, /*reverse=*/false);
}

absl::Status LinearAttention(OnnxNode& n) {
  Builder& b = n.b();
  ASSIGN_OR_RETURN(const LinearAttentionForm form, ReadAttentionForm(n));
  ASSIGN_OR_RETURN(const std::vector<Value> results, AttentionRecurrence(n, form).Run());
  const Value y = b.Scale(b.Transpose(results[1], {1, 0, 2, 3, 4}), form.scale);
  const Shape packed({form.batch, form.length, form.q_heads * form.value_size});
  const DType dtype = n.type(kQuery).dtype;
  n.SetOutput(0, b.Convert(b.Reshape(y, packed), dtype));
  n.SetOutput(1, b.Convert(results[0], n.has_input(kPastState) ? n.type(kPastState).dtype : dtype));
  return b.status();
}

}  // namespace

std::vector<OnnxOp> LinearAttentionOps() { return {{"LinearAttention", 27, kNoEnd, 3, 6, LinearAttention}}; }

}  // namespace lockstep
