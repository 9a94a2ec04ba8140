#include "runtime/comm/cost.h"

#include <memory>

#include "absl/time/clock.h"
#include "runtime/comm/chunks.h"

namespace lockstep {

absl::StatusOr<std::vector<double>> TimeAllReduce(Communicator& world, int64_t bytes, int calls) {
  const int64_t count = (bytes + 3) / 4;
  ASSIGN_OR_RETURN(const std::unique_ptr<RegisteredMemory> memory,
                   world.Allocate(static_cast<size_t>(count) * 4, "measure"));
  std::vector<double> seconds;
  for (int call = 0; call <= calls; ++call) {
    const absl::Time begin = absl::Now();
    RETURN_IF_ERROR(
        world.AllReduce(memory->data(), memory->data(), count, DType::kF32, ReduceKind::kSum, {.label = "measure"}));
    if (call > 0) seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
  }
  return seconds;
}

absl::StatusOr<Travel> TravelBetweenHosts(std::string_view name, int64_t bytes, int hosts, int ranks_a_host,
                                          const NetworkCosts& costs) {
  const std::optional<Opcode> opcode = OpcodeNamed(name);
  if (!opcode) return InvalidArgument() << "no collective is called " << name;
  const int ranks = hosts * ranks_a_host;
  const int64_t count = TraitsOf(*opcode).gathers || TraitsOf(*opcode).scatters ? bytes / ranks : bytes;
  const OpDescription description{.opcode = *opcode, .dtype = static_cast<uint8_t>(DType::kU8), .count = count};
  const RouteOptions options{.groups = hosts, .largest_group = ranks_a_host, .policy = {.costs = costs}};
  const Route route = RouteOf(description, ranks, options);
  return TravelOf(route, *opcode, static_cast<uint64_t>(bytes), hosts, ranks_a_host);
}

}  // namespace lockstep
