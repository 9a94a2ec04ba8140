// Sliding windows as dimensions, and the transposed op, which adds windows where they overlap. They are each other's
// gradients.

#include "core/builder.h"
#include "core/ops/combine.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"
#include "core/ops/window.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Checks the windows, where `extents` are those of the dimensions from `dim` on along which they slide.
absl::Status CheckWindows(const InferContext& c, const Ints& extents, const Ints& window) {
  const Ints &stride = c.attr<Ints>("stride"), &dilation = c.attr<Ints>("dilation");
  if (stride.size() != window.size() || dilation.size() != window.size()) {
    return c.Error("C2") << "window " << ListToString(window) << ", stride " << ListToString(stride) << " and dilation "
                         << ListToString(dilation) << ", expected as many entries in each";
  }
  for (size_t i = 0; i < window.size(); ++i) {
    for (int64_t value : {window[i], stride[i], dilation[i]}) {
      if (value >= 1 && value <= ops::kLargestWindowValue) continue;
      return c.Error("C3") << "window " << window[i] << ", stride " << stride[i] << " and dilation " << dilation[i]
                           << ", expected values from 1 to 2^30";
    }
    const int64_t span = (window[i] - 1) * dilation[i] + 1;
    if (span > extents[i]) {
      return c.Error("C4") << "a window of " << window[i] << " with dilation " << dilation[i] << " spans " << span
                           << ", but dimension " << c.attr<int64_t>("dim") + static_cast<int64_t>(i) << " has "
                           << extents[i];
    }
  }
  return absl::OkStatus();
}

// The number of positions of each window.
Ints Positions(const NodeContext& c, const Ints& extents, const Ints& window) {
  const Ints &stride = c.attr<Ints>("stride"), &dilation = c.attr<Ints>("dilation");
  Ints positions;
  for (size_t i = 0; i < window.size(); ++i)
    positions.push_back((extents[i] - (window[i] - 1) * dilation[i] - 1) / stride[i] + 1);
  return positions;
}

Ints Part(const Ints& dims, int64_t begin, int64_t count) {
  return {dims.begin() + begin, dims.begin() + begin + count};
}

// `dims` with `count` of them from `at` on replaced by `by`.
Ints Replaced(Ints dims, int64_t at, int64_t count, const Ints& by) {
  dims.erase(dims.begin() + at, dims.begin() + at + count);
  dims.insert(dims.begin() + at, by.begin(), by.end());
  return dims;
}

Ints Joined(Ints a, const Ints& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// --- windows ---------------------------------------------------------------------------------------------------------

absl::Status InferWindows(InferContext& c) {
  const Ints& window = c.attr<Ints>("window");
  const int64_t dim = c.attr<int64_t>("dim"), count = static_cast<int64_t>(window.size());
  if (dim < 0 || dim > c.shape(0).rank() - count)
    return c.Error("C1") << count << " dimensions from " << dim << " on of " << c.operand(0);
  const Ints extents = Part(c.shape(0).dims(), dim, count);
  RETURN_IF_ERROR(CheckWindows(c, extents, window));
  const Ints dims = Replaced(c.shape(0).dims(), dim, count, Joined(window, Positions(c, extents, window)));
  RETURN_IF_ERROR(ops::CheckExtents(c, "C5", dims));
  return c.SetResult(c.dtype(0), Shape(dims));
}

IndexMap SourceOf(const NodeContext& c, int64_t operand_rank, int64_t count) {
  const Ints &stride = c.attr<Ints>("stride"), &dilation = c.attr<Ints>("dilation");
  const int64_t dim = c.attr<int64_t>("dim");
  const size_t rank = At(operand_rank + count);
  IndexMap source;
  for (int64_t d = 0; d < operand_rank; ++d) {
    Affine index = Affine::Zero(rank);
    index.strides[At(d < dim ? d : d + count)] = 1;
    if (d >= dim && d < dim + count) {
      index.strides[At(d)] = dilation[At(d - dim)];
      index.strides[At(d + count)] = stride[At(d - dim)];
    }
    source.push_back(std::move(index));
  }
  return source;
}

// Calls f(position in x, position in the windows) for each element of the windows, in order; both are row-major.
void ForEachWindowTap(const NodeContext& c, const Shape& x, const Shape& windows,
                      const std::function<void(size_t, size_t)>& f) {
  const IndexMap source = SourceOf(c, x.rank(), windows.rank() - x.rank());
  const Ints strides = x.Strides();
  Affine position = Affine::Zero(At(windows.rank()));
  for (size_t d = 0; d < source.size(); ++d) position = position.Plus(source[d], strides[d]);
  size_t at = 0;
  ops::ForEachIndex(windows, [&](const Ints& index) { f(At(position.At(index)), at++); });
}

absl::Status EvalWindows(EvalContext& c) {
  DispatchDType(c.operand(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto from = c.operand(0).data<T>();
    const auto to = c.result().mutable_data<T>();
    ForEachWindowTap(c, c.operand(0).shape(), c.result().shape(), [&](size_t x, size_t y) { to[y] = from[x]; });
  });
  return absl::OkStatus();
}

void WindowsVjp(VjpContext& c) {
  AttributeMap attributes = c.attributes();
  const int64_t count = static_cast<int64_t>(c.attr<Ints>("window").size());
  attributes.erase("window");
  attributes.emplace("size", Part(c.operand(0).shape().dims(), c.attr<int64_t>("dim"), count));
  c.Contribute(0, c.b().Op("overlap_add", {c.grad()}, std::move(attributes)));
}

// True if windows along dimension `dim` of x do not overlap and each is in its own block of `stride` elements, and
// these blocks are all of x.
bool IsBlocked(const NodeContext& c, const Shape& x, int64_t dim) {
  const size_t i = At(dim - c.attr<int64_t>("dim"));
  const int64_t stride = c.attr<Ints>("stride")[i];
  const int64_t span = (c.attr<Ints>("window")[i] - 1) * c.attr<Ints>("dilation")[i] + 1;
  return span <= stride && x[dim] % stride == 0;
}

// A split along a dimension of windows must be replicated, unless each window is in its own block.
void PlaceWindows(PlacementContext& c) {
  const int64_t dim = c.attr<int64_t>("dim"), count = static_cast<int64_t>(c.attr<Ints>("window").size());
  const auto to_result = [&](int64_t d) {
    if (d < dim) return d;
    return d >= dim + count || IsBlocked(c, c.shape(0), d) ? d + count : -1;
  };
  ops::PlaceDataMovement(c, to_result, [&](int64_t d) {
    if (d < dim) return d;
    return d >= dim + count && to_result(d - count) >= 0 ? d - count : -1;
  });
}

// --- overlap_add -----------------------------------------------------------------------------------------------------

absl::Status InferOverlapAdd(InferContext& c) {
  const Ints& size = c.attr<Ints>("size");
  const int64_t dim = c.attr<int64_t>("dim"), count = static_cast<int64_t>(size.size());
  if (dim < 0 || dim > c.shape(0).rank() - 2 * count)
    return c.Error("C1") << 2 * count << " dimensions from " << dim << " on of " << c.operand(0);
  const Ints window = Part(c.shape(0).dims(), dim, count), positions = Part(c.shape(0).dims(), dim + count, count);
  RETURN_IF_ERROR(CheckWindows(c, size, window));
  if (const Ints fitting = Positions(c, size, window); positions != fitting) {
    return c.Error("C5") << c.operand(0) << " has positions " << ListToString(positions) << ", expected "
                         << ListToString(fitting) << ", as often as windows fit into " << ListToString(size);
  }
  const Ints dims = Replaced(c.shape(0).dims(), dim, 2 * count, size);
  RETURN_IF_ERROR(ops::CheckExtents(c, "C6", dims));
  if (c.dtype(0) == DType::kBool) return c.Error("C7") << "operand " << c.operand(0) << ", expected numbers";
  return c.SetResult(c.dtype(0), Shape(dims));
}

absl::Status EvalOverlapAdd(EvalContext& c) {
  DispatchDType(c.operand(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = Accumulator<T>;
    const auto from = c.operand(0).data<T>();
    const auto to = c.result().mutable_data<T>();
    std::vector<Sum> sums(to.size(), Sum(0));
    ForEachWindowTap(c, c.result().shape(), c.operand(0).shape(), [&](size_t x, size_t y) {
      sums[x] = ops::Combine(ReduceKind::kSum, sums[x], static_cast<Sum>(from[y]));
    });
    for (size_t i = 0; i < to.size(); ++i) to[i] = ConvertElement<T>(sums[i]);
  });
  return absl::OkStatus();
}

void OverlapAddVjp(VjpContext& c) {
  AttributeMap attributes = c.attributes();
  const int64_t count = static_cast<int64_t>(c.attr<Ints>("size").size());
  attributes.erase("size");
  attributes.emplace("window", Part(c.operand(0).shape().dims(), c.attr<int64_t>("dim"), count));
  c.Contribute(0, c.b().Op("windows", {c.grad()}, std::move(attributes)));
}

void PlaceOverlapAdd(PlacementContext& c) {
  if (c.operand(0).is_partial() && !ops::IsLinearPartial(c.operand(0), c.dtype(0))) {
    c.Require(0, Placement::Replicated());
    c.Result(Placement::Replicated());
    return;
  }
  const int64_t dim = c.attr<int64_t>("dim"), count = static_cast<int64_t>(c.attr<Ints>("size").size());
  ops::PlaceDataMovement(
      c, [&](int64_t d) { return d < dim               ? d
                                 : d < dim + 2 * count ? -1
                                                       : d - count; },
      [&](int64_t d) { return d < dim           ? d
                              : d < dim + count ? -1
                                                : d + count; });
}

// The attributes and constraints of both ops.
OpDef WithSteps(OpDef def) {
  return def.Attr<int64_t>("dim", "the first dimension along which windows slide")
      .Attr<Ints>("stride", "steps of the window, one per dimension along which it slides")
      .Attr<Ints>("dilation", "distances of the window's elements, one per dimension")
      .Constraint("C2", "window, stride and dilation have one entry per dimension")
      .Constraint("C3", "they are at least 1 and at most 2^30")
      .Constraint("C4", "the window, dilated, fits into the dimensions along which it slides");
}

}  // namespace

//===-- windows ---------------------------------------------------------------------------------------------------===//
const OpDef& WindowsOp() {
  static const OpDef def =
      WithSteps(OpDef("windows")
                    .Doc("All positions of a window that slides along the dimensions of x from dim on. These "
                         "dimensions are replaced by those of the window and then those of its positions. Element k of "
                         "the window at position p is the element of x at p * stride + k * dilation.")
                    .Operand("x")
                    .Attr<Ints>("window", "extents of the window, one per dimension along which it slides"))
          .MovesFrom([](const IndexContext& c) {
            return SourceOf(c, c.operand().rank(), c.result().rank() - c.operand().rank());
          })
          .Constraint("C1", "x has the dimensions along which windows slide")
          .Constraint("C5", "the result is not too large")
          .Infer(InferWindows)
          .Eval(EvalWindows)
          .Precision(PrecisionRule::kFollows)
          .Vjp(WindowsVjp)
          .Place(PlaceWindows);
  return def;
}

//===-- overlap_add -----------------------------------------------------------------------------------------------===//
const OpDef& OverlapAddOp() {
  static const OpDef def =
      WithSteps(OpDef("overlap_add")
                    .Doc("The transpose of windows. From dim on x has the dimensions of a window and then those of its "
                         "positions, which the result replaces by dimensions of the extents size. Each element is the "
                         "sum of the windows' elements at its position, or 0 if there are none. Integers wrap around.")
                    .Operand("x")
                    .Attr<Ints>("size", "extents of the dimensions along which windows slide"))
          .Trait(kOpaque)
          .Constraint("C1", "x has the dimensions of a window and of its positions")
          .Constraint("C5", "there are as many positions as fit into size")
          .Constraint("C6", "the result is not too large")
          .Constraint("C7", "x is not bool")
          .Infer(InferOverlapAdd)
          .Eval(EvalOverlapAdd)
          .Vjp(OverlapAddVjp)
          .Place(PlaceOverlapAdd);
  return def;
}

}  // namespace lockstep
