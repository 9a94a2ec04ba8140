// Writes at positions given by data. Addition is a separate op, scatter_sum, because its updates may be split along the
// dimensions of the indices: the result is then a partial sum.

#include "core/builder.h"
#include "core/ops/combine.h"
#include "core/ops/indexing.h"
#include "core/ops/indexing_rules.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// The combination of an update with the existing element; nullopt if the update replaces it.
std::optional<ReduceKind> ScatterKind(const NodeContext& c) {
  const std::string& kind = c.attr<std::string>("kind");
  return kind == "replace" ? std::nullopt : ReduceKindFromName(kind);
}

absl::Status InferScatter(InferContext& c) {
  RETURN_IF_ERROR(ops::CheckIndexTypes(c, 1));
  RETURN_IF_ERROR(ops::CheckIndexedDims(c, c.shape(0), c.shape(1)));
  const TensorType updates{c.dtype(0), ops::ShapeOfValues(c, c.shape(0), c.shape(1))};
  if (c.operand(2) != updates) return c.Error("C5") << "updates are " << c.operand(2) << ", expected " << updates;
  const std::string& kind = c.attr<std::string>("kind");
  if (kind != "replace" && kind != "min" && kind != "max" && kind != "prod")
    return c.Error("C6") << "kind '" << kind << "', expected replace, min, max or prod";
  if (kind != "replace" && c.dtype(0) == DType::kBool) {
    return c.Error("C7") << "kind " << kind << " of " << c.operand(0) << ", expected numbers";
  }
  return c.SetResult(c.operand(0));
}

absl::Status EvalScatter(EvalContext& c) {
  const Tensor &x = c.operand(0), &indices = c.operand(1), &updates = c.operand(2);
  const ops::IndexedRows rows(x.shape(), indices.shape(), c.attr<int64_t>("dim"), c.attr<int64_t>("batch_dims"));
  ASSIGN_OR_RETURN(const Ints positions, ops::PositionsOf(c, "C8", indices, rows.extent));
  const std::optional<ReduceKind> kind = ScatterKind(c);
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Wide = Accumulator<T>;
    const auto from = updates.data<T>();
    const auto out = c.result().mutable_data<T>();
    std::vector<Wide> values(x.data<T>().begin(), x.data<T>().end());
    size_t at = 0;
    for (int64_t group = 0; group < rows.groups(); ++group) {
      for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t position = positions[static_cast<size_t>(rows.IndicesOf(group) + i)];
        for (int64_t j = 0; j < rows.inner; ++j) {
          Wide& value = values[static_cast<size_t>((group * rows.extent + position) * rows.inner + j)];
          const auto update = static_cast<Wide>(from[at++]);
          value = kind ? ops::Combine(*kind, value, update) : update;
        }
      }
    }
    for (size_t i = 0; i < out.size(); ++i) out[i] = ConvertElement<T>(values[i]);
  });
  return absl::OkStatus();
}

// --- Gradients -------------------------------------------------------------------------------------------------------

// The operands of a scatter, and the ops between x, the indices and the updates of which its gradients are made.
struct Scattered {
  Builder& b;
  Value x, indices, updates;
  int64_t dim, batch_dims;

  explicit Scattered(VjpContext& c)
      : b(c.b()),
        x(c.operand(0)),
        indices(c.operand(1)),
        updates(c.operand(2)),
        dim(c.attr<int64_t>("dim")),
        batch_dims(c.attr<int64_t>("batch_dims")) {}

  Value At(Value of_x) const { return b.Gather(of_x, indices, dim, batch_dims); }
  Value Sum(Value of_updates) const { return b.ScatterSum(indices, of_updates, dim, batch_dims, x.shape()[dim]); }
  Value OverUpdates(Value of_indices) const {
    const ops::IndexedDims dims(dim, batch_dims, indices.shape().rank());
    Ints to;
    for (int64_t i = 0; i < indices.shape().rank(); ++i) to.push_back(dims.IndicesToValues(i));
    return b.Broadcast(of_indices, updates.shape(), to);
  }
};

// Overwritten elements, of x or of the updates, get no gradient. To find them, each index writes its number to its
// position. An index that finds its own number there has written last.
void ReplaceVjp(VjpContext& c, const Scattered& s) {
  Builder& b = s.b;
  const TensorType numbers_type{DType::kI64, s.indices.shape()};
  const Value numbers = b.Reshape(b.Iota({DType::kI64, {numbers_type.num_elements()}}, 0), numbers_type.shape);
  Ints dims(s.x.shape().dims().begin(), s.x.shape().dims().begin() + s.batch_dims);
  dims.push_back(s.x.shape()[s.dim]);
  const Value nobody = b.Splat(-1, {DType::kI64, Shape(dims)});
  const Value last = b.Scatter(nobody, s.indices, numbers, s.batch_dims, s.batch_dims, "replace");
  const Value wrote_last = b.Compare(b.Gather(last, s.indices, s.batch_dims, s.batch_dims), numbers, "eq");
  const Value none = b.SplatLike(0.0, s.updates);
  c.Contribute(0, b.Scatter(c.grad(), s.indices, none, s.dim, s.batch_dims, "replace"));
  c.Contribute(2, b.Select(s.OverUpdates(wrote_last), s.At(c.grad()), none));
}

// The gradient is shared equally between all elements of x and of the updates that are equal to the extremum.
void ScatterExtremumVjp(VjpContext& c, const Scattered& s) {
  Builder& b = s.b;
  const Value of_x = b.Convert(b.Compare(s.x, c.result(), "eq"), s.x.dtype());
  const Value of_updates = b.Convert(b.Compare(s.updates, s.At(c.result()), "eq"), s.x.dtype());
  const Value share = b.Div(c.grad(), b.Add(of_x, s.Sum(of_updates)));
  c.Contribute(0, b.Mul(of_x, share));
  c.Contribute(2, b.Mul(of_updates, s.At(share)));
}

// The product of all factors except `factor`: zero if another factor is zero, else `product`, that of all nonzero
// factors, divided by `factor` if that is nonzero. `zeros` is the number of factors that are zero.
Value OtherFactors(Builder& b, Value factor, Value zeros, Value product) {
  const Value is_zero = b.Compare(factor, b.SplatLike(0.0, factor), "eq");
  const Value nonzero = b.Select(is_zero, b.SplatLike(1.0, factor), factor);
  const Value none_else = b.Compare(zeros, b.Convert(is_zero, factor.dtype()), "eq");
  return b.Select(none_else, b.Div(product, nonzero), b.SplatLike(0.0, factor));
}

void ScatterProductVjp(VjpContext& c, const Scattered& s) {
  Builder& b = s.b;
  const auto is_zero = [&](Value v) { return b.Compare(v, b.SplatLike(0.0, v), "eq"); };
  const auto nonzero = [&](Value v) { return b.Select(is_zero(v), b.SplatLike(1.0, v), v); };
  const auto as_number = [&](Value v) { return b.Convert(is_zero(v), v.dtype()); };
  const Value product = b.Scatter(nonzero(s.x), s.indices, nonzero(s.updates), s.dim, s.batch_dims, "prod");
  const Value zeros = b.Add(as_number(s.x), s.Sum(as_number(s.updates)));
  c.Contribute(0, b.Mul(c.grad(), OtherFactors(b, s.x, zeros, product)));
  c.Contribute(2, b.Mul(s.At(c.grad()), OtherFactors(b, s.updates, s.At(zeros), s.At(product))));
}

void ScatterVjp(VjpContext& c) {
  const Scattered s(c);
  const std::optional<ReduceKind> kind = ScatterKind(c);
  if (!kind) ReplaceVjp(c, s);
  else if (*kind == ReduceKind::kProd) ScatterProductVjp(c, s);
  else ScatterExtremumVjp(c, s);
}

// True if a partial x gives a partial result: if it is replaced by updates with the same partial placement, or
// multiplied by replicated ones.
bool KeepsPartial(const PlacementContext& c) {
  const Placement &x = c.operand(0), &updates = c.operand(2);
  const std::optional<ReduceKind> kind = ScatterKind(c);
  if (!kind) return x.is_partial() && updates == x;
  return *kind == ReduceKind::kProd && ops::IsLinearPartial(x, c.dtype(0)) && updates.is_replicated();
}

// Splits along a dimension that is not indexed, else keeps x partial if KeepsPartial, else replicates.
void PlaceScatter(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const ops::IndexedDims dims(c.attr<int64_t>("dim"), c.attr<int64_t>("batch_dims"), c.shape(1).rank());
  const Placement &x = c.operand(0), &indices = c.operand(1), &updates = c.operand(2);
  const auto to_x = [&](const Placement& p) { return p.is_split() ? dims.ValuesToX(p.dim()) : -1; };
  int64_t along = -1;  // dimension of x
  if (x.is_split() && x.dim() != dims.dim) along = x.dim();
  else if (to_x(updates) >= 0) along = to_x(updates);
  else if (indices.is_split() && indices.dim() < dims.batch_dims) along = indices.dim();
  else if (x.is_replicated() && c.wanted() && c.wanted()->is_split() && c.wanted()->dim() != dims.dim)
    along = c.wanted()->dim();
  if (along >= 0) {
    c.Require(0, Placement::Split(along));
    c.Require(1, ops::SplitOrWhole(dims.ValuesToIndices(dims.XToValues(along))));
    c.Require(2, Placement::Split(dims.XToValues(along)));
    c.Result(Placement::Split(along));
  } else if (KeepsPartial(c)) {
    c.Require(1, Placement::Replicated());
    c.Result(x);
  } else {
    c.RequireAll(Placement::Replicated());
  }
}

}  // namespace

//===-- scatter ---------------------------------------------------------------------------------------------------===//
const OpDef& ScatterOp() {
  static const OpDef def =
      OpDef("scatter")
          .Doc(
              "x with the updates written along dimension dim, at the indices, in their order. Of several updates at "
              "one position the last one stays; if kind is min, max or prod, all are combined with the element of x. "
              "Negative indices count from the end. The updates have the shape of gather's result. The op for sums is "
              "scatter_sum.")
          .Operand("x")
          .Operand("indices")
          .Operand("updates")
          .Attr<int64_t>("dim", "the dimension of x that is indexed")
          .OptionalAttr<int64_t>("batch_dims", 0, "the number of leading dimensions that x and the indices share")
          .OptionalAttr<std::string>("kind", "replace", "replace, min, max or prod")
          .Trait(kOpaque)
          .Trait(kChecksData)
          .Constraint("C1", "the indices have dtype i64 or i32")
          .Constraint("C2", "dim is a dimension of x")
          .Constraint("C3", "batch_dims is at least 0, and no more than dim and the rank of the indices")
          .Constraint("C4", "the first batch_dims dimensions of x and of the indices are equal")
          .Constraint("C5", "the updates have the dtype of x, and its shape with the indices' dimensions for dim")
          .Constraint("C6", "kind is replace, min, max or prod")
          .Constraint("C7", "x is not bool, unless kind is replace")
          .Constraint("C8", "when it runs: every index is in [-n, n), n the extent of dim")
          .Infer(InferScatter)
          .Eval(EvalScatter)
          .Precision(PrecisionRule::kFollows)
          .Vjp(ScatterVjp)
          .Place(PlaceScatter);
  return def;
}

}  // namespace lockstep
