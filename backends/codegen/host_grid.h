// Runs grid kernels on the host, for tests. The code is that of a GPU; functions of the host implement the operations
// of threads. The threads of a block take turns: each runs until the next barrier, or until its warp's next shuffle or
// product. Callers choose the order of blocks, and of threads and warps between barriers, to find code that depends on
// it. Threads that wait at different places are an error.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/codegen/grid_compiler.h"
#include "core/status.h"

namespace lockstep::loop_test {

enum class Order { kForwards, kBackwards, kMixed };

// Runs one thread of a kernel; `parameters` are the addresses of its arguments, as drivers get them.
using RunThread = void (*)(void** parameters);

// All blocks of a grid. `together`: threads wait for each other, so each needs its own stack.
struct HostLaunch {
  RunThread run = nullptr;
  bool together = false;
  int64_t blocks_x = 1, blocks_y = 1;
  int64_t threads = 1;
};
absl::Status RunBlocks(const HostLaunch& launch, void** parameters, Order order);

// Any number of threads may use one object.
class HostGrid {
 public:
  // The function that a kernel's entry calls, for machines in tests that know a kernel only by its address.
  using Enter = void (*)(RunThread run, bool together, size_t num_parameters, void** parameters, const void* launch);

  explicit HostGrid(Enter enter = nullptr);
  ~HostGrid();

  // Returns the address of void(void** parameters, const void* launch), which passes its arguments on to `enter`.
  absl::StatusOr<void*> EntryOf(const std::string& kernel, const std::string& image);

  // Creates the target for GridCompiler: images are object files for this processor.
  static absl::StatusOr<std::unique_ptr<GridTarget>> CreateTarget();

  // Runs the launches of `grid`. `pointers` are host addresses of the arguments that grid_function.h lists, without
  // scratch, error and id. Returns the first error that a thread reported, or kLoopOk.
  absl::StatusOr<int32_t> Run(const CompiledGrid& grid, std::vector<void*> pointers, void* scratch, Order order);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::loop_test
