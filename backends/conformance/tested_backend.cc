#include "backends/conformance/tested_backend.h"

#include <string>

#include "absl/flags/flag.h"
#include "backends/run_in_process.h"
#include "core/check.h"
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
  if (IsFake()) return "";  // tests make its GPUs
  const absl::Status opened =
      ForEachRank(1, [](Communicator& world) { return TestedBackend().OpenDevice(world).status(); });
  return std::string(opened.message());
}

bool IsFake() { return absl::GetFlag(FLAGS_backend) == "fake-cuda"; }

bool LacksKernel(const absl::Status& status) {
  if (TestedBackend().name() == "cpu" || !absl::IsUnimplemented(status)) return false;
  const auto says = [message = std::string(status.message())](const char* text) {
    return message.find(text) != std::string::npos;
  };
  return says("the target has no kernel for") || says("NCCL");
}

}  // namespace lockstep
