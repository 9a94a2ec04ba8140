#include "backends/backend.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/cuda/cuda_backend.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name) {
  if (name == "cpu") return CreateCpuBackend();
  if (name == "cuda") return CreateCudaBackend();
  return NotFound() << "there is no backend " << Quoted(name) << " in this build; there are cpu and cuda";
}

}  // namespace lockstep
