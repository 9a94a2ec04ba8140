// Compiles the bodies of `fusion` nodes to kernels for a GPU, none of which need be there: the image of each is PTX,
// which a driver turns into machine code when it loads it. One thread at a time may use a GridCompiler.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/codegen/grid_target.h"
#include "backends/loops/grid_plan.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// What is launched: a kernel of grid_function.h in a grid of blocks of threads.
struct GridLaunch {
  std::string kernel;  // its name in the image
  int64_t blocks_x = 0, blocks_y = 1;
  int64_t threads = 0;
};

struct CompiledGrid {
  std::shared_ptr<const std::string> image;
  GridLaunch run;                          // nothing to run if it has no blocks
  std::optional<GridLaunch> finish;        // afterwards
  int64_t scratch_bytes = 0;               // that both share, aligned to 64 bytes, with any content
  std::vector<std::vector<int>> in_place;  // by result: operands whose memory it may be given (LoopInfo)
};

// Says whether a loop can be made of `body`, as AnalyzeLoop does, and how it is cut.
absl::StatusOr<GridPlan> AnalyzeGrid(const Graph& body, const GridSizes& sizes = {});

class GridCompiler {
 public:
  using MakeTarget = std::function<absl::StatusOr<std::unique_ptr<GridTarget>>()>;

  // `make_target` is called for each thread that compiles.
  explicit GridCompiler(MakeTarget make_target, const GridSizes& sizes = {})
      : make_target_(std::move(make_target)), sizes_(sizes) {}

  // One result for each body. Bodies that are equal up to names share an image.
  absl::StatusOr<std::vector<CompiledGrid>> Compile(std::span<const Graph* const> bodies) const;

 private:
  const MakeTarget make_target_;
  const GridSizes sizes_;
};

}  // namespace lockstep
