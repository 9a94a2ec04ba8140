#include "core/placement.h"

#include "core/check.h"

namespace lockstep {
namespace {

constexpr std::string_view kReduceKindNames[] = {"sum", "min", "max", "prod", "mean"};

}  // namespace

std::string_view ReduceKindName(ReduceKind kind) { return kReduceKindNames[static_cast<int>(kind)]; }

std::optional<ReduceKind> ReduceKindFromName(std::string_view name) {
  for (int i = 0; i < 5; ++i) {
    if (kReduceKindNames[i] == name) return static_cast<ReduceKind>(i);
  }
  return std::nullopt;
}

std::string Placement::ToString() const {
  switch (kind_) {
    case Kind::kReplicated: return "replicated";
    case Kind::kSplit: return "split(" + std::to_string(number_) + ")";
    case Kind::kPartial: return "partial(" + std::string(ReduceKindName(reduce_)) + ")";
    case Kind::kLocal: return "local";
    case Kind::kAt: return "at(" + std::to_string(number_) + ")";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) { return out << placement.ToString(); }

Placement PlacementAlong(const PlacementMap& placements, std::string_view axis) {
  const auto it = placements.find(axis);
  return it == placements.end() ? Placement::Replicated() : it->second;
}

PlacementMap WithoutReplicated(PlacementMap placements) {
  std::erase_if(placements, [](const auto& placed) { return placed.second.is_replicated(); });
  return placements;
}

bool Mesh::has_axis(std::string_view name) const {
  for (const MeshAxis& axis : axes_) {
    if (axis.name == name) return true;
  }
  return false;
}

absl::StatusOr<int64_t> Mesh::axis_size(std::string_view name) const {
  for (const MeshAxis& axis : axes_) {
    if (axis.name == name) return axis.size;
  }
  return NotFound() << "the mesh " << ToString() << " has no axis '" << name << "'";
}

int64_t Mesh::num_ranks() const {
  int64_t count = 1;
  for (const MeshAxis& axis : axes_) count *= axis.size;
  return count;
}

Mesh Mesh::Without(std::string_view axis) const {
  std::vector<MeshAxis> others = axes_;
  std::erase_if(others, [&](const MeshAxis& each) { return each.name == axis; });
  return Mesh(std::move(others));
}

int64_t Mesh::Coordinate(int64_t rank, std::string_view axis) const {
  for (size_t i = axes_.size(); i-- > 0;) {
    if (axes_[i].name == axis) return rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  LOCKSTEP_CHECK(false) << "no axis " << axis;
  return 0;
}

std::vector<std::vector<int64_t>> Mesh::Groups(std::string_view axis) const {
  int64_t stride = 1, size = 0;
  for (size_t i = axes_.size(); i-- > 0;) {
    if (axes_[i].name == axis) {
      size = axes_[i].size;
      break;
    }
    stride *= axes_[i].size;
  }
  LOCKSTEP_CHECK(size > 0) << "no axis " << axis;
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < num_ranks(); ++rank) {
    if (Coordinate(rank, axis) != 0) continue;
    std::vector<int64_t>& group = groups.emplace_back();
    for (int64_t i = 0; i < size; ++i) group.push_back(rank + i * stride);
  }
  return groups;
}

std::string Mesh::ToString() const {
  std::string text = "{";
  for (const MeshAxis& axis : axes_) {
    if (text.size() > 1) text += ", ";
    text += axis.name + "=" + std::to_string(axis.size);
  }
  return text + "}";
}

}  // namespace lockstep
