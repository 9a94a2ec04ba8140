// Merges all_reduces, reduce_scatters and all_gathers that differ only in their operands into one over a bucket, so
// that latency is paid once for many small tensors:
//
//   %a = all_reduce %x {axis=data, kind=sum} : f32[2]
//   %b = all_reduce %y {axis=data, kind=sum} : f32[3]
// becomes
//   %a, %b = all_reduce %x, %y {axis=data, bucket=0, kind=sum} : f32[2], f32[3]
//
// No data moves: the bucket is a place in registered memory that the buffer planner gives %x and %y. Each lies in it as
// a whole. The slices of one rank lie side by side in a bucket of their own: the results of a reduce_scatter, and the
// operands of an all_gather. The communicator handles such a bucket piece by piece (runtime/communicator.h). Pieces are
// padded to their alignment only.
//
// Buckets are filled in the order in which their operands are computed, so that the first bucket is complete early and
// is reduced while the backward pass continues. A bucket is filled up to a size or, if a step was measured, such that
// the step ends as early as possible (bucket_plan.h). Sums are computed element by element, so buckets do not change
// bits, unless the communicator chooses its order of additions by the size of a bucket
// (runtime/comm/routes/route_choice.h). Collectives whose results other collectives need (batch statistics, slices of
// gradients whose new weights are gathered) are merged only if they do not depend on each other.
//
// A reduce_scatter or an all_gather along a dimension that follows one of more than one element is left alone: its
// slices are not contiguous in memory, and the backend moves the elements. A tensor that cannot be shared evenly is
// reduced whole, so it has neither.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"
#include "passes/distribute/bucket_plan.h"
#include "passes/pass.h"

namespace lockstep::passes {

// Times of a step that ran, in nanoseconds; equal on all ranks.
struct MeasuredStep {
  struct Gradient {
    int64_t ready = 0;   // the time since the step began at which it was computed
    int64_t needed = 0;  // the time since the step began at which the rank waited for its collective
    int64_t update = 0;  // the duration of the nodes that used the reduced gradient

    bool operator==(const Gradient&) const = default;
  };

  std::map<std::string, Gradient> gradients;  // by the value that a reduction took, as the step's graph named it
  std::map<std::string, CostTable> costs;     // of an all_reduce along an axis, by the axis

  bool operator==(const MeasuredStep&) const = default;

  // {gradients={g={ready=10,needed=100,update=5}},costs={data={1024=500}}}: costs are of numbers of bytes. Errors are
  // those of FromText (core/option_text.h).
  std::string ToString() const;
  static absl::StatusOr<MeasuredStep> Parse(std::string_view text);
};

struct MergeOptions {
  // A bucket is closed if another operand would make it larger than this. A larger operand has a bucket of its own. The
  // size of an operand is the larger of the operand and its result, as a rank holds them.
  int64_t max_bytes = 4 << 20;
  // The limit of the first bucket of collectives that no other collective depends on. It is smaller, so that its
  // reduction starts early.
  int64_t first_bytes = max_bytes / 8;
  // If set, all_reduces and reduce_scatters along axes with costs are divided by the measured times instead of the
  // size. All_gathers are not: they are ready after a reduction, so their times depend on the measured buckets.
  std::optional<MeasuredStep> measured = std::nullopt;
};

// Gives each collective that is not left alone a bucket. Buckets are numbered in the order of the graph.
Pass MergeCollectives(MergeOptions options = {});

}  // namespace lockstep::passes
