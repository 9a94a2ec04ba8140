// The reversal of dimensions.

#include <algorithm>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

bool IsReversed(const NodeContext& c, int64_t dim) {
  const Ints& dims = c.attr<Ints>("dims");
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

absl::Status InferReverse(InferContext& c) {
  RETURN_IF_ERROR(ops::CheckIncreasingDims(c, "C1", c.attr<Ints>("dims"), c.shape(0)));
  return c.SetResult(c.operand(0));
}

absl::Status EvalReverse(EvalContext& c) {
  const Tensor& x = c.operand(0);
  const Shape& shape = x.shape();
  const Ints strides = shape.Strides();
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto from = x.data<T>();
    const auto to = c.result().mutable_data<T>();
    size_t at = 0;
    ops::ForEachIndex(shape, [&](const Ints& index) {
      int64_t source = 0;
      for (int64_t d = 0; d < shape.rank(); ++d) {
        const auto i = static_cast<size_t>(d);
        source += (IsReversed(c, d) ? shape[d] - 1 - index[i] : index[i]) * strides[i];
      }
      to[at++] = from[static_cast<size_t>(source)];
    });
  });
  return absl::OkStatus();
}

IndexMap SourceOfReverse(const IndexContext& c) {
  const auto rank = static_cast<size_t>(c.operand().rank());
  IndexMap source;
  for (size_t i = 0; i < rank; ++i) {
    const auto dim = static_cast<int64_t>(i);
    source.push_back(IsReversed(c, dim) ? Affine::Index(rank, i, -1, c.operand()[dim] - 1) : Affine::Index(rank, i));
  }
  return source;
}

// A dimension that is reversed must not be split, because its slices would change places.
void PlaceReverse(PlacementContext& c) {
  const auto same_if_kept = [&](int64_t d) { return IsReversed(c, d) ? -1 : d; };
  ops::PlaceDataMovement(c, same_if_kept, same_if_kept);
}

}  // namespace

//===-- reverse ---------------------------------------------------------------------------------------------------===//
const OpDef& ReverseOp() {
  static const OpDef def =
      OpDef("reverse")
          .Doc("x with its elements in the opposite order along each of dims.")
          .Operand("x")
          .Attr<Ints>("dims", "the dimensions that are reversed")
          .MovesFrom(SourceOfReverse)
          .Constraint("C1", "dims are dimensions of x, strictly increasing")
          .Infer(InferReverse)
          .Eval(EvalReverse)
          .Precision(PrecisionRule::kFollows)
          .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Reverse(c.grad(), c.attr<Ints>("dims"))); })
          .Place(PlaceReverse);
  return def;
}

}  // namespace lockstep
