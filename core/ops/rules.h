// Common rules of several ops: inference, reference loops and placement. For the authors of op blocks only.

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

// The dtype of the result of an op that sums products, and the documentation of its attribute `wide_result`.
DType DTypeOfSum(DType operands, bool wide_result);
inline constexpr char kWideResult[] =
    "the result is f32 if the operands are f16 or bf16: the sum is not rounded to 16 bits";

// --- Reference loops -------------------------------------------------------------------------------------------------

// Calls f(index) for each multi-index of `shape` in row-major order. For a scalar calls it once with the empty index.
void ForEachIndex(const Shape& shape, const std::function<void(const std::vector<int64_t>&)>& f);

// --- Placement -------------------------------------------------------------------------------------------------------

// True for partial(sum), and for partial(mean) of floats: the placements that linear ops keep. The mean of integers is
// truncated, so that the mean of sums is not the sum of means.
bool IsLinearPartial(const Placement& placement, DType dtype);

// Places an op that has a local operand: each rank computes the whole op with its own value, so the other operands must
// be replicated or local, and every result is local. Returns false and does nothing if no operand is local.
bool PlaceLocal(PlacementContext& c);

// The linearity of an elementwise op, which determines if operands may be partial(sum) or partial(mean).
enum class Linearity {
  kNone,   // not linear: exp, max
  kAll,    // linear in all operands together: add, sub, neg
  kFirst,  // linear in the first operand if it is of floats and the others are replicated: div
  kOne,    // linear in each operand if the others are replicated: mul
};

// Places an op whose operands and results have equal shapes. They are all split along the same dimension, or none is.
// Partial operands must be replicated first unless `linearity` keeps them partial.
void PlaceElementwise(PlacementContext& c, Linearity linearity = Linearity::kNone);

// Places an op that moves the data of one operand without arithmetic. `to_result` maps a dimension of the operand to
// the dimension of the result, or -1 if there is none (reduced, merged, sliced). An operand that is split along a
// mapped dimension gives a split result; along another it must be replicated. Partial stays partial. `to_operand` is
// the inverse map, for a slice that a consumer wants; -1 if there is none.
void PlaceDataMovement(PlacementContext& c, const std::function<int64_t(int64_t)>& to_result,
                       const std::function<int64_t(int64_t)>& to_operand);

// Places all operands and results split along one dimension for which `independent` is true, else replicated.
// `independent` is true if results in a slice along the dimension depend on that slice only (in softmax: any dimension
// except the one that it normalises over).
void PlaceIndependentRows(PlacementContext& c, const std::function<bool(int64_t dim)>& independent);

}  // namespace lockstep::ops
