// Matrix products.

#include "core/ops/matmul.h"

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace ops {
namespace {

// Merges all dimensions except the last.
Shape AsMatrix(const Shape& shape) {
  const int64_t columns = shape[shape.rank() - 1];
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return {rows, columns};
}

}  // namespace

MatMulForm::MatMulForm(const AttributeMap& attributes, const Shape& x_shape, const Shape& y_shape)
    : transpose_a(std::get<bool>(attributes.find("transpose_a")->second)),
      transpose_b(std::get<bool>(attributes.find("transpose_b")->second)) {
  const bool sum_batch = std::get<bool>(attributes.find("sum_batch")->second);
  const bool is_one_product = sum_batch || x_shape.rank() != y_shape.rank();
  a = is_one_product ? AsMatrix(x_shape) : x_shape;
  b = is_one_product ? AsMatrix(y_shape) : y_shape;
  const int64_t rank = a.rank(), last = rank - 1, before_last = rank - 2;
  rows = transpose_a ? last : before_last;
  columns = transpose_b ? before_last : last;
  contracted_a = transpose_a ? before_last : last;
  contracted_b = transpose_b ? last : before_last;
  y = a.WithDim(before_last, a[rows]).WithDim(last, b[columns]);
  const bool has_many_rows = x_shape.rank() != y_shape.rank();
  result = has_many_rows ? x_shape.WithDim(x_shape.rank() - 1, b[columns]) : y;
}

MatMulForm::MatMulForm(const Node& node)
    : MatMulForm(node.attributes(), node.operand(0).shape(), node.operand(1).shape()) {}

}  // namespace ops

namespace {

absl::Status InferMatMul(InferContext& c) {
  const Shape &a = c.shape(0), &b = c.shape(1);
  const bool transpose_a = c.attr<bool>("transpose_a"), transpose_b = c.attr<bool>("transpose_b");
  if (c.dtype(0) != c.dtype(1)) return c.Error("C1") << "dtypes differ: " << c.operand(0) << " and " << c.operand(1);
  const bool rows_of_many = b.rank() == 2 && a.rank() > 2 && !transpose_a;
  if ((a.rank() != b.rank() && !rows_of_many) || b.rank() < 2) {
    return c.Error("C2") << "ranks of " << c.operand(0) << " and " << c.operand(1)
                         << ", expected equal ranks of at least 2, or a matrix y and an x that is not transposed";
  }
  for (int64_t i = 0; i < b.rank() - 2; ++i) {
    if (a[i] != b[i])
      return c.Error("C3") << "batch dimensions of " << c.operand(0) << " and " << c.operand(1) << " differ";
  }
  if (c.attr<bool>("sum_batch") && (!transpose_a || transpose_b || rows_of_many)) {
    return c.Error("C5") << "sum_batch of " << c.operand(0) << " and " << c.operand(1)
                         << ", expected equal ranks, transpose_a and not transpose_b";
  }
  const ops::MatMulForm form(c.attributes(), a, b);
  if (form.a[form.contracted_a] != form.b[form.contracted_b]) {
    return c.Error("C4") << "summed dimensions differ: " << form.a[form.contracted_a] << " of " << c.operand(0)
                         << " and " << form.b[form.contracted_b] << " of " << c.operand(1);
  }
  return c.SetResult(ops::DTypeOfSum(c.dtype(0), c.attr<bool>("wide_result")), form.result);
}

absl::Status EvalMatMul(EvalContext& c) {
  const Tensor &a = c.operand(0), &b = c.operand(1);
  const ops::MatMulForm form(c.attributes(), a.shape(), b.shape());
  const int64_t contracted = form.a[form.contracted_a];
  const std::vector<int64_t> a_strides = form.a.Strides(), b_strides = form.b.Strides();
  const auto stride = [](const std::vector<int64_t>& strides, int64_t dim) {
    return strides[static_cast<size_t>(dim)];
  };
  const bool rounds_to_f32 = c.result().dtype() != a.dtype();
  DispatchDType(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto a_data = a.data<T>(), b_data = b.data<T>();
    size_t at = 0;
    ops::ForEachIndex(form.y, [&](const std::vector<int64_t>& index) {
      int64_t a_at = 0, b_at = 0;
      for (size_t i = 0; i < index.size() - 2; ++i) {
        a_at += index[i] * a_strides[i];
        b_at += index[i] * b_strides[i];
      }
      a_at += index[index.size() - 2] * stride(a_strides, form.rows);
      b_at += index[index.size() - 1] * stride(b_strides, form.columns);
      Accumulator<T> sum = 0;
      for (int64_t k = 0; k < contracted; ++k) {
        sum +=
            static_cast<Accumulator<T>>(a_data[static_cast<size_t>(a_at + k * stride(a_strides, form.contracted_a))]) *
            static_cast<Accumulator<T>>(b_data[static_cast<size_t>(b_at + k * stride(b_strides, form.contracted_b))]);
      }
      if (rounds_to_f32) c.result().mutable_data<float>()[at++] = ConvertElement<float>(sum);
      else c.result().mutable_data<T>()[at++] = ConvertElement<T>(sum);
    });
  });
  return absl::OkStatus();
}

void PlaceMatMul(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const int64_t rank_a = c.shape(0).rank(), rank_b = c.shape(1).rank();
  const bool transpose_a = c.attr<bool>("transpose_a"), transpose_b = c.attr<bool>("transpose_b");
  const bool sums_batch = c.attr<bool>("sum_batch");
  const int64_t last = sums_batch ? 1 : rank_a - 1;  // of the result
  const int64_t batch = rank_b - 2;                  // the number of batch dimensions, which both have
  const int64_t rows = transpose_a ? rank_a - 1 : rank_a - 2, columns = transpose_b ? rank_b - 2 : rank_b - 1;
  const int64_t summed_a = transpose_a ? rank_a - 2 : rank_a - 1, summed_b = transpose_b ? rank_b - 1 : rank_b - 2;
  const Placement &a = c.operand(0), &b = c.operand(1);
  const auto require = [&](Placement for_a, Placement for_b, Placement result) {
    c.Require(0, for_a);
    c.Require(1, for_b);
    c.Result(result);
  };
  const auto is_in_batch = [&](const Placement& p) { return p.is_split() && p.dim() < batch; };
  const Placement whole = Placement::Replicated();
  if (a.is_split(summed_a) || b.is_split(summed_b)) {
    // Each rank sums over its slice.
    require(Placement::Split(summed_a), Placement::Split(summed_b), Placement::Partial(ReduceKind::kSum));
  } else if (is_in_batch(a) || is_in_batch(b)) {
    const Placement split = is_in_batch(a) ? a : b;
    require(split, split, sums_batch ? Placement::Partial(ReduceKind::kSum) : split);
  } else if (a.is_split(rows)) {
    require(a, whole, Placement::Split(last - 1));
  } else if (a.is_split()) {  // x has several dimensions of rows, and one of the leading ones is split
    require(a, whole, a);
  } else if (b.is_split(columns)) {
    require(whole, b, Placement::Split(last));
  } else if (a.is_partial(ReduceKind::kSum) && b.is_replicated()) {
    require(a, b, a);
  } else if (b.is_partial(ReduceKind::kSum) && a.is_replicated()) {
    require(a, b, b);
  } else {
    require(whole, whole, whole);
  }
}

double MatMulFlops(const Node& node) {
  const ops::MatMulForm form(node);
  return 2.0 * static_cast<double>(node.type().num_elements()) * static_cast<double>(form.a[form.contracted_a]);
}

void MatMulVjp(VjpContext& c) {
  const bool ta = c.attr<bool>("transpose_a"), tb = c.attr<bool>("transpose_b");
  Builder& b = c.b();
  const Value x = c.operand(0), y = c.operand(1), g = b.Convert(c.grad(), x.dtype());
  // z = X Y with X = x or x^T: dX = g Y^T and dY = X^T g. A transposed operand gets the transposed product.
  if (c.attr<bool>("sum_batch")) {
    c.Contribute(0, b.MatMul(y, g, false, true));
    c.Contribute(1, b.MatMul(x, g));
    return;
  }
  c.Contribute(0, ta ? b.MatMul(y, g, tb, true) : b.MatMul(g, y, false, !tb));
  if (x.shape().rank() != y.shape().rank()) {
    c.Contribute(1, tb ? b.SumOfMatMuls(g, x) : b.SumOfMatMuls(x, g));
    return;
  }
  c.Contribute(1, tb ? b.MatMul(g, x, true, ta) : b.MatMul(x, g, !ta, false));
}

}  // namespace

//===-- matmul ----------------------------------------------------------------------------------------------------===//
const OpDef& MatMulOp() {
  static const OpDef def =
      OpDef("matmul")
          .Doc(
              "Matrix product of the last two dimensions of x and y, for each index of the leading (batch) dimensions. "
              "If y is a matrix and x has more dimensions, all of them except the last hold rows: a linear layer of a "
              "batch of sequences, whichever dimension is the batch.")
          .Operand("x")
          .Operand("y")
          .OptionalAttr<bool>("transpose_a", false, "x is given transposed in its last two dimensions")
          .OptionalAttr<bool>("transpose_b", false, "y is given transposed in its last two dimensions")
          .OptionalAttr<bool>("sum_batch", false,
                              "the products of the batch are summed to one matrix, as in the gradient of the weights "
                              "of a linear layer")
          .OptionalAttr<bool>("wide_result", false, ops::kWideResult)
          .Constraint("C1", "x and y have the same dtype")
          .Constraint("C2",
                      "x and y have the same rank, at least 2; or y has rank 2, and x more and is not given transposed")
          .Constraint("C3", "the batch dimensions are equal")
          .Constraint("C4", "the dimensions that are summed over are equal")
          .Constraint("C5", "with sum_batch, x and y have the same rank, and x alone is given transposed")
          .Trait(kOpaque)
          .Infer(InferMatMul)
          .Eval(EvalMatMul)
          .Flops(MatMulFlops)
          .Precision(PrecisionRule::kLow)
          .Vjp(MatMulVjp)
          .Place(PlaceMatMul);
  return def;
}

}  // namespace lockstep
