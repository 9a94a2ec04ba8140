#include "passes/distribute/bucket_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace lockstep::passes {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Sums over the gradients that the recurrence reads, indexed by the begin or the end of a bucket.
class Timeline {
 public:
  Timeline(std::span<const GradientTimes> gradients, CollectiveCost cost) : cost_(cost) {
    for (const GradientTimes& gradient : gradients) {
      bytes_.push_back(bytes_.back() + gradient.bytes);
      ready_.push_back(std::max(ready_.back(), gradient.ready));
    }
    updates_.assign(gradients.size() + 1, 0);
    for (size_t i = gradients.size(); i-- > 0;) updates_[i] = updates_[i + 1] + gradients[i].update;
  }

  size_t size() const { return ready_.size() - 1; }
  int64_t updates_from(size_t i) const { return updates_[i]; }

  // Returns the time at which a bucket [i, j) is reduced if the network is free from `free` on; kNever if the updates
  // would then end after `limit`.
  int64_t Reduced(size_t i, size_t j, int64_t free, int64_t limit) const {
    if (free == kNever) return kNever;
    const int64_t end = std::max(free, ready_[j]) + cost_(bytes_[j] - bytes_[i]);
    return end + updates_[i] <= limit ? end : kNever;
  }

 private:
  CollectiveCost cost_;
  std::vector<int64_t> bytes_ = {0};  // the bytes of the gradients before the index
  std::vector<int64_t> ready_ = {0};  // the time at which all of these are computed
  std::vector<int64_t> updates_;      // the duration of the updates from the index on
};

bool EndsBy(const Timeline& timeline, int64_t limit) {
  std::vector<int64_t> free(timeline.size() + 1, kNever);
  free[0] = 0;
  for (size_t j = 1; j <= timeline.size(); ++j) {
    for (size_t i = 0; i < j; ++i) free[j] = std::min(free[j], timeline.Reduced(i, j, free[i], limit));
  }
  return free.back() != kNever;
}

// Returns the smallest limit >= `low` by which some plan ends. Requires that a plan ends by `high`.
int64_t LeastLimit(const Timeline& timeline, int64_t low, int64_t high) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (EndsBy(timeline, middle)) high = middle;
    else low = middle + 1;
  }
  return high;
}

// Returns the ends of the fewest buckets that end by the limit; among equal ones those whose collectives end first.
// Requires that a plan ends by the limit.
std::vector<size_t> FewestBuckets(const Timeline& timeline, int64_t limit) {
  const size_t size = timeline.size();
  std::vector<std::vector<size_t>> begins;  // the begin of the last bucket, by the number of buckets and the end
  std::vector<int64_t> free(size + 1, kNever);
  free[0] = 0;
  while (free[size] == kNever) {
    std::vector<int64_t> next(size + 1, kNever);
    std::vector<size_t>& begin = begins.emplace_back(size + 1, 0);
    for (size_t j = 1; j <= size; ++j) {
      for (size_t i = 0; i < j; ++i) {
        const int64_t end = timeline.Reduced(i, j, free[i], limit);
        if (end == kNever || end > next[j]) continue;
        next[j] = end;
        begin[j] = i;
      }
    }
    free = std::move(next);
    LOCKSTEP_CHECK(begins.size() <= size) << "no plan ends by " << limit;
  }
  std::vector<size_t> ends = {size};
  for (size_t buckets = begins.size(); buckets-- > 1;) ends.push_back(begins[buckets][ends.back()]);
  std::reverse(ends.begin(), ends.end());
  return ends;
}

}  // namespace

int64_t EndOf(std::span<const GradientTimes> gradients, int64_t kernels_end, CollectiveCost cost,
              std::span<const size_t> ends) {
  int64_t ready = 0, reduced = 0, updated = kernels_end;
  size_t i = 0;
  for (const size_t end : ends) {
    int64_t bytes = 0, updates = 0;
    for (; i < end; ++i) {
      ready = std::max(ready, gradients[i].ready);
      bytes += gradients[i].bytes;
      updates += gradients[i].update;
    }
    reduced = std::max(reduced, ready) + cost(bytes);
    updated = std::max(updated, reduced) + updates;
  }
  return updated;
}

BucketPlan PlanBuckets(std::span<const GradientTimes> gradients, int64_t kernels_end, CollectiveCost cost) {
  if (gradients.empty()) return {{}, kernels_end};
  const Timeline timeline(gradients, cost);
  const size_t all = gradients.size();
  const int64_t end =
      LeastLimit(timeline, kernels_end + timeline.updates_from(0), EndOf(gradients, kernels_end, cost, {&all, 1}));
  return {FewestBuckets(timeline, end), end};
}

CostTable::CostTable(std::vector<Point> points) : points_(std::move(points)) {
  LOCKSTEP_CHECK(!points_.empty()) << "a table of costs without a point";
  for (size_t i = 1; i < points_.size(); ++i) {
    LOCKSTEP_CHECK(points_[i].bytes > points_[i - 1].bytes) << points_[i].bytes << " bytes after more";
  }
}

int64_t CostTable::At(int64_t bytes) const {
  if (points_.size() == 1 || bytes <= points_.front().bytes) return points_.front().nanoseconds;
  size_t right = 1;
  while (right + 1 < points_.size() && points_[right].bytes < bytes) ++right;
  const Point &a = points_[right - 1], &b = points_[right];
  // Integers give the same result on all machines; the product needs 128 bits.
  const __int128 rise = static_cast<__int128>(b.nanoseconds - a.nanoseconds) * (bytes - a.bytes);
  return std::max<int64_t>(0, a.nanoseconds + static_cast<int64_t>(rise / (b.bytes - a.bytes)));
}

}  // namespace lockstep::passes
