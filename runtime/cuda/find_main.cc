// Prints the driver and the NCCL that this process finds, or the error. search_test runs it as a process, because
// LD_LIBRARY_PATH is read when a process starts.

#include <cstdio>

#include "runtime/cuda/driver.h"
#include "runtime/cuda/nccl.h"

namespace {

template <typename Api>
void Print(const char* name, const absl::StatusOr<const Api*>& api) {
  if (!api.ok()) std::printf("%s: %s\n", name, std::string(api.status().message()).c_str());
  else std::printf("%s %s %s\n", name, (*api)->from.version.ToString().c_str(), (*api)->from.path.c_str());
}

}  // namespace

int main() {
  Print("driver", lockstep::cuda::Driver());
  Print("NCCL", lockstep::cuda::Nccl());
  return 0;
}
