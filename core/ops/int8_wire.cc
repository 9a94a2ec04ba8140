#include "core/ops/int8_wire.h"

#include <algorithm>
#include <cmath>

#include "core/ops/combine.h"
#include "core/tensor.h"

namespace lockstep::ops {
namespace {

void RoundBlock(std::span<float> block) {
  float largest = 0;
  for (const float x : block) largest = Combine(ReduceKind::kMax, largest, std::fabs(x));
  const float scale = largest / static_cast<float>(kLargestWireCode);
  // A NaN quotient, which a scale of 0 or NaN gives, has the code 0.
  for (float& x : block) x = static_cast<float>(ConvertElement<int8_t>(std::nearbyint(x / scale))) * scale;
}

}  // namespace

void RoundToInt8Wire(std::span<float> elements) {
  for (size_t begin = 0; begin < elements.size(); begin += kWireBlock)
    RoundBlock(elements.subspan(begin, std::min<size_t>(kWireBlock, elements.size() - begin)));
}

}  // namespace lockstep::ops
