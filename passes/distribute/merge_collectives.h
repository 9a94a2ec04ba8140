// Merges all_reduces, reduce_scatters and all_gathers that are alike, but for their operands, into one over a bucket,
// so that latency is paid once for many small tensors:
//
//   %a = all_reduce %x {axis=data, kind=sum} : f32[2]
//   %b = all_reduce %y {axis=data, kind=sum} : f32[3]
// becomes
//   %a, %b = all_reduce %x, %y {axis=data, bucket=0, kind=sum} : f32[2], f32[3]
//
// No data moves: the bucket is a place in registered memory that the buffer planner gives %x and %y, each of them
// whole. Of a reduce_scatter each rank's slices lie side by side in a bucket of their own afterwards, and those of an
// all_gather before; the communicator takes such a bucket piece by piece (runtime/communicator.h). Nothing is padded
// but to the alignment of pieces.
//
// Buckets are filled in the order in which their operands are computed, so that the first bucket is complete early and
// is reduced while the backward pass goes on: up to a size, or, where a step has been measured, so that it ends as
// early as it can (bucket_plan.h). Sums are taken element by element, so that no bit depends on that, unless the
// communicator's order of additions follows from a bucket's size (runtime/comm/route_choice.h). What other collectives
// wait for (batch statistics, slices of gradients whose new weights are gathered) is merged only when neither needs the
// other.
//
// A reduce_scatter or an all_gather whose slices are not contiguous in memory, along a dimension after one of more than
// one element, is left alone: the backend moves its elements. A tensor that does not divide among the ranks has
// neither, but is reduced whole.

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

// What was seen of a step that ran, in nanoseconds: the same on all ranks.
struct MeasuredStep {
  struct Gradient {
    int64_t ready = 0;   // since the step began, when it was computed
    int64_t needed = 0;  // likewise, when its collective was waited for
    int64_t update = 0;  // how long what used its sum took

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
  // A bucket is closed when another operand would make it larger; an operand larger than this has a bucket of its own.
  // What counts is the larger of an operand and its result, as a rank holds them.
  int64_t max_bytes = 4 << 20;
  // The first bucket of those that no collective waits for, whose reduction nothing delays, is kept smaller.
  int64_t first_bytes = max_bytes / 8;
  // All_reduces and reduce_scatters along the axes that have costs are divided by what was measured, and not by size.
  // An all_gather is ready when a reduction has come, so its times would be those of the buckets that were measured.
  std::optional<MeasuredStep> measured = std::nullopt;
};

// Every collective that is not left alone gets a bucket, numbered in the order of the graph.
Pass MergeCollectives(MergeOptions options = {});

}  // namespace lockstep::passes
