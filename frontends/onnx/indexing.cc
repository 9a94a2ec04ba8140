// Operators that read or write at positions given as data, by gather, scatter and scatter_sum.

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

Ints Counted(int64_t begin, int64_t end) {
  Ints range(At(end - begin));
  std::iota(range.begin(), range.end(), begin);
  return range;
}

Value SplatOf(Builder& b, int64_t value, Value like) {
  return like ? b.Splat(static_cast<double>(value), like.type()) : like;
}

// The permutation that puts dimension `dim` at the end.
Ints ToTheEnd(int64_t dim, int64_t rank) {
  Ints permutation = Counted(0, rank);
  permutation.erase(permutation.begin() + dim);
  permutation.push_back(dim);
  return permutation;
}
// The inverse permutation of ToTheEnd.
Ints FromTheEnd(int64_t dim, int64_t rank) {
  Ints permutation = Counted(0, rank - 1);
  permutation.insert(permutation.begin() + dim, rank - 1);
  return permutation;
}
Value MovedToEnd(Builder& b, Value x, int64_t dim) {
  if (!x || dim + 1 == x.shape().rank()) return x;
  return b.Transpose(x, ToTheEnd(dim, x.shape().rank()));
}
Value MovedFromEnd(Builder& b, Value x, int64_t dim) {
  if (!x || dim + 1 == x.shape().rank()) return x;
  return b.Transpose(x, FromTheEnd(dim, x.shape().rank()));
}

// The first elements of x, `extents` many along each dimension.
Value Leading(Builder& b, Value x, const Ints& extents) {
  if (!x || x.shape().dims() == extents) return x;
  return b.Slice(x, Ints(extents.size(), 0), extents);
}

absl::Status CheckIndices(OnnxNode& n, int i) {
  RETURN_IF_ERROR(n.b().status());
  const DType dtype = n.type(i).dtype;
  if (dtype == DType::kI64 || dtype == DType::kI32) return absl::OkStatus();
  return n.Error() << "indices are " << n.type(i) << ", expected i64 or i32";
}

// ONNX counts negative indices from the end. Some PyTorch operators reject them; lockstep/_torch/notes.py marks their
// nodes.
bool RefusesNegative(const OnnxNode& n) { return n.Metadata("lockstep.indices") == "not negative"; }

// Input i, which has indices into a dimension of `extent`.
absl::StatusOr<Value> Indices(OnnxNode& n, int i, int64_t extent) {
  RETURN_IF_ERROR(CheckIndices(n, i));
  if (!RefusesNegative(n)) return n.input(i);
  return n.b().Op("within", {n.input(i)}, {{"low", int64_t{0}}, {"high", extent}, {"what", std::string("index")}});
}

// --- Gather ----------------------------------------------------------------------------------------------------------

// A slice of x if the fixed indices increase by a constant step, else nothing.
absl::StatusOr<std::optional<Value>> GatherAsSlice(OnnxNode& n, const Tensor& indices, int64_t axis) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const int64_t extent = x.shape()[axis], count = indices.num_elements();
  const Tensor wide = indices.Converted(DType::kI64);
  Ints at(wide.data<int64_t>().begin(), wide.data<int64_t>().end());
  for (int64_t& index : at) {
    if (index < (RefusesNegative(n) ? 0 : -extent) || index >= extent)
      return n.Error() << "index " << index << " is outside extent " << extent;
    if (index < 0) index += extent;
  }
  const int64_t step = count > 1 ? at[1] - at[0] : 1;
  for (size_t i = 1; i < at.size(); ++i) {
    if (step < 1 || at[i] - at[i - 1] != step) return std::nullopt;
  }
  Ints start(At(x.shape().rank()), 0), limit = x.shape().dims(), stride(At(x.shape().rank()), 1);
  start[At(axis)] = count > 0 ? at.front() : 0;
  limit[At(axis)] = count > 0 ? at.back() + 1 : 0;
  stride[At(axis)] = step;
  // The indices' dimensions replace the axis.
  Ints dims = x.shape().dims();
  dims.erase(dims.begin() + axis);
  dims.insert(dims.begin() + axis, indices.shape().dims().begin(), indices.shape().dims().end());
  const bool is_whole = count == extent && step == 1;
  return n.b().Reshape(is_whole ? x : n.b().Slice(x, start, limit, stride), Shape(dims));
}

// `rows` without a gradient for those whose index is `padding`, PyTorch's padding_idx, which lockstep/_torch/notes.py
// notes in the node. The indices' dimensions begin at `axis` of the rows.
Value WithoutGradientAt(OnnxNode& n, const std::string& padding, Value indices, int64_t axis, Value rows) {
  Builder& b = n.b();
  if (!indices || !rows) return Value();
  const Value is_padding = b.Compare(indices, SplatOf(b, std::atoll(padding.c_str()), indices), "eq");
  const Ints dims = Counted(axis, axis + indices.shape().rank());
  return b.Select(b.Broadcast(is_padding, rows.shape(), dims), b.Op("stop_gradient", {rows}), rows);
}

absl::Status Gather(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
  const std::string padding(n.Metadata("lockstep.padding_idx"));
  if (const Tensor* fixed = n.DataIndependentInput(1);
      padding.empty() && fixed != nullptr && IsInteger(fixed->dtype())) {
    ASSIGN_OR_RETURN(const std::optional<Value> slice, GatherAsSlice(n, *fixed, axis));
    if (slice) {
      n.SetOutput(0, *slice);
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(const Value indices, Indices(n, 1, x.shape()[axis]));
  const Value rows = n.b().Gather(x, indices, axis);
  n.SetOutput(0, padding.empty() ? rows : WithoutGradientAt(n, padding, indices, axis, rows));
  return absl::OkStatus();
}

// --- GatherElements, ScatterElements ---------------------------------------------------------------------------------

// Returns an error unless x and the indices have equal rank, and the indices are not larger than x in any dimension but
// `axis`.
absl::Status CheckElementwise(OnnxNode& n, int64_t axis) {
  const Shape &x = n.shape(0), &indices = n.shape(1);
  bool fits = x.rank() == indices.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = i == axis || indices[i] <= x[i];
  if (fits) return absl::OkStatus();
  return n.Error() << "indices are " << n.type(1) << " for data " << n.type(0)
                   << ", expected equal ranks, and no larger extents except along axis " << axis;
}

// The extents of the part of x that the indices can refer to: the indices' own, and the whole extent along `axis`.
Ints IndexedBox(OnnxNode& n, int64_t axis) { return n.shape(1).WithDim(axis, n.shape(0)[axis]).dims(); }

absl::Status GatherElements(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
  ASSIGN_OR_RETURN(const Value indices, Indices(n, 1, x.shape()[axis]));
  RETURN_IF_ERROR(CheckElementwise(n, axis));
  const int64_t last = x.shape().rank() - 1;
  const Value box = MovedToEnd(b, Leading(b, x, IndexedBox(n, axis)), axis);
  n.SetOutput(0, MovedFromEnd(b, b.Gather(box, MovedToEnd(b, indices, axis), last, last), axis));
  return absl::OkStatus();
}

// x with the updates written to it or combined with it, as the attribute reduction says.
absl::StatusOr<Value> Scattered(OnnxNode& n, Value x, Value indices, Value updates, int64_t dim, int64_t batch_dims) {
  const std::string reduction = n.String("reduction", "none");
  RETURN_IF_ERROR(n.b().status());
  if (reduction == "add") return n.b().Add(x, n.b().ScatterSum(indices, updates, dim, batch_dims, x.shape()[dim]));
  const std::pair<std::string_view, const char*> kinds[] = {
      {"none", "replace"}, {"mul", "prod"}, {"max", "max"}, {"min", "min"}};
  for (const auto& [name, kind] : kinds) {
    if (reduction == name) return n.b().Scatter(x, indices, updates, dim, batch_dims, kind);
  }
  return n.Error() << "attribute reduction is '" << reduction << "', expected none, add, mul, max or min";
}

// x with its first elements replaced by `box`.
Value WithLeading(Builder& b, Value x, Value box) {
  if (!x || !box) return box;
  for (int64_t dim = x.shape().rank() - 1; dim >= 0; --dim) {
    const int64_t extent = box.shape()[dim];
    if (extent == x.shape()[dim]) continue;
    Ints start(At(x.shape().rank()), 0), limit = box.shape().dims();
    start[At(dim)] = extent;
    limit[At(dim)] = x.shape()[dim];
    box = b.Concat({box, b.Slice(x, start, limit)}, dim);
    if (!box) return box;
  }
  return box;
}

absl::Status ScatterElements(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0), updates = n.input(2);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
  ASSIGN_OR_RETURN(const Value indices, Indices(n, 1, x.shape()[axis]));
  RETURN_IF_ERROR(CheckElementwise(n, axis));
  const int64_t last = x.shape().rank() - 1;
  ASSIGN_OR_RETURN(const Value box, Scattered(n, MovedToEnd(b, Leading(b, x, IndexedBox(n, axis)), axis),
                                              MovedToEnd(b, indices, axis), MovedToEnd(b, updates, axis), last, last));
  n.SetOutput(0, WithLeading(b, x, MovedFromEnd(b, box, axis)));
  return absl::OkStatus();
}

// --- GatherND, ScatterND ---------------------------------------------------------------------------------------------

// GatherND and ScatterND as a gather or scatter along one dimension: `x` with the `tuple` dimensions from `batch_dims`
// on merged into one, and `indices` into that dimension, made of the tuples in the last dimension of input 1.
struct Flattened {
  Value x, indices;
};

// One index of each tuple, for a dimension of `extent`: its position counted from the front, and whether it is in
// range.
struct Component {
  Value position, in_range;
};

Component ComponentOf(Builder& b, Value tuples, int64_t which, int64_t extent) {
  const int64_t last = tuples.shape().rank() - 1;
  Ints start(At(last + 1), 0), limit = tuples.shape().dims();
  start[At(last)] = which;
  limit[At(last)] = which + 1;
  const Value index = b.Reshape(b.Slice(tuples, start, limit), tuples.shape().Without({last}));
  const Value is_negative = b.Compare(index, SplatOf(b, 0, index), "lt");
  const Value position = b.Select(is_negative, b.Add(index, SplatOf(b, extent, index)), index);
  const Value in_range = b.Op(
      "and", {b.Compare(position, SplatOf(b, 0, index), "ge"), b.Compare(position, SplatOf(b, extent, index), "lt")});
  return {position, in_range};
}

// A tuple with an index out of range gets the first flattened index that is out of range, so that using it is an error.
absl::StatusOr<Flattened> FlattenIndices(OnnxNode& n, int64_t batch_dims) {
  Builder& b = n.b();
  const Value x = n.input(0);
  Value tuples = n.input(1);
  RETURN_IF_ERROR(CheckIndices(n, 1));
  RETURN_IF_ERROR(n.RequireRank(1, 1));
  const int64_t last = tuples.shape().rank() - 1, tuple = tuples.shape()[last];
  if (batch_dims < 0 || batch_dims > last || batch_dims + tuple > x.shape().rank()) {
    return n.Error() << "indices " << n.type(1) << " of data " << n.type(0) << " with " << batch_dims
                     << " batch dimensions: expected tuples no longer than the remaining dimensions";
  }
  Ints dims(x.shape().dims().begin(), x.shape().dims().begin() + batch_dims);
  int64_t extent = 1;
  for (int64_t i = 0; i < tuple; ++i) extent *= x.shape()[batch_dims + i];
  dims.push_back(extent);
  dims.insert(dims.end(), x.shape().dims().begin() + batch_dims + tuple, x.shape().dims().end());
  tuples = b.Convert(tuples, DType::kI64);
  const Shape of_tuples = tuples.shape().Without({last});
  if (tuple == 1) return Flattened{b.Reshape(x, Shape(dims)), b.Reshape(tuples, of_tuples)};
  Value index = b.Splat(0, {DType::kI64, of_tuples}), in_range = b.Splat(1, {DType::kBool, of_tuples});
  for (int64_t i = 0; i < tuple; ++i) {
    const Component component = ComponentOf(b, tuples, i, x.shape()[batch_dims + i]);
    index = b.Add(b.Mul(index, SplatOf(b, x.shape()[batch_dims + i], index)), component.position);
    in_range = b.Op("and", {in_range, component.in_range});
  }
  return Flattened{b.Reshape(x, Shape(dims)), b.Select(in_range, index, SplatOf(b, extent, index))};
}

absl::Status GatherND(OnnxNode& n) {
  const int64_t batch_dims = n.Int("batch_dims", 0);
  ASSIGN_OR_RETURN(const Flattened flat, FlattenIndices(n, batch_dims));
  n.SetOutput(0, n.b().Gather(flat.x, flat.indices, batch_dims, batch_dims));
  return absl::OkStatus();
}

absl::Status ScatterND(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Flattened flat, FlattenIndices(n, 0));
  const Value updates = n.input(2);
  ASSIGN_OR_RETURN(const Value result, Scattered(n, flat.x, flat.indices, updates, 0, 0));
  n.SetOutput(0, n.b().Reshape(result, n.shape(0)));
  return absl::OkStatus();
}

// --- TensorScatter ---------------------------------------------------------------------------------------------------

// Positions along a dimension, [batch, count]: for each sample `count` positions from `first` on.
Value PositionsFrom(Builder& b, Value first, int64_t count) {
  if (!first) return first;
  const TensorType type{DType::kI64, {first.shape()[0], count}};
  return b.Add(b.BroadcastAlong(first, type.shape, 0), b.Iota(type, 1));
}

absl::Status TensorScatter(OnnxNode& n) {
  Builder& b = n.b();
  const std::string mode = n.String("mode", "linear");
  const Value cache = n.input(0), update = n.input(1);
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  RETURN_IF_ERROR(n.RequireRank(1, 2));
  if (mode != "linear" && mode != "circular")
    return n.Error() << "attribute mode is '" << mode << "', expected linear or circular";
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", -2), cache.shape().rank()));
  if (axis == 0) return n.Error() << "axis 0 is the batch, expected another one";
  if (update.shape().rank() != cache.shape().rank())
    return n.Error() << "update is " << n.type(1) << " for a cache " << n.type(0);
  const int64_t batch = cache.shape()[0], extent = cache.shape()[axis];
  Value first = b.Splat(0, {DType::kI64, {batch}});
  if (n.has_input(2)) {
    first = n.input(2);
    RETURN_IF_ERROR(CheckIndices(n, 2));
    if (first.shape() != Shape({batch})) return n.Error() << "write_indices are " << n.type(2) << " for " << n.type(0);
  }
  Value positions = PositionsFrom(b, b.Convert(first, DType::kI64), update.shape()[axis]);
  if (mode == "circular" && extent > 0) {
    const Value extents = SplatOf(b, extent, positions);
    positions = b.Sub(positions, b.Mul(b.Div(positions, extents), extents));
  } else {  // a negative position must not count from the end
    const Value is_negative = b.Compare(positions, SplatOf(b, 0, positions), "lt");
    positions = b.Select(is_negative, SplatOf(b, extent, positions), positions);
  }
  n.SetOutput(0, b.Scatter(cache, positions, update, axis, 1, "replace"));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> IndexingOps() {
  return {
      {"Gather", 1, kNoEnd, 2, 2, Gather},
      {"GatherElements", 11, kNoEnd, 2, 2, GatherElements},
      {"GatherND", 11, kNoEnd, 2, 2, GatherND},
      {"Scatter", 9, kNoEnd, 3, 3, ScatterElements},
      {"ScatterElements", 11, kNoEnd, 3, 3, ScatterElements},
      {"ScatterND", 11, kNoEnd, 3, 3, ScatterND},
      {"TensorScatter", 24, kNoEnd, 2, 3, TensorScatter},
  };
}

}  // namespace lockstep
