#include "runtime/comm/routes/cost.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "runtime/comm/collective/chunks.h"

namespace lockstep {
namespace {

constexpr int64_t kSizes[] = {4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20};  // bytes
constexpr int64_t kEnough = 50'000'000, kTooLong = 250'000'000;                  // nanoseconds
constexpr int64_t kFewestCalls = 3, kMostCalls = 100;
constexpr int64_t kMostRanks = 1 << 20;

// Returns the largest number of all ranks.
absl::StatusOr<int64_t> LargestOf(Communicator& world, int64_t mine) {
  const std::string_view bytes(reinterpret_cast<const char*>(&mine), sizeof(mine));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, world.AllGatherBytes(bytes, "what collectives take"));
  for (const std::string& other : all) {
    int64_t number = 0;
    std::memcpy(&number, other.data(), sizeof(number));
    mine = std::max(mine, number);
  }
  return mine;
}

int64_t MedianNanoseconds(std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return static_cast<int64_t>(*middle * 1e9);
}

// Returns the communicator of this rank and those that differ from it only along the axis. `part` owns it if it is not
// the world's.
absl::StatusOr<Communicator*> Along(const MeshAxis& axis, const Mesh& mesh, Communicator& world,
                                    std::unique_ptr<Communicator>& part) {
  if (axis.size == world.size()) return &world;
  const std::vector<std::vector<int64_t>> groups = mesh.Groups(axis.name);
  int own = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (std::find(groups[i].begin(), groups[i].end(), world.rank()) != groups[i].end()) own = static_cast<int>(i);
  }
  ASSIGN_OR_RETURN(part, world.Split(own, "measure axis " + axis.name));
  return part.get();
}

}  // namespace

absl::StatusOr<std::vector<double>> TimeAllReduce(Communicator& world, int64_t bytes, int calls) {
  const int64_t count = (bytes + 3) / 4;
  ASSIGN_OR_RETURN(const std::unique_ptr<RegisteredMemory> memory,
                   world.Allocate(static_cast<size_t>(count) * 4, "measure"));
  std::vector<double> seconds;
  for (int call = 0; call <= calls; ++call) {
    const absl::Time begin = absl::Now();
    RETURN_IF_ERROR(world.Run(Collective::AllReduce(count, DType::kF32, ReduceKind::kSum), memory->data(),
                              memory->data(), {.label = "measure"}));
    if (call > 0) seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
  }
  return seconds;
}

absl::StatusOr<std::vector<SizeCost>> MeasureCosts(Communicator& along, Communicator& world) {
  std::vector<SizeCost> costs;
  int64_t last = kEnough / kMostCalls;
  for (const int64_t bytes : kSizes) {  // until a call takes too long: beyond that, time grows with the bytes
    const int64_t calls = std::clamp(kEnough / std::max<int64_t>(last, 1), kFewestCalls, kMostCalls);
    ASSIGN_OR_RETURN(std::vector<double> seconds, TimeAllReduce(along, bytes, static_cast<int>(calls)));
    ASSIGN_OR_RETURN(const int64_t slowest, LargestOf(world, MedianNanoseconds(std::move(seconds))));
    last = costs.empty() ? slowest : std::max(slowest, costs.back().nanoseconds);
    costs.push_back({bytes, last});
    if (last > kTooLong && costs.size() > 1) break;
  }
  return costs;
}

absl::StatusOr<std::vector<std::vector<SizeCost>>> MeasureCosts(Communicator& world, const Mesh& mesh) {
  if (mesh.num_ranks() != world.size()) {
    return InvalidArgument() << "the mesh " << mesh.ToString() << " needs " << mesh.num_ranks()
                             << " ranks, and the world has " << world.size();
  }
  std::vector<std::vector<SizeCost>> of_axes;
  for (const MeshAxis& axis : mesh.axes()) {
    std::vector<SizeCost>& costs = of_axes.emplace_back();
    if (axis.size < 2) continue;
    std::unique_ptr<Communicator> part;
    ASSIGN_OR_RETURN(Communicator* const along, Along(axis, mesh, world, part));
    ASSIGN_OR_RETURN(const int64_t is_between_hosts, LargestOf(world, along->ranks_on_this_host() < along->size()));
    if (is_between_hosts == 0) continue;
    ASSIGN_OR_RETURN(costs, MeasureCosts(*along, world));
  }
  return of_axes;
}

absl::StatusOr<Traffic> TrafficBetweenHosts(std::string_view name, int64_t bytes, int64_t hosts, int64_t ranks_a_host,
                                            const NetworkCosts& costs) {
  const std::optional<CollectiveOp> op = CollectiveOpFromName(name);
  if (!op) return InvalidArgument() << "there is no collective " << name;
  if (hosts < 1 || ranks_a_host < 1 || hosts > kMostRanks / ranks_a_host) {
    return InvalidArgument() << hosts << " hosts of " << ranks_a_host << " ranks, expected 1 to " << kMostRanks
                             << " ranks in total";
  }
  const RouteOptions options{
      .groups = static_cast<int>(hosts), .largest_group = static_cast<int>(ranks_a_host), .policy = {.costs = costs}};
  const int ranks = options.groups * options.largest_group;
  const int64_t count = TraitsOf(*op).counts_slices() ? bytes / ranks : bytes;
  const Route route = RouteOf({.op = *op, .dtype = DType::kU8, .counts = {count}}, ranks, options);
  return TrafficOf(route, *op, static_cast<uint64_t>(bytes), options.groups, options.largest_group);
}

}  // namespace lockstep
