// The program of a loop's body, which a backend's kernel runs once per iteration. It is planned and certified like
// other programs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/planning/program.h"
#include "core/status.h"
#include "runtime/device.h"
#include "runtime/execution/executable.h"
#include "runtime/execution/steps.h"

namespace lockstep {

struct BodyProgram {
  StepList steps;
  std::vector<Buffer> buffers;
  std::vector<int32_t> inputs, results;  // buffers
  std::vector<Tensor> constants;
  uint64_t arena_bytes = 0;
  Recomputation recomputed;  // per iteration
  // By buffer, set while the body runs. Iterations read inputs and write results at other addresses each.
  std::vector<std::byte*> addresses;

  std::byte*& input(size_t i) { return addresses[static_cast<size_t>(inputs[i])]; }
  std::byte*& result(size_t i) { return addresses[static_cast<size_t>(results[i])]; }
  // Sets the addresses at the beginning of a run: input i is what the kernel reads as i, the constants are those given,
  // and the arena is the beginning of the kernel's scratch memory.
  void SetAddresses(const KernelArgs& args, const std::vector<std::unique_ptr<DeviceMemory>>& constants_in_memory);
};

// Plans the lowered body. If `body_bytes` is not 0, values are recomputed so that the arena takes about that much.
absl::StatusOr<BodyProgram> PlanBody(Program program, uint64_t body_bytes);

}  // namespace lockstep
