// The reference meanings of attention and its gradients, one query at a time, in f64.

#include <cmath>
#include <limits>

#include "core/ops/attention.h"

namespace lockstep::ops {
namespace {

const Shape* MaskShape(const EvalContext& c, size_t mask) {
  return c.num_operands() > mask ? &c.operand(mask).shape() : nullptr;
}

// The operands as f64, and the scores of one query with all keys.
struct ReferenceScores {
  AttentionDims dims;
  Tensor q, k, v;
  Tensor mask;  // f64; a bool mask becomes 0 and minus infinity
  // The operands of the softmax for the query of the last Score, and the derivatives of the softcap there.
  std::vector<double> scores, slopes;

  ReferenceScores(const EvalContext& c, size_t mask_operand)
      : dims(c.attributes(), c.operand(0).shape(), c.operand(1).shape(), c.operand(2).shape(),
             MaskShape(c, mask_operand)),
        q(c.operand(0).Converted(DType::kF64)),
        k(c.operand(1).Converted(DType::kF64)),
        v(c.operand(2).Converted(DType::kF64)),
        scores(static_cast<size_t>(dims.keys)),
        slopes(static_cast<size_t>(dims.keys)) {
    if (dims.mask_offsets.empty()) return;
    const bool is_bool = c.operand(mask_operand).dtype() == DType::kBool;
    mask = c.operand(mask_operand).Converted(DType::kF64);
    if (!is_bool) return;
    for (double& element : mask.mutable_data<double>()) element = element != 0 ? 0 : -kInfinity;
  }

  const double* Query(int64_t head, int64_t i) const {
    return q.data<double>().data() + (head * dims.queries + i) * dims.size;
  }
  int64_t KeyRow(int64_t head, int64_t j) const { return head / dims.group * dims.keys + j; }
  const double* Key(int64_t head, int64_t j) const { return k.data<double>().data() + KeyRow(head, j) * dims.size; }
  const double* Values(int64_t head, int64_t j) const {
    return v.data<double>().data() + KeyRow(head, j) * dims.value_size;
  }
  int64_t MaskAt(int64_t head, int64_t i, int64_t j) const {
    return dims.mask_offsets[static_cast<size_t>(head)] + i * dims.mask_row + j;
  }

  void Score(int64_t head, int64_t i) {
    for (int64_t j = 0; j < dims.keys; ++j) {
      double score = 0;
      for (int64_t l = 0; l < dims.size; ++l) score += Query(head, i)[l] * Key(head, j)[l];
      score *= dims.scale;
      double slope = 1;
      if (dims.softcap > 0) {
        const double tanh = std::tanh(score / dims.softcap);
        score = dims.softcap * tanh;
        slope = 1 - tanh * tanh;
      }
      const double added = mask.num_elements() > 0 && !dims.mask_offsets.empty()
                               ? mask.data<double>()[static_cast<size_t>(MaskAt(head, i, j))]
                               : 0;
      // A hidden key does not contribute, even if its score is NaN.
      score = j >= dims.KeysOf(i) || added == -kInfinity ? -kInfinity : score + added;
      scores[static_cast<size_t>(j)] = score;
      slopes[static_cast<size_t>(j)] = slope;
    }
  }
};

// Collects a result in f64.
struct Result {
  Tensor tensor;
  double* data;
  explicit Result(const Tensor& like) : tensor({DType::kF64, like.shape()}) {
    data = tensor.mutable_data<double>().data();
  }
};

// Calls f(j, p, ds) for each key j that query i sees, with the elements of P and dS of attention_grad.
template <typename F>
void ForEachScoreGradient(const EvalContext& c, ReferenceScores& s, const Tensor& dy, int64_t head, int64_t i, F f) {
  const int64_t row = head * s.dims.queries + i;
  if (c.operand(kGradOperands.log_sum_exp).At(row) == -kInfinity) return;  // the query sees no key
  s.Score(head, i);
  const double log_sum_exp = c.operand(kGradOperands.log_sum_exp).At(row),
               delta = c.operand(kGradOperands.delta).At(row);
  const double* dy_row = dy.data<double>().data() + row * s.dims.value_size;
  for (int64_t j = 0; j < s.dims.keys; ++j) {
    const double score = s.scores[static_cast<size_t>(j)];
    if (score == -kInfinity) continue;
    double dp = 0;
    for (int64_t l = 0; l < s.dims.value_size; ++l) dp += dy_row[l] * s.Values(head, j)[l];
    const double p = std::exp(score - log_sum_exp);
    f(j, p, p * (dp - delta));
  }
}

}  // namespace

absl::Status EvalAttention(EvalContext& c) {
  ReferenceScores s(c, kForwardOperands.mask);
  Result y(c.result(0)), log_sum_exp(c.result(1));
  for (int64_t row = 0; row < s.dims.heads * s.dims.queries; ++row) {
    const int64_t head = row / s.dims.queries;
    s.Score(head, row % s.dims.queries);
    double max = -kInfinity, sum = 0;
    for (double score : s.scores) max = score > max ? score : max;
    if (max == -kInfinity) max = 0;  // no key is seen, or some score is NaN
    for (double score : s.scores) sum += std::exp(score - max);
    log_sum_exp.data[row] = max + std::log(sum);
    if (sum == 0) continue;
    for (int64_t j = 0; j < s.dims.keys; ++j) {
      if (s.scores[static_cast<size_t>(j)] == -kInfinity) continue;
      const double p = std::exp(s.scores[static_cast<size_t>(j)] - max) / sum;
      for (int64_t l = 0; l < s.dims.value_size; ++l) y.data[row * s.dims.value_size + l] += p * s.Values(head, j)[l];
    }
  }
  c.result(0) = y.tensor.Converted(c.result(0).dtype());
  c.result(1) = log_sum_exp.tensor.Converted(c.result(1).dtype());
  return absl::OkStatus();
}

absl::Status EvalAttentionGrad(EvalContext& c) {
  ReferenceScores s(c, kGradOperands.mask);
  const Tensor dy = c.operand(kGradOperands.dy).Converted(DType::kF64);
  Result dq(c.result(0)), dk(c.result(1)), dv(c.result(2));
  for (int64_t row = 0; row < s.dims.heads * s.dims.queries; ++row) {
    const int64_t head = row / s.dims.queries, i = row % s.dims.queries;
    ForEachScoreGradient(c, s, dy, head, i, [&](int64_t j, double p, double ds) {
      const int64_t key_row = s.KeyRow(head, j);
      const double dproduct = s.dims.scale * ds * s.slopes[static_cast<size_t>(j)];
      for (int64_t l = 0; l < s.dims.size; ++l) {
        dq.data[row * s.dims.size + l] += dproduct * s.Key(head, j)[l];
        dk.data[key_row * s.dims.size + l] += dproduct * s.Query(head, i)[l];
      }
      for (int64_t l = 0; l < s.dims.value_size; ++l)
        dv.data[key_row * s.dims.value_size + l] +=
            p * dy.data<double>()[static_cast<size_t>(row * s.dims.value_size + l)];
    });
  }
  c.result(0) = dq.tensor.Converted(c.result(0).dtype());
  c.result(1) = dk.tensor.Converted(c.result(1).dtype());
  c.result(2) = dv.tensor.Converted(c.result(2).dtype());
  return absl::OkStatus();
}

absl::Status EvalAttentionMaskGrad(EvalContext& c) {
  ReferenceScores s(c, kGradOperands.mask);
  const Tensor dy = c.operand(kGradOperands.dy).Converted(DType::kF64);
  Result dmask(c.result());
  for (int64_t row = 0; row < s.dims.heads * s.dims.queries; ++row) {
    const int64_t head = row / s.dims.queries, i = row % s.dims.queries;
    ForEachScoreGradient(c, s, dy, head, i,
                         [&](int64_t j, double, double ds) { dmask.data[s.MaskAt(head, i, j)] += ds; });
  }
  c.result() = dmask.tensor.Converted(c.result().dtype());
  return absl::OkStatus();
}

}  // namespace lockstep::ops
