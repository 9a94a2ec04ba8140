// Compiles the bodies of `fusion` nodes to kernels for a GPU, which need not be present. The image of each kernel is
// PTX, which a driver compiles to machine code when it loads it. One thread at a time may use a GridCompiler.

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

// A launch: a kernel of grid_function.h in a grid of blocks of threads.
struct GridLaunch {
  std::string kernel;  // its name in the image
  int64_t blocks_x = 0, blocks_y = 1;
  int64_t threads = 0;
};

struct CompiledGrid {
  std::shared_ptr<const std::string> image;
  GridLaunch run;                    // no launch if it has no blocks
  std::optional<GridLaunch> finish;  // is launched after `run`
  int64_t scratch_bytes = 0;  // scratch memory that both share, aligned to 64 bytes; its initial content does not
                              // matter
  std::vector<std::vector<int>> in_place;  // by result: operands whose memory the result may use (LoopInfo)
};

// Returns the plan for cutting the loop, or an error if `body` cannot be a loop, as AnalyzeLoop does, or if a block of
// these sizes would need more memory than a GPU has for it.
absl::StatusOr<GridPlan> AnalyzeGrid(const Graph& body, const GridSizes& sizes = {});

class GridCompiler {
 public:
  using MakeTarget = std::function<absl::StatusOr<std::unique_ptr<GridTarget>>()>;

  // `make_target` is called once for each thread that compiles.
  explicit GridCompiler(MakeTarget make_target, const GridSizes& sizes = {})
      : make_target_(std::move(make_target)), sizes_(sizes) {}

  // Returns one result for each body. Bodies that differ only in names share an image.
  absl::StatusOr<std::vector<CompiledGrid>> Compile(std::span<const Graph* const> bodies) const;

 private:
  const MakeTarget make_target_;
  const GridSizes sizes_;
};

}  // namespace lockstep
