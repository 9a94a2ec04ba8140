// Grid kernels on the host, for tests: the code that is made for a GPU, with what a thread asks its machine answered by
// functions of the host. The threads of a block are run by turns, each until it meets the others. Blocks, and threads
// between two meetings, run in an order that is given, so that what depends on it is found; threads that meet at
// different places are an error.

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

// All blocks of a grid. `together`: threads meet, so that each needs a stack of its own.
struct HostLaunch {
  RunThread run = nullptr;
  bool together = false;
  int64_t blocks_x = 1, blocks_y = 1;
  int64_t threads = 1;
};
absl::Status RunBlocks(const HostLaunch& launch, void** parameters, Order order);

// One object may be used by any number of threads.
class HostGrid {
 public:
  // What the entry of a kernel calls, which is for machines of tests that know a kernel by an address alone.
  using Enter = void (*)(RunThread run, bool together, size_t num_parameters, void** parameters, const void* launch);

  explicit HostGrid(Enter enter = nullptr);
  ~HostGrid();

  // void(void** parameters, const void* launch): passes these on to `enter`.
  absl::StatusOr<void*> EntryOf(const std::string& kernel, const std::string& image);

  // For GridCompiler: images are object files of this processor.
  static absl::StatusOr<std::unique_ptr<GridTarget>> CreateTarget();

  // Runs what `grid` launches, on its arguments: addresses of the host, as grid_function.h lists them, without the two
  // of errors. Returns the first error that a thread reported, or kLoopOk.
  absl::StatusOr<int32_t> Run(const CompiledGrid& grid, std::vector<void*> pointers, void* scratch, Order order);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::loop_test
