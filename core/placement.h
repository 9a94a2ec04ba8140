// A mesh of ranks with named axes, and the placement of a value along each axis. Plain values; any thread.
//
//   replicated   every rank along the axis holds the whole value
//   split(d)     rank i holds the i-th of n equal slices of dimension d
//   partial(k)   the value is the reduction (sum, min, max, prod, mean) of the ranks' terms
//   local        the ranks' values differ and have no global meaning
//   at(k)        only rank k holds the value; the contents on other ranks are undefined

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace lockstep {

enum class ReduceKind : uint8_t { kSum, kMin, kMax, kProd, kMean };

std::string_view ReduceKindName(ReduceKind kind);
std::optional<ReduceKind> ReduceKindFromName(std::string_view name);

class Placement {
 public:
  enum class Kind : uint8_t { kReplicated, kSplit, kPartial, kLocal, kAt };

  Placement() = default;  // replicated
  static Placement Replicated() { return Placement(); }
  static Placement Split(int64_t dim) { return Placement(Kind::kSplit, dim, ReduceKind::kSum); }
  static Placement Partial(ReduceKind kind) { return Placement(Kind::kPartial, 0, kind); }
  static Placement Local() { return Placement(Kind::kLocal, 0, ReduceKind::kSum); }
  static Placement At(int64_t rank) { return Placement(Kind::kAt, rank, ReduceKind::kSum); }

  bool is_replicated() const { return kind_ == Kind::kReplicated; }
  bool is_split() const { return kind_ == Kind::kSplit; }
  bool is_split(int64_t dim) const { return is_split() && number_ == dim; }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  bool is_partial(ReduceKind reduce) const { return is_partial() && reduce_ == reduce; }
  bool is_local() const { return kind_ == Kind::kLocal; }
  bool is_at() const { return kind_ == Kind::kAt; }
  bool is_at(int64_t rank) const { return is_at() && number_ == rank; }

  int64_t dim() const { return number_; }        // of a split
  int64_t rank() const { return number_; }       // of an at: a coordinate along the axis
  ReduceKind reduce() const { return reduce_; }  // of a partial

  bool operator==(const Placement&) const = default;

  // "replicated", "split(0)", "partial(sum)", "local", "at(2)".
  std::string ToString() const;

 private:
  Placement(Kind kind, int64_t number, ReduceKind reduce) : kind_(kind), number_(number), reduce_(reduce) {}
  Kind kind_ = Kind::kReplicated;
  int64_t number_ = 0;
  ReduceKind reduce_ = ReduceKind::kSum;
};

std::ostream& operator<<(std::ostream& out, const Placement& placement);

// The placement along each axis of a mesh; an axis that is not named is replicated.
using PlacementMap = std::map<std::string, Placement, std::less<>>;
Placement PlacementAlong(const PlacementMap& placements, std::string_view axis);
// Removes the axes along which the placement is `replicated`. Afterwards equal placements have equal maps.
PlacementMap WithoutReplicated(PlacementMap placements);

// The axis along which a batch is split by default.
inline constexpr std::string_view kDataAxis = "data";
// The axis whose ranks are the stages of a pipeline.
inline constexpr std::string_view kStageAxis = "stage";

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

// Ranks as a grid: rank = coordinates in row-major order, the last axis fastest. An empty mesh is one rank.
class Mesh {
 public:
  Mesh() = default;
  explicit Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {}

  const std::vector<MeshAxis>& axes() const { return axes_; }
  bool empty() const { return axes_.empty(); }
  bool has_axis(std::string_view name) const;
  absl::StatusOr<int64_t> axis_size(std::string_view name) const;  // else NotFound, which names the existing axes
  int64_t num_ranks() const;
  Mesh Without(std::string_view axis) const;  // the other axes

  // The coordinate of `rank` along `axis`. Requires has_axis(axis) and 0 <= rank < num_ranks().
  int64_t Coordinate(int64_t rank, std::string_view axis) const;

  // The groups of ranks that differ along `axis` only. Each group is in order of that coordinate. Requires
  // has_axis(axis).
  std::vector<std::vector<int64_t>> Groups(std::string_view axis) const;

  bool operator==(const Mesh&) const = default;
  std::string ToString() const;  // "{data=4}"

 private:
  std::vector<MeshAxis> axes_;
};

}  // namespace lockstep
