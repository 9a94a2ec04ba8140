#include "core/local_part.h"

#include <cstring>

namespace lockstep {

Tensor LocalPart(const Tensor& whole, const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  Tensor part = whole;
  for (const MeshAxis& axis : mesh.axes()) {
    const Placement placement = PlacementAlong(placements, axis.name);
    if (!placement.is_split()) continue;
    const int64_t dim = placement.dim(), extent = part.shape()[dim] / axis.size;
    size_t inner = SizeOf(part.dtype()), outer = 1;
    for (int64_t d = 0; d < dim; ++d) outer *= static_cast<size_t>(part.shape()[d]);
    for (int64_t d = dim + 1; d < part.shape().rank(); ++d) inner *= static_cast<size_t>(part.shape()[d]);
    const size_t run = static_cast<size_t>(extent) * inner, whole_run = run * static_cast<size_t>(axis.size);
    const size_t begin = static_cast<size_t>(mesh.Coordinate(rank, axis.name)) * run;
    Tensor cut({part.dtype(), part.shape().WithDim(dim, extent)});
    std::byte* const to = cut.mutable_bytes();
    for (size_t i = 0; i < outer; ++i) std::memcpy(to + i * run, part.bytes() + i * whole_run + begin, run);
    part = std::move(cut);
  }
  return part;
}

int64_t FirstReplica(const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  int64_t first = 0, stride = 1;
  for (auto axis = mesh.axes().rbegin(); axis != mesh.axes().rend(); ++axis) {
    if (!PlacementAlong(placements, axis->name).is_replicated()) first += rank % axis->size * stride;
    rank /= axis->size;
    stride *= axis->size;
  }
  return first;
}

}  // namespace lockstep
