#include "core/optimizer.h"

#include "core/check.h"

namespace lockstep {

TensorType OptimizerState::TypeFor(const TensorType& variable) const {
  if (shape == StateShape::kVariable) return variable;
  if (shape == StateShape::kScalar) return {DType::kF64, Shape()};
  std::vector<int64_t> extents = variable.shape.dims();
  LOCKSTEP_CHECK(extents.size() >= 2) << suffix << " of a variable " << variable;
  extents[extents.size() - (shape == StateShape::kRows ? 1 : 2)] = 1;
  return {variable.dtype, Shape(std::move(extents))};
}

std::string VariableRanks::ToString() const {
  const bool has_least = least > 0, has_most = most < std::numeric_limits<int64_t>::max();
  if (!has_least && !has_most) return "any number of dimensions";
  const int64_t number = has_least ? least : most;
  std::string text = least == most ? "" : has_least ? "at least " : "at most ";
  text += std::to_string(number) + (number == 1 ? " dimension" : " dimensions");
  if (has_least && has_most && least != most) text += " and at most " + std::to_string(most);
  return text;
}

}  // namespace lockstep
