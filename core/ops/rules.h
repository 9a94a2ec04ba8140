// Rules that several ops share: inference, reference loops and placement. For the authors of op blocks only.

#pragma once

#include <functional>
#include <vector>

#include "core/op_def.h"

namespace lockstep::ops {

// --- Inference -------------------------------------------------------------------------------------------------------

// Error `id` unless all operands have the type of the first.
absl::Status CheckSameTypes(const InferContext& c, std::string_view id);
// Error `id` if the first operand is bool: arithmetic is for floats and integers.
absl::Status CheckArithmetic(const InferContext& c, std::string_view id);
// Error `id` unless `extents` are at least 0 and a tensor with them is small enough to be addressed.
absl::Status CheckExtents(const InferContext& c, std::string_view id, const std::vector<int64_t>& extents);
// Error `id` unless `dims` are dimensions of `shape`, strictly increasing.
absl::Status CheckIncreasingDims(const InferContext& c, std::string_view id, const std::vector<int64_t>& dims,
                                 const Shape& shape);

// Of an op that sums products: the dtype of its result, and what its attribute `wide_result` says of that.
DType DTypeOfSum(DType operands, bool wide_result);
inline constexpr char kWideResult[] =
    "the result is f32 if the operands are f16 or bf16: the sum is not rounded to 16 bits";

// --- Reference loops -------------------------------------------------------------------------------------------------

// Calls f(index) for every multi-index of `shape` in row-major order; for a scalar once with the empty index.
void ForEachIndex(const Shape& shape, const std::function<void(const std::vector<int64_t>&)>& f);

// --- Placement -------------------------------------------------------------------------------------------------------

// Partial by a sum, or by a mean of floats: what a linear op passes on. The mean of integers is truncated, so that the
// mean of sums is not the sum of means.
bool IsLinearPartial(const Placement& placement, DType dtype);

// Of an op of which an operand is local: its type is global, so each rank computes the whole with its own, the other
// operands are needed whole, and every result is local. Returns whether that is so; otherwise it does nothing.
bool PlaceLocal(PlacementContext& c);

// How an elementwise op treats an operand that is partial(sum) or partial(mean).
enum class Linearity {
  kNone,   // needs whole values: exp, max
  kAll,    // linear in all operands together: add, sub, neg
  kFirst,  // linear in the first operand if that is of floats, the others being replicated: div
  kOne,    // linear in each operand alone, the others being replicated: mul
};

// Operands and results have equal shapes; they are split alike, or not at all. Partial operands are made whole unless
// `linearity` lets them pass.
void PlaceElementwise(PlacementContext& c, Linearity linearity = Linearity::kNone);

// Maps an operand dimension to a result dimension, or -1 if it has none (reduced, merged, sliced): an operand split
// along a mapped dimension gives a result split along the other; along an unmapped one it is made whole. One operand,
// data moved but not computed with, so partial passes. `to_operand` is the inverse, for a slice that a consumer wants;
// -1 if it has none.
void PlaceDataMovement(PlacementContext& c, const std::function<int64_t(int64_t)>& to_result,
                       const std::function<int64_t(int64_t)>& to_operand);

// Everything replicated, or everything split along the same dimension if `independent` says that slices along it do not
// meet (softmax: any dimension but the one that it normalises over).
void PlaceIndependentRows(PlacementContext& c, const std::function<bool(int64_t dim)>& independent);

}  // namespace lockstep::ops
