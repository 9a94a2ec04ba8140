#include "backends/cuda/rank_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/nccl_communicator.h"

namespace lockstep::cuda {
namespace {

// Returns the PCI address of the GPU in its host, by which NCCL also distinguishes GPUs.
absl::StatusOr<std::string> PlaceOf(const CudaDevice& device) {
  const DriverApi& driver = device.api();
  std::string place;
  for (const auto& [attribute, name] : {std::pair(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, "PCI domain"),
                                        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, "PCI bus"},
                                        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, "PCI device"}}) {
    int number = 0;
    RETURN_IF_ERROR(driver.Check(driver.DeviceGetAttribute(&number, attribute, device.gpu()),
                                 std::string("cuDeviceGetAttribute of the ") + name));
    place += (place.empty() ? "" : ":") + std::to_string(number);
  }
  return place;
}

// Returns true if the user asks NCCL to allow ranks that share a GPU. NCCL's documents differ on which versions support
// this, so it is tried.
bool AsksToShareGpus() {
  const char* asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return asked != nullptr && std::string(asked) == "1";
}

// The facts that a rank sends to its peers, one per line. The last, which may have several lines, is the reason why it
// has no NCCL.
struct Facts {
  std::string place;  // of its GPU
  std::string process;
  std::string nccl;  // its version, and if ranks should share a GPU with it
  std::string missing;

  std::string ToText() const { return place + "\n" + process + "\n" + nccl + "\n" + missing; }
  static Facts Of(const std::string& text) {
    Facts facts;
    size_t begin = 0;
    for (std::string* line : {&facts.place, &facts.process, &facts.nccl}) {
      const size_t end = text.find('\n', begin);
      if (end == std::string::npos) return {.place = "", .process = "", .nccl = "", .missing = "it gave no reason"};
      *line = text.substr(begin, end - begin);
      begin = end + 1;
    }
    facts.missing = text.substr(begin);
    return facts;
  }
};

constexpr char kWantsSharing[] = " for ranks that share GPUs";

bool ShareAGpu(const Communicator& world, const std::vector<Facts>& all, size_t a, size_t b) {
  return world.host(static_cast<int>(a)) == world.host(static_cast<int>(b)) && all[a].place == all[b].place;
}

std::string Name(const Communicator& world, size_t rank) {
  return "rank " + std::to_string(rank) + " on host " + world.host(static_cast<int>(rank));
}

// Returns why the ranks cannot use NCCL; empty if they can.
std::string ReasonAgainstNccl(const Communicator& world, const std::vector<Facts>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].missing.empty()) return Name(world, rank) + " has no NCCL: " + all[rank].missing;
    if (all[rank].nccl != all[0].nccl) {
      return Name(world, 0) + " has NCCL " + all[0].nccl + ", " + Name(world, rank) + " has " + all[rank].nccl;
    }
    for (size_t other = 0; other < rank; ++other) {
      if (!ShareAGpu(world, all, other, rank) || all[rank].nccl.ends_with(kWantsSharing)) continue;
      return Name(world, other) + " and rank " + std::to_string(rank) + " share a GPU";
    }
  }
  return "";
}

bool AnyShareAGpu(const Communicator& world, const std::vector<Facts>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (ShareAGpu(world, all, other, rank)) return true;
    }
  }
  return false;
}

// Creates an NCCL communicator with this id in `comm`, which may be null after an error.
absl::Status TryToJoin(const NcclApi& nccl, Communicator& world, const std::string& id, ncclComm_t& comm) {
  constexpr absl::Duration kMost = absl::Seconds(30), kRest = absl::Milliseconds(1);
  const absl::Time until = absl::Now() + std::min(kMost, world.timeout() / 2);
  ncclUniqueId unique;
  std::copy(id.begin(), id.end(), unique.internal.begin());
  ncclConfig_t config;
  config.blocking = 0;
  ncclResult_t result = nccl.CommInitRankConfig(&comm, world.size(), unique, world.rank(), &config);
  while (result == ncclInProgress) {
    if (absl::Now() >= until) return absl::DeadlineExceededError("NCCL did not answer in time");
    RETURN_IF_ERROR(world.CheckPeers());
    absl::SleepFor(kRest);
    RETURN_IF_ERROR(nccl.Check(nccl.CommGetAsyncError(comm, &result), "ncclCommGetAsyncError"));
  }
  return nccl.Check(result, "ncclCommInitRankConfig");
}

// Returns NCCL's reason for refusing ranks that share a GPU; empty if it accepts them. Tries it with a separate
// communicator, because a failing communicator ends the world of its ranks. All ranks must call it and get the same
// result.
absl::StatusOr<std::string> WhyNcclRefuses(const NcclApi& nccl, Communicator& world, CudaDevice& device) {
  RETURN_IF_ERROR(device.MakeCurrent());
  std::string id;
  if (world.rank() == 0) {
    ncclUniqueId made;
    RETURN_IF_ERROR(nccl.Check(nccl.GetUniqueId(&made), "ncclGetUniqueId"));
    id.assign(made.internal.begin(), made.internal.end());
  }
  ASSIGN_OR_RETURN(std::vector<std::string> all, world.AllGatherBytes(id, "the id of a trial communicator"));
  ncclComm_t comm = nullptr;
  const absl::Status mine = TryToJoin(nccl, world, all[0], comm);
  const std::string text = mine.ok() ? "" : std::string(mine.message());
  auto verdicts = world.AllGatherBytes(text, "NCCL's answer for ranks that share a GPU");
  if (comm != nullptr) (void)nccl.CommAbort(comm);
  RETURN_IF_ERROR(verdicts.status());
  for (const std::string& verdict : *verdicts) {
    if (!verdict.empty()) return verdict;
  }
  return "";
}

// Returns true if another rank of this process has the same GPU.
bool ThreadsShareIt(const Communicator& world, const std::vector<Facts>& all) {
  const auto mine = static_cast<size_t>(world.rank());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (rank != mine && ShareAGpu(world, all, rank, mine) && all[rank].process == all[mine].process) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<RankDevice> OpenRankDevice(const DriverApi& driver, Communicator& world, KeptContexts* contexts) {
  ASSIGN_OR_RETURN(auto device, CudaDevice::Create(driver, world.rank_on_this_host()));
  if (contexts != nullptr) RETURN_IF_ERROR(contexts->Keep(driver, device->gpu()));
  if (world.size() == 1) return OpenStagedDevice(std::move(device), world);
  Facts mine;
  ASSIGN_OR_RETURN(mine.place, PlaceOf(*device));
  mine.process = std::to_string(getpid());
  const absl::StatusOr<const NcclApi*> nccl = Nccl();
  if (nccl.ok()) {
    mine.nccl = (*nccl)->from.version.ToString() + (AsksToShareGpus() ? kWantsSharing : "");
  } else {
    mine.missing = std::string(nccl.status().message());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   world.AllGatherBytes(mine.ToText(), "the GPUs and NCCL versions of ranks"));
  std::vector<Facts> all;
  for (const std::string& text : texts) all.push_back(Facts::Of(text));
  std::string why_not = ReasonAgainstNccl(world, all);
  if (why_not.empty() && AnyShareAGpu(world, all)) {
    ASSIGN_OR_RETURN(const std::string refusal, WhyNcclRefuses(**nccl, world, *device));
    if (!refusal.empty())
      why_not = "NCCL " + (*nccl)->from.version.ToString() + " refuses ranks that share a GPU: " + refusal;
  }
  if (!why_not.empty()) {
    if (world.rank() == 0) {
      std::fprintf(stderr, "lockstep: collectives go through the host, which is slower than NCCL: %s\n",
                   why_not.c_str());
    }
    return OpenStagedDevice(std::move(device), world, ThreadsShareIt(world, all));
  }
  ASSIGN_OR_RETURN(auto communicator, NcclCommunicator::Create(**nccl, world, *device));
  RankDevice opened{std::move(device), std::move(communicator), nullptr};
  opened.communicator = opened.device_communicator.get();
  return opened;
}

}  // namespace lockstep::cuda
