// Reads and sums at positions given by data, as in embeddings.

#include "core/ops/indexing.h"

#include "core/builder.h"
#include "core/ops/combine.h"
#include "core/ops/indexing_rules.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

// The coordinates of the element at the row-major position `at`.
std::vector<int64_t> CoordinatesOf(const Shape& shape, int64_t at) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (size_t i = index.size(); i-- > 0;) {
    index[i] = at % shape.dims()[i];
    at /= shape.dims()[i];
  }
  return index;
}

}  // namespace

namespace ops {

absl::Status IndexError(std::string_view constraint, int64_t index, int64_t at, const Shape& indices, int64_t dim,
                        int64_t extent) {
  return InvalidArgument() << constraint << ": index " << index << " at position "
                           << ListToString(CoordinatesOf(indices, at)) << " is outside [" << -extent << ", " << extent
                           << "), the extent of dimension " << dim;
}

absl::Status LabelError(std::string_view constraint, int64_t label, int64_t at, const Shape& labels, int64_t classes) {
  ErrorStream error = InvalidArgument() << constraint << ": label " << label << " at position "
                                        << ListToString(CoordinatesOf(labels, at)) << " is outside [0, " << classes
                                        << ")";
  if (label < 0) error << "; ignore_index=" << label << " of the loss leaves out the samples that have it";
  return error;
}

absl::StatusOr<std::vector<int64_t>> PositionsOf(const EvalContext& c, std::string_view id, const Tensor& indices,
                                                 int64_t extent) {
  const Tensor wide = indices.Converted(DType::kI64);
  const std::span<const int64_t> given = wide.data<int64_t>();
  RETURN_IF_ERROR(CheckIndices(c.op().name() + " (" + std::string(id) + ")", given.data(), indices.shape(),
                               c.attr<int64_t>("dim"), extent));
  std::vector<int64_t> positions(given.begin(), given.end());
  for (int64_t& position : positions) position += position < 0 ? extent : 0;
  return positions;
}

absl::Status CheckIndexTypes(const InferContext& c, size_t i) {
  if (c.dtype(i) == DType::kI64 || c.dtype(i) == DType::kI32) return absl::OkStatus();
  return c.Error("C1") << "indices are " << c.operand(i) << ", expected i64 or i32";
}

absl::Status CheckIndexedDims(const InferContext& c, const Shape& x, const Shape& indices) {
  const int64_t dim = c.attr<int64_t>("dim"), batch_dims = c.attr<int64_t>("batch_dims");
  if (!x.has_dim(dim)) return c.Error("C2") << "dim " << dim << " is outside " << x;
  if (batch_dims < 0 || batch_dims > dim || batch_dims > indices.rank()) {
    return c.Error("C3") << "batch_dims " << batch_dims << " for dim " << dim << " and indices " << indices
                         << ", expected 0 or more, and no more than dim and the rank of the indices";
  }
  for (int64_t i = 0; i < batch_dims; ++i) {
    if (x[i] == indices[i]) continue;
    return c.Error("C4") << "dimension " << i << " of " << x << " and of the indices " << indices
                         << " differs, one of the " << batch_dims << " that they have in common";
  }
  return absl::OkStatus();
}

Shape ShapeOfValues(const InferContext& c, const Shape& x, const Shape& indices) {
  const int64_t dim = c.attr<int64_t>("dim"), batch_dims = c.attr<int64_t>("batch_dims");
  std::vector<int64_t> dims(x.dims().begin(), x.dims().begin() + dim);
  dims.insert(dims.end(), indices.dims().begin() + batch_dims, indices.dims().end());
  dims.insert(dims.end(), x.dims().begin() + dim + 1, x.dims().end());
  return Shape(std::move(dims));
}

Placement SplitOrWhole(int64_t dim) { return dim < 0 ? Placement::Replicated() : Placement::Split(dim); }

}  // namespace ops

namespace {

ops::IndexedDims DimsOf(const NodeContext& c, const Shape& indices) {
  return {c.attr<int64_t>("dim"), c.attr<int64_t>("batch_dims"), indices.rank()};
}

// --- gather ----------------------------------------------------------------------------------------------------------

absl::Status InferGather(InferContext& c) {
  RETURN_IF_ERROR(ops::CheckIndexTypes(c, 1));
  RETURN_IF_ERROR(ops::CheckIndexedDims(c, c.shape(0), c.shape(1)));
  const Shape result = ops::ShapeOfValues(c, c.shape(0), c.shape(1));
  RETURN_IF_ERROR(ops::CheckExtents(c, "C5", result.dims()));
  return c.SetResult(c.dtype(0), result);
}

absl::Status EvalGather(EvalContext& c) {
  const Tensor &x = c.operand(0), &indices = c.operand(1);
  const ops::IndexedRows rows(x.shape(), indices.shape(), c.attr<int64_t>("dim"), c.attr<int64_t>("batch_dims"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> positions, ops::PositionsOf(c, "C6", indices, rows.extent));
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = x.data<T>().data();
    T* to = c.result().mutable_data<T>().data();
    for (int64_t group = 0; group < rows.groups(); ++group) {
      for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t position = positions[static_cast<size_t>(rows.IndicesOf(group) + i)];
        for (int64_t j = 0; j < rows.inner; ++j) *to++ = from[(group * rows.extent + position) * rows.inner + j];
      }
    }
  });
  return absl::OkStatus();
}

void GatherVjp(VjpContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  c.Contribute(0,
               c.b().ScatterSum(c.operand(1), c.grad(), dim, c.attr<int64_t>("batch_dims"), c.operand(0).shape()[dim]));
}

// A rank reads whole rows of x at the indices that it holds. If x and the indices are split along different dimensions,
// the split of the indices is kept, and x is gathered.
void PlaceGather(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const ops::IndexedDims dims = DimsOf(c, c.shape(1));
  const Placement &x = c.operand(0), &indices = c.operand(1);
  int64_t along = -1;  // dimension of the result
  if (indices.is_split()) along = dims.IndicesToValues(indices.dim());
  else if (x.is_split()) along = dims.XToValues(x.dim());
  else if (x.is_replicated() && c.wanted() && c.wanted()->is_split()) along = c.wanted()->dim();
  if (along >= 0) {
    c.Require(0, ops::SplitOrWhole(dims.ValuesToX(along)));
    c.Require(1, ops::SplitOrWhole(dims.ValuesToIndices(along)));
    c.Result(Placement::Split(along));
    return;
  }
  c.Require(1, Placement::Replicated());
  if (x.is_partial()) c.Result(x);
  else c.Require(0, Placement::Replicated());
}

// --- scatter_sum -----------------------------------------------------------------------------------------------------

// The result has the shape of the updates, with the indices' dimensions replaced by one of extent `size`.
absl::Status InferScatterSum(InferContext& c) {
  const Shape &indices = c.shape(0), &updates = c.shape(1);
  const int64_t dim = c.attr<int64_t>("dim"), batch_dims = c.attr<int64_t>("batch_dims"),
                size = c.attr<int64_t>("size");
  RETURN_IF_ERROR(ops::CheckIndexTypes(c, 0));
  if (batch_dims < 0 || batch_dims > dim || batch_dims > indices.rank() ||
      dim > updates.rank() - (indices.rank() - batch_dims)) {
    return c.Error("C2") << "dim " << dim << " and batch_dims " << batch_dims << " for indices " << indices
                         << " and updates " << updates
                         << ", expected 0 <= batch_dims <= dim, and room in the updates for the indices' dimensions";
  }
  const ops::IndexedDims dims = DimsOf(c, indices);
  for (int64_t i = 0; i < indices.rank(); ++i) {
    if (indices[i] == updates[dims.IndicesToValues(i)]) continue;
    return c.Error("C3") << "dimension " << i << " of the indices " << indices << " and dimension "
                         << dims.IndicesToValues(i) << " of the updates " << updates << " differ";
  }
  std::vector<int64_t> extents(updates.dims().begin(), updates.dims().begin() + dim);
  extents.push_back(size);
  extents.insert(extents.end(), updates.dims().begin() + dim + dims.index_dims, updates.dims().end());
  RETURN_IF_ERROR(ops::CheckExtents(c, "C4", extents));
  if (c.dtype(1) == DType::kBool) return c.Error("C5") << "updates are " << c.operand(1) << ", expected numbers";
  return c.SetResult(c.dtype(1), Shape(std::move(extents)));
}

absl::Status EvalScatterSum(EvalContext& c) {
  const Tensor &indices = c.operand(0), &updates = c.operand(1);
  const ops::IndexedRows rows(c.result().shape(), indices.shape(), c.attr<int64_t>("dim"),
                              c.attr<int64_t>("batch_dims"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> positions, ops::PositionsOf(c, "C6", indices, rows.extent));
  DispatchDType(updates.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = Accumulator<T>;
    const T* from = updates.data<T>().data();
    const auto out = c.result().mutable_data<T>();
    std::vector<Sum> sums(out.size(), Sum(0));
    for (int64_t group = 0; group < rows.groups(); ++group) {
      for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t position = positions[static_cast<size_t>(rows.IndicesOf(group) + i)];
        for (int64_t j = 0; j < rows.inner; ++j) {
          Sum& sum = sums[static_cast<size_t>((group * rows.extent + position) * rows.inner + j)];
          sum = ops::Combine(ReduceKind::kSum, sum, static_cast<Sum>(*from++));
        }
      }
    }
    for (size_t i = 0; i < out.size(); ++i) out[i] = ConvertElement<T>(sums[i]);
  });
  return absl::OkStatus();
}

void ScatterSumVjp(VjpContext& c) {
  c.Contribute(1, c.b().Gather(c.grad(), c.operand(0), c.attr<int64_t>("dim"), c.attr<int64_t>("batch_dims")));
}

// The op is linear in the updates. If a dimension of the indices is split, the result is a partial sum.
void PlaceScatterSum(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const ops::IndexedDims dims = DimsOf(c, c.shape(0));
  const Placement &indices = c.operand(0), &updates = c.operand(1);
  int64_t along = -1;  // dimension of the updates
  if (updates.is_split()) along = updates.dim();
  else if (indices.is_split()) along = dims.IndicesToValues(indices.dim());
  else if (updates.is_replicated() && c.wanted() && c.wanted()->is_split()) along = dims.XToValues(c.wanted()->dim());
  if (along >= 0) {
    c.Require(0, ops::SplitOrWhole(dims.ValuesToIndices(along)));
    c.Require(1, Placement::Split(along));
    const int64_t to = dims.ValuesToX(along);
    c.Result(to < 0 ? Placement::Partial(ReduceKind::kSum) : Placement::Split(to));
    return;
  }
  c.Require(0, Placement::Replicated());
  if (ops::IsLinearPartial(updates, c.dtype(1))) c.Result(updates);
  else c.Require(1, Placement::Replicated());
}

}  // namespace

//===-- gather ----------------------------------------------------------------------------------------------------===//
const OpDef& GatherOp() {
  static const OpDef def =
      OpDef("gather")
          .Doc(
              "Slices of x along dimension dim, at the indices; negative indices count from the end. The result is x "
              "with dimension dim replaced by the dimensions of the indices. The first batch_dims dimensions of x and "
              "of the indices are equal, and each of their positions has its own indices.")
          .Operand("x")
          .Operand("indices")
          .Attr<int64_t>("dim", "the dimension of x that is indexed")
          .OptionalAttr<int64_t>("batch_dims", 0, "the number of leading dimensions that x and the indices share")
          .Trait(kMovement)
          .Trait(kChecksData)
          .Constraint("C1", "the indices have dtype i64 or i32")
          .Constraint("C2", "dim is a dimension of x")
          .Constraint("C3", "batch_dims is at least 0, and no more than dim and the rank of the indices")
          .Constraint("C4", "the first batch_dims dimensions of x and of the indices are equal")
          .Constraint("C5", "the result is not too large")
          .Constraint("C6", "when it runs: every index is in [-n, n), n the extent of dim")
          .Infer(InferGather)
          .Eval(EvalGather)
          .Precision(PrecisionRule::kFollows)
          .Vjp(GatherVjp)
          .Place(PlaceGather);
  return def;
}

//===-- scatter_sum -----------------------------------------------------------------------------------------------===//
const OpDef& ScatterSumOp() {
  static const OpDef def =
      OpDef("scatter_sum")
          .Doc(
              "The transpose of gather. The result is the updates with the dimensions of the indices replaced by "
              "dimension dim, of extent size. Each of its slices along dim is the sum of the updates with that index, "
              "in their order, or 0 if there are none. Negative indices count from the end. Integers wrap around.")
          .Operand("indices")
          .Operand("updates")
          .Attr<int64_t>("dim", "the dimension of the result that is indexed")
          .OptionalAttr<int64_t>("batch_dims", 0, "the number of leading dimensions that updates and indices share")
          .Attr<int64_t>("size", "the extent of dimension dim")
          .Trait(kOpaque)
          .Trait(kChecksData)
          .Constraint("C1", "the indices have dtype i64 or i32")
          .Constraint("C2",
                      "0 <= batch_dims <= dim, and the updates have dimensions for those of the indices from dim on")
          .Constraint("C3",
                      "the updates have the indices' extents in their first batch_dims dimensions and from dim on")
          .Constraint("C4", "size is at least 0, and the result is not too large")
          .Constraint("C5", "the updates are not bool")
          .Constraint("C6", "when it runs: every index is in [-size, size)")
          .Infer(InferScatterSum)
          .Eval(EvalScatterSum)
          .Vjp(ScatterSumVjp)
          .Place(PlaceScatterSum);
  return def;
}

}  // namespace lockstep
