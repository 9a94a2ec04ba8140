// Softmax, its logarithm, and the cross-entropy loss over them.

#include <cmath>
#include <limits>
#include <numeric>

#include "core/builder.h"
#include "core/ops/indexing.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

// A shape relative to one dimension: `outer` blocks of `size` rows of `inner` elements.
struct Rows {
  int64_t outer = 1, size = 1, inner = 1;
  Rows(const Shape& shape, int64_t dim) : size(shape[dim]) {
    for (int64_t i = 0; i < dim; ++i) outer *= shape[i];
    for (int64_t i = dim + 1; i < shape.rank(); ++i) inner *= shape[i];
  }
  int64_t At(int64_t block, int64_t row, int64_t column) const { return (block * size + row) * inner + column; }
};

// The logarithm of the sum of exponentials of one column, which log-softmax subtracts. It is kept in two parts: added
// to a maximum of -1e38, as of masked logits, the logarithm would be lost in rounding.
struct LogSumExp {
  double max, log_sum;

  double LogShare(double x) const { return (x - max) - log_sum; }
};

LogSumExp LogSumExpOf(const double* x, const Rows& rows, int64_t block, int64_t column) {
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < rows.size; ++i) max = std::max(max, x[rows.At(block, i, column)]);
  double sum = 0;
  for (int64_t i = 0; i < rows.size; ++i) sum += std::exp(x[rows.At(block, i, column)] - max);
  return {max, std::log(sum)};
}

// --- Softmax and log-softmax

absl::Status InferSoftmax(InferContext& c) {
  if (!IsFloat(c.dtype(0))) return c.Error("C1") << "x is " << c.operand(0) << ", expected a floating-point dtype";
  if (!c.shape(0).has_dim(c.attr<int64_t>("dim"))) {
    return c.Error("C2") << "dim " << c.attr<int64_t>("dim") << " is outside " << c.operand(0);
  }
  return c.SetResult(c.operand(0));
}

template <bool kLog>
absl::Status EvalSoftmax(EvalContext& c) {
  const Rows rows(c.operand(0).shape(), c.attr<int64_t>("dim"));
  const Tensor x = c.operand(0).Converted(DType::kF64);
  Tensor y(x.type());
  const double* from = x.data<double>().data();
  double* to = y.mutable_data<double>().data();
  for (int64_t block = 0; block < rows.outer; ++block) {
    for (int64_t column = 0; column < rows.inner; ++column) {
      const LogSumExp sum = LogSumExpOf(from, rows, block, column);
      for (int64_t i = 0; i < rows.size; ++i) {
        const int64_t at = rows.At(block, i, column);
        to[at] = kLog ? sum.LogShare(from[at]) : std::exp(sum.LogShare(from[at]));
      }
    }
  }
  c.result() = y.Converted(c.result().dtype());
  return absl::OkStatus();
}

// The sum over `dim`, broadcast to the shape of x.
Value SumAlong(Builder& b, Value x, int64_t dim) {
  return x ? b.BroadcastOver(b.ReduceSum(x, {dim}), x.shape(), {dim}) : x;
}

// x less its maximum along dim, so that exp cannot overflow.
Value Shifted(Builder& b, Value x, int64_t dim) {
  return b.Sub(x, b.BroadcastOver(b.ReduceMax(x, {dim}), x.shape(), {dim}));
}

std::vector<Value> DecomposeSoftmax(DecomposeContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  const Value e = c.b().Exp(Shifted(c.b(), c.operand(0), dim));
  return {c.b().Div(e, SumAlong(c.b(), e, dim))};
}

std::vector<Value> DecomposeLogSoftmax(DecomposeContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  Builder& b = c.b();
  const Value shifted = Shifted(b, c.operand(0), dim);
  const Value log_sum = b.Log(b.ReduceSum(b.Exp(shifted), {dim}));
  return {b.Sub(shifted, b.BroadcastOver(log_sum, c.operand(0).shape(), {dim}))};
}

void SoftmaxVjp(VjpContext& c) {
  Builder& b = c.b();
  const Value weighted = b.Mul(c.grad(), c.result());
  // dx = y * (g - sum(g * y))
  c.Contribute(0, b.Sub(weighted, b.Mul(c.result(), SumAlong(b, weighted, c.attr<int64_t>("dim")))));
}

void LogSoftmaxVjp(VjpContext& c) {
  Builder& b = c.b();
  // dx = g - softmax(x) * sum(g)
  c.Contribute(0, b.Sub(c.grad(), b.Mul(b.Exp(c.result()), SumAlong(b, c.grad(), c.attr<int64_t>("dim")))));
}

void PlaceSoftmax(PlacementContext& c) {
  ops::PlaceIndependentRows(c, [&](int64_t dim) { return dim != c.attr<int64_t>("dim"); });
}

// --- Softmax cross-entropy

absl::Status InferSoftmaxCrossEntropy(InferContext& c) {
  const TensorType &logits = c.operand(0), &labels = c.operand(1);
  if (!IsFloat(logits.dtype)) return c.Error("C1") << "logits are " << logits << ", expected a floating-point dtype";
  if (labels.dtype != DType::kI64 && labels.dtype != DType::kI32) {
    return c.Error("C2") << "labels are " << labels << ", expected i64 or i32";
  }
  if (logits.shape.rank() < 2) return c.Error("C3") << "rank of logits " << logits << ", expected at least 2";
  if (labels.shape != logits.shape.Without({1})) {
    return c.Error("C4") << "labels are " << labels << ", expected the shape " << logits.shape.Without({1})
                         << " of logits " << logits << " without its classes";
  }
  return c.SetResults({TensorType{logits.dtype, Shape()}, logits});
}

absl::Status EvalSoftmaxCrossEntropy(EvalContext& c) {
  const double scale = c.attr<double>("scale");
  const Shape& shape = c.operand(0).shape();
  const Rows rows(shape, 1);
  const Tensor logits = c.operand(0).Converted(DType::kF64), labels = c.operand(1).Converted(DType::kI64);
  Tensor dlogits(logits.type());
  const double* x = logits.data<double>().data();
  double* dx = dlogits.mutable_data<double>().data();
  double loss = 0;
  for (int64_t sample = 0; sample < labels.num_elements(); ++sample) {
    const int64_t block = sample / rows.inner, column = sample % rows.inner;
    const int64_t label = labels.data<int64_t>()[static_cast<size_t>(sample)];
    if (label < 0 || label >= rows.size)
      return ops::LabelError("softmax_cross_entropy (C5)", label, sample, labels.shape(), rows.size);
    const LogSumExp sum = LogSumExpOf(x, rows, block, column);
    loss -= sum.LogShare(x[rows.At(block, label, column)]);
    for (int64_t i = 0; i < rows.size; ++i) {
      const int64_t at = rows.At(block, i, column);
      dx[at] = scale * (std::exp(sum.LogShare(x[at])) - (i == label ? 1.0 : 0.0));
    }
  }
  c.result(0) = Tensor::Scalar(c.result(0).dtype(), scale * loss);
  c.result(1) = dlogits.Converted(c.result(1).dtype());
  return absl::OkStatus();
}

// Uses only ops that become loops: labels are compared with the numbers of the classes.
std::vector<Value> DecomposeSoftmaxCrossEntropy(DecomposeContext& c) {
  Builder& b = c.b();
  const DType dtype = c.operand(0).dtype();
  const Value logits = SizeOf(dtype) == 2 ? b.Convert(c.operand(0), DType::kF32) : c.operand(0);
  const Shape& shape = logits.shape();
  const double scale = c.attr<double>("scale");
  const Value labels =
      b.Op("within", {c.operand(1)},
           {{"low", int64_t{0}},
            {"high", shape[1]},
            {"what", std::string("softmax_cross_entropy (C5): a label (the loss has no ignore_index)")}});
  const Value classes = b.Op("iota", {}, {{"shape", shape.dims()}, {"dtype", labels.dtype()}, {"dim", int64_t{1}}});
  const Value is_label = b.Compare(b.BroadcastOver(labels, shape, {1}), classes, "eq");
  const Value zero = b.SplatLike(0.0, logits);
  const Value shifted = Shifted(b, logits, 1), e = b.Exp(shifted), sum = b.ReduceSum(e, {1});
  const Value softmax = b.Div(e, b.BroadcastOver(sum, shape, {1}));
  const Value gradient = b.Sub(b.Scale(softmax, scale), b.Select(is_label, b.SplatLike(scale, logits), zero));
  const Value losses = b.Sub(b.Log(sum), b.ReduceSum(b.Select(is_label, shifted, zero), {1}));
  std::vector<int64_t> dims(static_cast<size_t>(losses.shape().rank()));
  std::iota(dims.begin(), dims.end(), 0);
  // Converted before the sum, so that the loss is a partial sum of that dtype if ranks share the samples.
  const Value loss = b.ReduceSum(b.Convert(b.Scale(losses, scale), dtype), dims);
  return {loss, b.Convert(gradient, dtype)};
}

void SoftmaxCrossEntropyVjp(VjpContext& c) {
  if (c.grad(1)) {
    c.Fail("something that needs a gradient uses its result dlogits, which is a gradient itself");
  } else if (c.grad(0)) {
    c.Contribute(0, c.b().Mul(c.result(1), c.b().Broadcast(c.grad(0), c.operand(0).shape(), {})));
  }
}

// Samples are independent: operands and dlogits may be split along a dimension of the samples. The loss is then a
// partial sum.
void PlaceSoftmaxCrossEntropy(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const Placement &logits = c.operand(0), &labels = c.operand(1);
  // Dimension d of the labels is dimension d of the logits, or d + 1 after the classes.
  const auto to_labels = [](int64_t dim) { return dim == 0 ? 0 : dim - 1; };
  const auto to_logits = [](int64_t dim) { return dim == 0 ? 0 : dim + 1; };
  if ((logits.is_split() && logits.dim() != 1) || labels.is_split()) {
    const int64_t dim = logits.is_split() && logits.dim() != 1 ? logits.dim() : to_logits(labels.dim());
    c.Require(0, Placement::Split(dim));
    c.Require(1, Placement::Split(to_labels(dim)));
    c.Result(0, Placement::Partial(ReduceKind::kSum));
    c.Result(1, Placement::Split(dim));
  } else {
    c.RequireAll(Placement::Replicated());
    c.Result(Placement::Replicated());
  }
}

}  // namespace

//===-- softmax -------------------------------------------------------------------------------------------------===//
const OpDef& SoftmaxOp() {
  static const OpDef def = OpDef("softmax")
                               .Doc("exp(x) divided by its sum along `dim`.")
                               .Operand("x")
                               .Attr<int64_t>("dim", "the dimension along which the result sums to 1")
                               .Constraint("C1", "x has a floating-point dtype")
                               .Constraint("C2", "dim is a dimension of x")
                               .Trait(kOpaque)
                               .Infer(InferSoftmax)
                               .Eval(EvalSoftmax<false>)
                               .Vjp(SoftmaxVjp)
                               .Decompose(DecomposeSoftmax)
                               .Place(PlaceSoftmax);
  return def;
}

//===-- log_softmax ---------------------------------------------------------------------------------------------===//
const OpDef& LogSoftmaxOp() {
  static const OpDef def = OpDef("log_softmax")
                               .Doc("The logarithm of softmax(x), without its overflow: x - log(sum(exp(x))).")
                               .Operand("x")
                               .Attr<int64_t>("dim", "the dimension that is summed over")
                               .Constraint("C1", "x has a floating-point dtype")
                               .Constraint("C2", "dim is a dimension of x")
                               .Trait(kOpaque)
                               .Infer(InferSoftmax)
                               .Eval(EvalSoftmax<true>)
                               .Vjp(LogSoftmaxVjp)
                               .Decompose(DecomposeLogSoftmax)
                               .Place(PlaceSoftmax);
  return def;
}

//===-- softmax_cross_entropy -----------------------------------------------------------------------------------===//
const OpDef& SoftmaxCrossEntropyOp() {
  static const OpDef def =
      OpDef("softmax_cross_entropy")
          .Doc(
              "loss = scale * the sum over all samples of -log_softmax(logits)[label], and its gradient dlogits = "
              "scale * (softmax(logits) - one_hot(labels)). If scale is 1 / the number of samples in the global batch, "
              "the loss is the mean over the global batch, on any number of ranks.")
          .Operand("logits")
          .Operand("labels")
          .Result("loss")
          .Result("dlogits")
          .Attr<double>("scale", "weight of each sample")
          .Constraint("C1", "logits have a floating-point dtype")
          .Constraint("C2", "labels have dtype i64 or i32")
          .Constraint("C3", "logits are [N, C, ...] with at least 2 dimensions")
          .Constraint("C4", "labels have the shape of logits without dimension 1, the classes")
          .Constraint("C5", "when it runs: every label is in [0, C)")
          .Trait(kOpaque)
          .Trait(kChecksData)
          .Infer(InferSoftmaxCrossEntropy)
          .Eval(EvalSoftmaxCrossEntropy)
          .Vjp(SoftmaxCrossEntropyVjp)
          .Decompose(DecomposeSoftmaxCrossEntropy)
          .Place(PlaceSoftmaxCrossEntropy);
  return def;
}

}  // namespace lockstep
