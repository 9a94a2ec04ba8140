// Where a process's ranks meet, according to its environment.

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/status.h"
#include "runtime/comm/world/proof.h"
#include "runtime/comm/world/rendezvous.h"

namespace lockstep {
namespace {

constexpr int kMostRanks = 65536;
// Above the ports that Linux gives to connections by itself.
constexpr int kFirstSlurmPort = 61440, kSlurmPorts = 4096;
// Set for each rank by mpirun, or by srun if it starts ranks of MPI.
constexpr const char* kOfMpi[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

std::string Text(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<int64_t> Number(const char* name, int64_t least, int64_t most, const char* why) {
  const std::string text = Text(name);
  if (text.empty()) return InvalidArgument() << name << " is not set, but " << why;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
    return InvalidArgument() << name << " is '" << text << "', expected a number from " << least << " to " << most;
  return number;
}

absl::Status SetRank(Rendezvous& place, const char* rank, const char* size, const char* why) {
  ASSIGN_OR_RETURN(const int64_t ranks, Number(size, 1, kMostRanks, why));
  ASSIGN_OR_RETURN(const int64_t number, Number(rank, 0, ranks - 1, why));
  place.size = static_cast<int>(ranks);
  place.rank = static_cast<int>(number);
  return absl::OkStatus();
}

// Sets the host and the port to MASTER_ADDR and MASTER_PORT.
absl::Status SetMaster(Rendezvous& place) {
  constexpr char kWhy[] = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT belong together";
  place.host = Text("MASTER_ADDR");
  if (place.host.empty()) return InvalidArgument() << "MASTER_ADDR is not set, but WORLD_SIZE is " << place.size;
  const bool agent_listens = Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  ASSIGN_OR_RETURN(const int64_t port, Number("MASTER_PORT", 1, agent_listens ? 65534 : 65535, kWhy));
  place.port = static_cast<uint16_t>(port + (agent_listens ? 1 : 0));
  return absl::OkStatus();
}

// True in a step of srun, unless it has started ranks of MPI, which mpirun does in a step of its own, too.
bool IsInSlurmStep() {
  for (const char* variable : kOfMpi) {
    if (!Text(variable).empty()) return false;
  }
  return !Text("SLURM_PROCID").empty() && !Text("SLURM_STEP_NUM_TASKS").empty() && !Text("SLURM_STEP_ID").empty();
}

absl::Status SetSlurm(Rendezvous& place) {
  constexpr char kWhy[] = "this process is a task of srun (SLURM_PROCID)";
  constexpr int64_t kMost = int64_t{1} << 32;
  RETURN_IF_ERROR(SetRank(place, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", kWhy));
  ASSIGN_OR_RETURN(const int64_t job, Number("SLURM_JOB_ID", 0, kMost, kWhy));
  ASSIGN_OR_RETURN(const int64_t step, Number("SLURM_STEP_ID", 0, kMost, kWhy));
  place.job = "Slurm's " + std::to_string(job) + "." + std::to_string(step);
  place.host = FirstOfNodes(Text("SLURM_STEP_NODELIST"));
  place.port = static_cast<uint16_t>(kFirstSlurmPort + (job + step) % kSlurmPorts);
  if (place.host.empty()) return InvalidArgument() << "SLURM_STEP_NODELIST is not set, but " << kWhy;
  return absl::OkStatus();
}

}  // namespace

std::string FirstOfNodes(std::string_view nodes) {
  std::string name;
  while (!nodes.empty() && nodes[0] != ',') {
    if (nodes[0] != '[') {
      name += nodes[0];
      nodes.remove_prefix(1);
      continue;
    }
    name += nodes.substr(1, nodes.find_first_of("-,]") - 1);
    nodes.remove_prefix(std::min(nodes.find(']'), nodes.size() - 1) + 1);
  }
  return name;
}

absl::StatusOr<std::optional<Rendezvous>> RendezvousOfEnvironment() {
  const bool in_slurm = Text("RANK").empty() && Text("WORLD_SIZE").empty();
  if (in_slurm && !IsInSlurmStep()) return std::nullopt;
  Rendezvous place;
  if (in_slurm) {
    RETURN_IF_ERROR(SetSlurm(place));
  } else {
    RETURN_IF_ERROR(SetRank(place, "RANK", "WORLD_SIZE", "RANK and WORLD_SIZE belong together"));
    place.job = Text("TORCHELASTIC_RUN_ID");
    if (const std::string restart = Text("TORCHELASTIC_RESTART_COUNT"); !restart.empty()) place.job += "/" + restart;
  }
  place.job = place.job.substr(0, Rendezvous::kMostJobBytes);
  if (place.size == 1) return place;
  place.file = Text("LOCKSTEP_RENDEZVOUS_FILE");
  if (!place.file.empty()) {
    place.host = Text("MASTER_ADDR");
    place.port = 0;
  } else if (!in_slurm || !Text("MASTER_ADDR").empty()) {
    RETURN_IF_ERROR(SetMaster(place));
  }
  ASSIGN_OR_RETURN(place.secret, SecretOfEnvironment());
  return place;
}

}  // namespace lockstep
