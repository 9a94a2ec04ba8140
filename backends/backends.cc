#include "backends/backend.h"
#include "backends/cpu/cpu_backend.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name) {
  if (name == "cpu") return CreateCpuBackend();
  return NotFound() << "there is no backend " << Quoted(name) << " in this build; there is cpu";
}

}  // namespace lockstep
