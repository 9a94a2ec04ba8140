#include "runtime/local_part.h"

#include <cstring>

namespace lockstep {

std::vector<std::byte> LocalPart(const ValueInfo& info, const Mesh& mesh, int rank, const std::byte* data) {
  std::vector<std::byte> part(data, data + info.global_type.num_bytes());
  Shape shape = info.global_type.shape;
  for (const MeshAxis& axis : mesh.axes()) {
    const auto it = info.placements.find(axis.name);
    if (it == info.placements.end() || !it->second.is_split()) continue;
    const int64_t dim = it->second.dim(), extent = shape[dim] / axis.size;
    size_t inner = SizeOf(info.global_type.dtype), outer = 1;
    for (int64_t d = 0; d < dim; ++d) outer *= static_cast<size_t>(shape[d]);
    for (int64_t d = dim + 1; d < shape.rank(); ++d) inner *= static_cast<size_t>(shape[d]);
    const size_t row = static_cast<size_t>(extent) * inner, whole_row = static_cast<size_t>(shape[dim]) * inner;
    const size_t begin = static_cast<size_t>(mesh.Coordinate(rank, axis.name)) * row;
    std::vector<std::byte> cut(outer * row);
    for (size_t o = 0; o < outer; ++o) std::memcpy(&cut[o * row], &part[o * whole_row + begin], row);
    part = std::move(cut);
    shape = shape.WithDim(dim, extent);
  }
  return part;
}

}  // namespace lockstep
