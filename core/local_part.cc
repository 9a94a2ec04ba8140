#include "core/local_part.h"

#include <cstring>
#include <vector>

namespace lockstep {
namespace {

// The elements of one dimension that a rank holds: `extent` of `of` elements, from `begin`.
struct Range {
  int64_t begin = 0, extent = 0, of = 0;
};

std::vector<Range> RangesOf(const Shape& whole, const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  std::vector<Range> ranges;
  for (int64_t dim : whole.dims()) ranges.push_back({0, dim, dim});
  for (const MeshAxis& axis : mesh.axes()) {
    const Placement placement = PlacementAlong(placements, axis.name);
    if (!placement.is_split()) continue;
    Range& range = ranges[static_cast<size_t>(placement.dim())];
    range.extent /= axis.size;
    range.begin += mesh.Coordinate(rank, axis.name) * range.extent;
  }
  return ranges;
}

// Calls copy(offset in the whole, offset in the part, bytes) for each run of elements that is contiguous in both.
template <typename Copy>
void ForEachRun(DType dtype, const std::vector<Range>& ranges, const Copy& copy) {
  size_t run = SizeOf(dtype), whole_run = run, runs = 1;
  size_t outer = ranges.size();  // becomes the index of the last dimension that is split; all after it are whole
  while (outer > 0) {
    const Range& range = ranges[--outer];
    run *= static_cast<size_t>(range.extent);
    whole_run *= static_cast<size_t>(range.of);
    if (range.extent != range.of) break;
  }
  for (size_t d = 0; d < outer; ++d) runs *= static_cast<size_t>(ranges[d].extent);
  if (run == 0) return;
  const size_t begin = ranges.empty() ? 0 : run / static_cast<size_t>(ranges[outer].extent) * ranges[outer].begin;
  for (size_t i = 0; i < runs; ++i) {
    size_t place = 0, stride = whole_run, rest = i;
    for (size_t d = outer; d-- > 0;) {
      const auto extent = static_cast<size_t>(ranges[d].extent);
      place += (static_cast<size_t>(ranges[d].begin) + rest % extent) * stride;
      rest /= extent;
      stride *= static_cast<size_t>(ranges[d].of);
    }
    copy(place + begin, i * run, run);
  }
}

}  // namespace

Tensor LocalPart(const Tensor& whole, const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  const std::vector<Range> ranges = RangesOf(whole.shape(), placements, mesh, rank);
  std::vector<int64_t> dims;
  for (const Range& range : ranges) dims.push_back(range.extent);
  if (dims == whole.shape().dims()) return whole;
  Tensor part({whole.dtype(), Shape(std::move(dims))});
  std::byte* const to = part.mutable_bytes();
  ForEachRun(whole.dtype(), ranges, [&](size_t in_whole, size_t in_part, size_t bytes) {
    std::memcpy(to + in_part, whole.bytes() + in_whole, bytes);
  });
  return part;
}

void PutLocalPart(const std::byte* part, const PlacementMap& placements, const Mesh& mesh, int64_t rank,
                  const TensorType& type, std::byte* whole) {
  ForEachRun(
      type.dtype, RangesOf(type.shape, placements, mesh, rank),
      [&](size_t in_whole, size_t in_part, size_t bytes) { std::memcpy(whole + in_whole, part + in_part, bytes); });
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
