// Matrix products.

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

// Which dimension of operand i holds the rows of the result (operand 0) or its columns (operand 1), and which is summed
// over.
struct MatMulDims {
  int64_t rows, columns, contracted_a, contracted_b, batch_rank;
};

MatMulDims DimsOf(int64_t rank, bool transpose_a, bool transpose_b) {
  const int64_t last = rank - 1, before_last = rank - 2;
  return {transpose_a ? last : before_last, transpose_b ? before_last : last, transpose_a ? before_last : last,
          transpose_b ? last : before_last, rank - 2};
}

template <typename Context>
MatMulDims DimsOf(const Context& c, int64_t rank) {
  return DimsOf(rank, c.template attr<bool>("transpose_a"), c.template attr<bool>("transpose_b"));
}

absl::Status InferMatMul(InferContext& c) {
  const Shape &a = c.shape(0), &b = c.shape(1);
  if (c.dtype(0) != c.dtype(1)) return c.Error("C1") << "dtypes differ: " << c.operand(0) << " and " << c.operand(1);
  if (a.rank() != b.rank() || a.rank() < 2) {
    return c.Error("C2") << "ranks of " << c.operand(0) << " and " << c.operand(1)
                         << ", expected equal ranks of at least 2";
  }
  const MatMulDims dims = DimsOf(c, a.rank());
  for (int64_t i = 0; i < dims.batch_rank; ++i) {
    if (a[i] != b[i])
      return c.Error("C3") << "batch dimensions of " << c.operand(0) << " and " << c.operand(1) << " differ";
  }
  if (a[dims.contracted_a] != b[dims.contracted_b]) {
    return c.Error("C4") << "summed dimensions differ: " << a[dims.contracted_a] << " of " << c.operand(0) << " and "
                         << b[dims.contracted_b] << " of " << c.operand(1);
  }
  return c.SetResult(c.dtype(0), a.WithDim(a.rank() - 2, a[dims.rows]).WithDim(a.rank() - 1, b[dims.columns]));
}

absl::Status EvalMatMul(EvalContext& c) {
  const Tensor &a = c.operand(0), &b = c.operand(1);
  const MatMulDims dims = DimsOf(c, a.shape().rank());
  const int64_t contracted = a.shape()[dims.contracted_a];
  const std::vector<int64_t> a_strides = a.shape().Strides(), b_strides = b.shape().Strides();
  DispatchDType(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto a_data = a.data<T>(), b_data = b.data<T>();
    const auto out = c.result().mutable_data<T>();
    size_t at = 0;
    ops::ForEachIndex(c.result().shape(), [&](const std::vector<int64_t>& index) {
      int64_t a_at = 0, b_at = 0;
      for (size_t i = 0; i < static_cast<size_t>(dims.batch_rank); ++i) {
        a_at += index[i] * a_strides[i];
        b_at += index[i] * b_strides[i];
      }
      a_at += index[index.size() - 2] * a_strides[static_cast<size_t>(dims.rows)];
      b_at += index[index.size() - 1] * b_strides[static_cast<size_t>(dims.columns)];
      Accumulator<T> sum = 0;
      for (int64_t k = 0; k < contracted; ++k) {
        sum += static_cast<Accumulator<T>>(
                   a_data[static_cast<size_t>(a_at + k * a_strides[static_cast<size_t>(dims.contracted_a)])]) *
               static_cast<Accumulator<T>>(
                   b_data[static_cast<size_t>(b_at + k * b_strides[static_cast<size_t>(dims.contracted_b)])]);
      }
      out[at++] = ConvertElement<T>(sum);
    });
  });
  return absl::OkStatus();
}

void PlaceMatMul(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const int64_t rank = c.shape(0).rank();
  const MatMulDims dims = DimsOf(c, rank);
  const Placement &a = c.operand(0), &b = c.operand(1);
  const auto require = [&](Placement for_a, Placement for_b, Placement result) {
    c.Require(0, for_a);
    c.Require(1, for_b);
    c.Result(result);
  };
  const Placement whole = Placement::Replicated();
  if (a.is_split(dims.contracted_a) || b.is_split(dims.contracted_b)) {
    // Each rank holds a slice of the sum.
    require(Placement::Split(dims.contracted_a), Placement::Split(dims.contracted_b),
            Placement::Partial(ReduceKind::kSum));
  } else if (a.is_split() && a.dim() < dims.batch_rank) {
    require(a, a, a);
  } else if (b.is_split() && b.dim() < dims.batch_rank) {
    require(b, b, b);
  } else if (a.is_split(dims.rows)) {
    require(a, whole, Placement::Split(rank - 2));
  } else if (b.is_split(dims.columns)) {
    require(whole, b, Placement::Split(rank - 1));
  } else if (a.is_partial(ReduceKind::kSum) && b.is_replicated()) {
    require(a, b, a);
  } else if (b.is_partial(ReduceKind::kSum) && a.is_replicated()) {
    require(a, b, b);
  } else {
    require(whole, whole, whole);
  }
}

double MatMulFlops(const Node& node) {
  const Shape& x = node.operand(0).shape();
  const int64_t terms = x[x.rank() - (node.attr<bool>("transpose_a") ? 2 : 1)];
  return 2.0 * static_cast<double>(node.type().num_elements()) * static_cast<double>(terms);
}

void MatMulVjp(VjpContext& c) {
  const bool ta = c.attr<bool>("transpose_a"), tb = c.attr<bool>("transpose_b");
  Builder& b = c.b();
  const Value x = c.operand(0), y = c.operand(1), g = c.grad();
  // z = X Y with X = x or x^T: dX = g Y^T and dY = X^T g; a transposed operand takes the transposed product.
  c.Contribute(0, ta ? b.MatMul(y, g, tb, true) : b.MatMul(g, y, false, !tb));
  c.Contribute(1, tb ? b.MatMul(g, x, true, ta) : b.MatMul(x, g, !ta, false));
}

}  // namespace

//===-- matmul ----------------------------------------------------------------------------------------------------===//
const OpDef& MatMulOp() {
  static const OpDef def =
      OpDef("matmul")
          .Doc(
              "Matrix product of the last two dimensions of x and y, for each index of the leading (batch) dimensions.")
          .Operand("x")
          .Operand("y")
          .OptionalAttr<bool>("transpose_a", false, "x is given transposed in its last two dimensions")
          .OptionalAttr<bool>("transpose_b", false, "y is given transposed in its last two dimensions")
          .Constraint("C1", "x and y have the same dtype")
          .Constraint("C2", "x and y have the same rank, at least 2")
          .Constraint("C3", "the batch dimensions are equal")
          .Constraint("C4", "the dimensions that are summed over are equal")
          .Trait(kOpaque)
          .Infer(InferMatMul)
          .Eval(EvalMatMul)
          .Flops(MatMulFlops)
          .Vjp(MatMulVjp)
          .Place(PlaceMatMul);
  return def;
}

}  // namespace lockstep
