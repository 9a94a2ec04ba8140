// Divides gradients into buckets so that a step ends as early as possible. The input is measured: when each gradient is
// computed, how long its update takes, and how long a collective takes by its bytes. A pure function; any thread.
//
// The model: gradients are computed in a given order, and a bucket is a range of gradients in that order. The
// collectives run one after the other. Each starts once the last gradient of its bucket is computed. When the kernels
// of the step have ended, the rank waits for one bucket after the other and runs the updates of each.
//
//   computed  g1   g2      g3        g4 | kernels end
//   network        [  g1 g2  ]         [  g3 g4  ]
//   updates                             u1 u2     u3 u4 | the end
//
// Small buckets start early but pay the latency more often. In large buckets the last gradients travel late. The result
// is exact: no partition into ranges ends earlier.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lockstep::passes {

// The times of one gradient. Times are nanoseconds since the step began, durations are nanoseconds. None is negative.
// They are integers, so that all ranks compute the same plan from the same numbers.
struct GradientTimes {
  int64_t ready = 0;   // the time at which it is computed
  int64_t bytes = 0;   // the bytes that travel
  int64_t update = 0;  // the duration of the update that uses the reduced gradient

  bool operator==(const GradientTimes&) const = default;
};

// Returns the duration of a collective of so many bytes. Not negative; need not grow with the bytes.
using CollectiveCost = absl::FunctionRef<int64_t(int64_t bytes)>;

struct BucketPlan {
  std::vector<size_t> ends;  // for each bucket, the index behind its last gradient
  int64_t end = 0;           // the time at which the last update ends

  bool operator==(const BucketPlan&) const = default;
};

// Returns the time at which the last update ends if the buckets end at `ends`. `kernels_end` is the time at which the
// other kernels have ended.
int64_t EndOf(std::span<const GradientTimes> gradients, int64_t kernels_end, CollectiveCost cost,
              std::span<const size_t> ends);

// Returns the plan that ends first. Among equal ones it prefers the fewest buckets, then the earliest end of the
// collectives, which makes the last buckets small. Returns no buckets if there are no gradients.
//
// Let W(i) be the duration of the updates of all gradients from i on, and c(i, j) the cost of a bucket [i, j). A plan
// ends at max(kernels_end + W(0), the maximum over its buckets of its collective's end + W(its first gradient)). Some
// plan ends by U if E(n) is finite, where E(j) is the earliest time at which the network can be free after the first j
// gradients:
//
//   E(0) = 0,   E(j) = min over i < j of e = max(E(i), ready before j) + c(i, j), if e + W(i) <= U,
//
// This is correct because an earlier start never delays the rest. Bisection finds the smallest U exactly, as times are
// integers. The same recurrence with the number of buckets as a second index finds the fewest buckets. With n
// gradients, k buckets and a range of times T this makes O(n^2 (log T + k)) calls of `cost`.
BucketPlan PlanBuckets(std::span<const GradientTimes> gradients, int64_t kernels_end, CollectiveCost cost);

// A cost that was measured at some sizes. It is linear between two sizes, constant below the first, and beyond the last
// it continues the line through the last two.
class CostTable {
 public:
  struct Point {
    int64_t bytes = 0;
    int64_t nanoseconds = 0;

    bool operator==(const Point&) const = default;
  };

  // Requires at least one point, strictly increasing bytes, and durations that are not negative.
  explicit CostTable(std::vector<Point> points);

  int64_t At(int64_t bytes) const;
  const std::vector<Point>& points() const { return points_; }
  bool operator==(const CostTable&) const = default;

 private:
  std::vector<Point> points_;
};

}  // namespace lockstep::passes
