// The computations of the fake NCCL. Only for the fake NCCL.

#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "runtime/cuda/nccl.h"
#include "test/fake_cuda/nccl_world.h"

namespace lockstep::cuda {

inline size_t BytesOf(ncclDataType_t type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[type];
}

template <typename T>
T Combine(ncclRedOp_t op, T a, T b) {
  using Number = std::conditional_t<std::is_class_v<T>, float, T>;
  const auto x = static_cast<Number>(a), y = static_cast<Number>(b);
  switch (op) {
    case ncclProd:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
      else return T(x * y);
    case ncclMax: return x < y ? b : a;
    case ncclMin: return y < x ? b : a;
    default:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
      else return T(x + y);
  }
}

// Adds from rank 1 on, rank 0 last, as in a ring and unlike Communicator. Narrow types are rounded at each step.
template <typename T>
void ReduceAs(ncclRedOp_t op, const std::vector<const std::byte*>& inputs, size_t offset, size_t count,
              std::byte* output) {
  const size_t ranks = inputs.size();
  const auto read = [&](size_t rank, size_t i) {
    T value;
    std::memcpy(&value, inputs[rank % ranks] + offset + i * sizeof(T), sizeof(T));
    if constexpr (!std::is_integral_v<T>) {
      if (op == ncclAvg) return T(value * (decltype(value * 1.f)(1) / static_cast<float>(ranks)));
    }
    return value;
  };
  for (size_t i = 0; i < count; ++i) {
    T sum = read(1, i);
    for (size_t k = 2; k <= ranks; ++k) sum = Combine(op, sum, read(k, i));
    if constexpr (std::is_integral_v<T>) {
      if (op == ncclAvg) sum = static_cast<T>(sum / static_cast<T>(ranks));
    }
    std::memcpy(output + i * sizeof(T), &sum, sizeof(T));
  }
}

// Reduces `count` elements of all ranks' inputs, from the byte `offset` on.
inline void Reduce(ncclDataType_t type, ncclRedOp_t op, const std::vector<const std::byte*>& inputs, size_t offset,
                   size_t count, std::byte* output) {
  switch (type) {
    case ncclInt8: return ReduceAs<int8_t>(op, inputs, offset, count, output);
    case ncclUint8: return ReduceAs<uint8_t>(op, inputs, offset, count, output);
    case ncclInt32: return ReduceAs<int32_t>(op, inputs, offset, count, output);
    case ncclUint32: return ReduceAs<uint32_t>(op, inputs, offset, count, output);
    case ncclInt64: return ReduceAs<int64_t>(op, inputs, offset, count, output);
    case ncclUint64: return ReduceAs<uint64_t>(op, inputs, offset, count, output);
    case ncclFloat16: return ReduceAs<Float16>(op, inputs, offset, count, output);
    case ncclFloat32: return ReduceAs<float>(op, inputs, offset, count, output);
    case ncclFloat64: return ReduceAs<double>(op, inputs, offset, count, output);
    case ncclBfloat16: return ReduceAs<BFloat16>(op, inputs, offset, count, output);
  }
}

inline size_t InputBytes(const Collective& c, int ranks) {
  return (c.kind == Collective::Kind::kReduceScatter ? static_cast<size_t>(ranks) : 1) * c.count * BytesOf(c.type);
}
inline size_t OutputBytes(const Collective& c, int ranks) {
  return (c.kind == Collective::Kind::kAllGather ? static_cast<size_t>(ranks) : 1) * c.count * BytesOf(c.type);
}

// Computes the output of a rank.
inline void Compute(const Collective& c, int rank, const std::vector<const std::byte*>& inputs, std::byte* output) {
  const size_t bytes = c.count * BytesOf(c.type);
  switch (c.kind) {
    case Collective::Kind::kBroadcast: std::memcpy(output, inputs[static_cast<size_t>(c.root)], bytes); return;
    case Collective::Kind::kAllGather:
      for (const std::byte* input : inputs) std::memcpy(output, input, bytes), output += bytes;
      return;
    case Collective::Kind::kAllReduce: return Reduce(c.type, c.op, inputs, 0, c.count, output);
    case Collective::Kind::kReduceScatter:
      return Reduce(c.type, c.op, inputs, static_cast<size_t>(rank) * bytes, c.count, output);
  }
}

}  // namespace lockstep::cuda
