// How gradients are divided into buckets so that a step ends as early as it can, from measured times: when each
// gradient is computed, how long its update takes, and what a collective of so many bytes takes. A pure function; any
// thread.
//
// What is modelled: gradients are computed in an order, buckets are neighbours in it, and their collectives run one
// after the other, each once the last gradient in it is computed. The kernels of the step end at some time; then the
// rank waits for bucket after bucket, and runs the updates of each.
//
//   computed  g1   g2      g3        g4 | kernels end
//   network        [  g1 g2  ]         [  g3 g4  ]
//   updates                             u1 u2     u3 u4 | the end
//
// Small buckets start early, and pay for each start; in large ones the last gradients travel late. Nothing below is an
// approximation: among all partitions into neighbours the one that is found ends first.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lockstep::passes {

// Times are nanoseconds since the step began, durations nanoseconds: whole numbers, so that all ranks that know the
// same numbers find the same plan. None is negative.
struct GradientTimes {
  int64_t ready = 0;   // when it is computed
  int64_t bytes = 0;   // that travel
  int64_t update = 0;  // how long it takes to use what was reduced

  bool operator==(const GradientTimes&) const = default;
};

// What a collective of so many bytes takes. Not negative; need not grow with the bytes.
using CollectiveCost = absl::FunctionRef<int64_t(int64_t bytes)>;

struct BucketPlan {
  std::vector<size_t> ends;  // of each bucket, where the next one begins; the last is the number of gradients
  int64_t end = 0;           // when the last update ends

  bool operator==(const BucketPlan&) const = default;
};

// When the last update ends with the buckets that end there; `kernels_end` is when the rank has nothing else to do.
int64_t EndOf(std::span<const GradientTimes> gradients, int64_t kernels_end, CollectiveCost cost,
              std::span<const size_t> ends);

// The plan that ends first; among those the one of the fewest buckets; among those the one whose collectives end first,
// and whose last buckets, then, are the smallest. No buckets if there are no gradients.
//
// With W(i) the updates of all gradients from i on, and c(i, j) the cost of a bucket [i, j), a plan ends at
// max(kernels_end + W(0), the greatest over its buckets of its collective's end + W(its first gradient)). Whether any
// plan ends by U is decided by the earliest time at which the network can be free after the first j gradients,
//
//   E(0) = 0,   E(j) = min over i < j of e = max(E(i), ready before j) + c(i, j), if e + W(i) <= U,
//
// since what follows is not worse for having an earlier start. The least U is found by bisection, exactly, as times are
// whole numbers; the fewest buckets by the same recurrence, over their number too. With n gradients, k buckets and a
// range of times T that is O(n^2 (log T + k)) calls of `cost`.
BucketPlan PlanBuckets(std::span<const GradientTimes> gradients, int64_t kernels_end, CollectiveCost cost);

// A cost that was measured at some sizes: linear between two of them, beyond the last as between the last two, and
// below the first as there.
class CostTable {
 public:
  struct Point {
    int64_t bytes = 0;
    int64_t nanoseconds = 0;

    bool operator==(const Point&) const = default;
  };

  // `points` by growing bytes, at least one; no duration is negative.
  explicit CostTable(std::vector<Point> points);

  int64_t At(int64_t bytes) const;
  const std::vector<Point>& points() const { return points_; }
  bool operator==(const CostTable&) const = default;

 private:
  std::vector<Point> points_;
};

}  // namespace lockstep::passes
