#include "backends/conformance/tested_backend.h"

#include <atomic>
#include <string>

#include "absl/flags/flag.h"
#include "backends/run_in_process.h"
#include "core/check.h"
#include "core/status.h"
#include "test/fake_cuda/fake_backend.h"

ABSL_FLAG(std::string, backend, "cpu", "the backend that is tested");

namespace lockstep {

const Backend& TestedBackend() {
  static const Backend* const backend = []() -> const Backend* {
    if (absl::GetFlag(FLAGS_backend) == "fake-cuda") return cuda::CreateFakeCudaBackend().release();
    auto created = CreateBackend(absl::GetFlag(FLAGS_backend));
    LOCKSTEP_CHECK(created.ok()) << created.status().ToString();
    return created->release();
  }();
  return *backend;
}

std::string WhyItCannotRun() {
  if (IsFake()) return "";  // tests create its GPUs
  const absl::Status opened =
      ForEachRank(1, [](Communicator& world) { return TestedBackend().OpenDevice(world).status(); });
  return std::string(opened.message());
}

bool IsGpu() { return TestedBackend().name() != "cpu"; }

bool ReducesInRankOrder() {
  static const bool in_rank_order = [] {
    std::atomic<bool> all = true;
    const absl::Status opened = ForEachRank(2, [&all](Communicator& world) -> absl::Status {
      ASSIGN_OR_RETURN(const RankDevice device, TestedBackend().OpenDevice(world));
      if (!device.communicator->reduces_in_rank_order()) all = false;
      return world.Barrier("both have a device");
    });
    LOCKSTEP_CHECK(opened.ok()) << opened;
    return all.load();
  }();
  return in_rank_order;
}

bool IsFake() { return absl::GetFlag(FLAGS_backend) == "fake-cuda"; }

bool LacksKernel(const absl::Status& status) {
  if (!IsGpu() || !absl::IsUnimplemented(status)) return false;
  const auto says = [message = std::string(status.message())](const char* text) {
    return message.find(text) != std::string::npos;
  };
  return says("the target has no kernel for") || says("NCCL");
}

}  // namespace lockstep
