#include "core/random_tensor.h"

#include <cmath>

#include "core/local_part.h"

namespace lockstep {

Tensor RandomTensor(const TensorType& type, std::mt19937_64& random, double low, double high) {
  Tensor tensor(type);
  DispatchDType(type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (T& element : tensor.mutable_data<T>()) {
      // Not std::uniform_real_distribution: its results differ between libraries.
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      element = ConvertElement<T>(IsFloat(type.dtype) ? low + (high - low) * unit
                                                      : std::floor(low + (high - low + 1) * unit));
    }
  });
  return tensor;
}

std::vector<std::vector<Tensor>> RandomInputs(const Graph& graph, uint64_t seed) {
  std::vector<std::vector<Tensor>> inputs(static_cast<size_t>(graph.num_ranks()));
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    for (size_t i = 0; i < graph.inputs().size(); ++i) {
      const Input& input = graph.inputs()[i];
      const int64_t first = FirstReplica(input.placements(), graph.mesh(), static_cast<int64_t>(rank));
      const TensorType& type = input.value.type();
      if (input.setting) {
        inputs[rank].push_back(Tensor::Scalar(type.dtype, input.setting->value));
        continue;
      }
      std::mt19937_64 random(seed * 1'000'000 + i * 1'000 + static_cast<uint64_t>(first));
      inputs[rank].push_back(IsFloat(type.dtype) ? RandomTensor(type, random, -1, 1)
                                                 : RandomTensor(type, random, 0, 4));
    }
  }
  return inputs;
}

}  // namespace lockstep
