// Tests the properties of each route (route.h), over groups of ranks that exchange messages by TCP: the order of
// additions, to the last bit, the consecutive messages, and the bytes that a group sends.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/dtype.h"
#include "core/status.h"
#include "gtest/gtest.h"
#include "runtime/comm/conformance/watched_links.h"
#include "runtime/comm/in_process.h"

namespace lockstep {
namespace {

using Sizes = std::vector<int>;  // the number of ranks of each group

std::string NameOfRouteRow(const Sizes& sizes) {
  std::string name;
  for (int size : sizes) name += (name.empty() ? "" : "+") + std::to_string(size);
  return name;
}

std::vector<int> Begins(const Sizes& sizes) {
  std::vector<int> begins = {0};
  for (size_t g = 0; g + 1 < sizes.size(); ++g) begins.push_back(begins.back() + sizes[g]);
  return begins;
}

int Ranks(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), 0); }

// Runs `rank` on all ranks of a world, one thread each.
void RunWorld(const Sizes& sizes, const RoutePolicy& policy, const AroundLinks& around,
              const std::function<absl::Status(Communicator&)>& rank) {
  SCOPED_TRACE(NameOfRouteRow(sizes));
  auto world = CreateInProcessGroups(Ranks(sizes), Begins(sizes), {.timeout = absl::Seconds(30)}, policy, around);
  ASSERT_TRUE(world.ok()) << world.status();
  std::vector<std::thread> threads;
  std::vector<absl::Status> results(world->size(), absl::UnknownError("it did not run"));
  for (auto& communicator : *world) {
    threads.emplace_back([&, c = std::move(communicator)]() mutable {
      const int r = c->rank();
      results[r] = rank(*c);
      if (!results[r].ok()) c->Abort(results[r]);
      c.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

// Returns numbers for which different orders of additions almost never have the same sum.
float RouteInput(int rank, int64_t i) {
  const uint64_t hash =
      (static_cast<uint64_t>(i) * 7 + static_cast<uint64_t>(rank) * 1000003 + 99) * 0x9e3779b97f4a7c15u;
  return static_cast<float>(hash >> 40) / (1 << 20) - 7.3f;
}

float InOrder(const std::vector<int>& ranks, int64_t i) {
  float sum = RouteInput(ranks[0], i);
  for (size_t r = 1; r < ranks.size(); ++r) sum += RouteInput(ranks[r], i);
  return sum;
}

std::vector<int> Count(int begin, int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

float OfGroup(const Sizes& sizes, int g, int64_t i) { return InOrder(Count(Begins(sizes)[g], sizes[g]), i); }

// The sum by recursive halving: pairs of neighbours first, then groups at the largest distance.
float ByTree(const Sizes& sizes, int64_t i) {
  const int groups = static_cast<int>(sizes.size()), power = static_cast<int>(std::bit_floor(sizes.size()));
  std::vector<float> sums;
  for (int g = 0; g < groups; ++g) {
    const bool stand_together = g < 2 * (groups - power);
    sums.push_back(OfGroup(sizes, g, i));
    if (stand_together) sums.back() += OfGroup(sizes, ++g, i);
  }
  for (int distance = power / 2; distance > 0; distance /= 2) {
    for (int p = 0; p < distance; ++p) sums[p] += sums[p + distance];
  }
  return sums[0];
}

// Returns the sums of element i that the table in route.h allows.
std::vector<float> Allowed(Route route, const Sizes& sizes, int64_t i) {
  const int ranks = Ranks(sizes);
  switch (route) {
    case Route::kChain: return {InOrder(Count(0, ranks), i)};
    case Route::kAll:
    case Route::kOwner: {
      float sum = OfGroup(sizes, 0, i);
      for (size_t g = 1; g < sizes.size(); ++g) sum += OfGroup(sizes, static_cast<int>(g), i);
      return {sum};
    }
    case Route::kRing: {
      std::vector<float> sums;
      for (const int begin : Begins(sizes)) {
        std::vector<int> around = Count(0, ranks);
        std::rotate(around.begin(), around.begin() + begin, around.end());
        sums.push_back(InOrder(around, i));
      }
      return sums;
    }
    case Route::kHalving: return {ByTree(sizes, i)};
    case Route::kPair: return {};
  }
  return {};
}

template <typename T>
absl::Status ExpectAllowed(const std::vector<T>& found, int64_t first, Route route, const Sizes& sizes) {
  for (size_t i = 0; i < found.size(); ++i) {
    bool is_allowed = false;
    for (const float sum : Allowed(route, sizes, first + static_cast<int64_t>(i))) {
      const T expected = static_cast<T>(sum);
      is_allowed = is_allowed || std::memcmp(&found[i], &expected, sizeof(T)) == 0;
    }
    if (!is_allowed)
      return Internal() << RouteName(route) << ": element " << first + static_cast<int64_t>(i) << " of " << found.size()
                        << " is " << static_cast<float>(found[i]);
  }
  return absl::OkStatus();
}

// Runs one rank's all_reduces and reduce_scatters, in place or not, twice. The bits must be those of the route, and
// equal on all ranks and in each run.
template <typename T>
absl::Status Reduces(Communicator& c, Route route, const Sizes& sizes, int64_t count, DType dtype) {
  std::vector<T> input(count), output(count), again(count);
  for (int64_t i = 0; i < count; ++i) input[i] = static_cast<T>(RouteInput(c.rank(), i));
  RETURN_IF_ERROR(
      c.Run(Collective::AllReduce(count, dtype, ReduceKind::kSum), input.data(), output.data(), {.label = "once"}));
  again = input;
  RETURN_IF_ERROR(
      c.Run(Collective::AllReduce(count, dtype, ReduceKind::kSum), again.data(), again.data(), {.label = "in place"}));
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  if (std::memcmp(output.data(), again.data(), bytes) != 0) return Internal() << "other bits in place";
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   c.AllGatherBytes({reinterpret_cast<const char*>(output.data()), bytes}, "bits"));
  for (const std::string& each : all) {
    if (each != all[0]) return Internal() << "other bits on another rank";
  }
  // Each rank checks a part, because all have the same result.
  const int64_t begin = count * c.rank() / c.size(), end = count * (c.rank() + 1) / c.size();
  const std::vector<T> part(output.begin() + begin, output.begin() + end);
  if (dtype == DType::kF32) RETURN_IF_ERROR(ExpectAllowed(part, begin, route, sizes));
  if (route == Route::kHalving) return absl::OkStatus();
  if (route == Route::kAll) return absl::OkStatus();
  const int64_t share = count / c.size();
  std::vector<T> slice(share);
  RETURN_IF_ERROR(c.Run(Collective::ReduceScatter(share, dtype, ReduceKind::kSum), input.data(), slice.data(),
                        {.label = "slices"}));
  return dtype == DType::kF32 ? ExpectAllowed(slice, share * c.rank(), route, sizes) : absl::OkStatus();
}

const Route kReducingRoutes[] = {Route::kChain, Route::kOwner, Route::kAll, Route::kRing, Route::kHalving};
const Sizes kWorlds[] = {{1, 1}, {1, 1, 1}, {2, 2}, {1, 3, 1}, {1, 1, 1, 1}, {2, 1, 1, 2, 1}, {1, 1, 1, 1, 1, 1, 1}};

TEST(Routes, AddInTheOrderThatTheyPromise) {
  for (const Route route : kReducingRoutes) {
    for (const Sizes& sizes : kWorlds) {
      SCOPED_TRACE(std::string(RouteName(route)));
      RunWorld(sizes, {.preferred = route}, nullptr, [&](Communicator& c) -> absl::Status {
        for (const int64_t count : {1, 5, 1000, 30011})
          RETURN_IF_ERROR(Reduces<float>(c, route, sizes, count, DType::kF32));
        return absl::OkStatus();
      });
    }
  }
}

// Values are added in f32 and rounded once: the result in bf16 is the rounded sum of the inputs.
TEST(Routes, RoundBf16OnceWhereTheySendF32) {
  for (const Route route : {Route::kChain, Route::kRing, Route::kHalving}) {
    RunWorld({1, 2, 1}, {.preferred = route}, nullptr, [&](Communicator& c) -> absl::Status {
      constexpr int64_t kCount = 5000;
      std::vector<BFloat16> x(kCount);
      for (int64_t i = 0; i < kCount; ++i) x[i] = static_cast<BFloat16>(static_cast<float>((i * (c.rank() + 1)) % 256));
      // Sums of integers below 2^24 are exact in f32, in any order.
      RETURN_IF_ERROR(
          c.Run(Collective::AllReduce(kCount, DType::kBF16, ReduceKind::kSum), x.data(), x.data(), {.label = "bf16"}));
      for (int64_t i = 0; i < kCount; ++i) {
        float sum = 0;
        for (int r = 0; r < 4; ++r) sum += static_cast<float>((i * (r + 1)) % 256);
        const BFloat16 expected = static_cast<BFloat16>(sum);
        if (x[i].bits != expected.bits) return Internal() << RouteName(route) << ": element " << i;
      }
      return absl::OkStatus();
    });
  }
}

TEST(Routes, KeepRankOrderWhereItIsAskedFor) {
  for (const Route wanted : kReducingRoutes) {
    auto world = CreateInProcessGroups(5, {0, 2, 3}, {.timeout = absl::Seconds(30), .in_rank_order = true},
                                       {.preferred = wanted});
    ASSERT_TRUE(world.ok());
    std::vector<std::thread> threads;
    std::vector<absl::Status> results(5, absl::UnknownError("it did not run"));
    for (auto& communicator : *world) {
      EXPECT_TRUE(communicator->reduces_in_rank_order());
      threads.emplace_back([&, c = std::move(communicator)] {
        results[c->rank()] = Reduces<float>(*c, Route::kChain, {2, 1, 2}, 5000, DType::kF32);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
  }
}

// Runs one collective. `bytes` is the size of the operand or the result, whichever is larger.
absl::Status RouteCall(Communicator& c, CollectiveOp op, int64_t bytes) {
  const CollectiveTraits traits = TraitsOf(op);
  const int64_t count = bytes / 4;
  Collective call{.op = op, .dtype = DType::kF32, .counts = {traits.counts_slices() ? count / c.size() : count}};
  for (int rank = 0; traits.permutes && rank < c.size(); ++rank)  // each rank sends to another group
    call.pairs.push_back({.source = rank, .target = (rank + c.size() / 2) % c.size()});
  std::vector<float> input(count, 1.f), output(count);
  return c.Run(call, input.data(), output.data(), {.label = "x"});
}

// Checks that the messages and bytes of a collective are those of TrafficOf.
void ExpectTraffic(const Sizes& sizes, Route route, CollectiveOp op, int64_t bytes) {
  SCOPED_TRACE(NameOfRouteRow(sizes) + " " + std::string(RouteName(route)) + " " + std::string(TraitsOf(op).name) +
               " of " + std::to_string(bytes));
  std::vector<Watched> watched(Ranks(sizes));
  const auto watch = [&](int rank, std::unique_ptr<Links> links) {
    return WatchLinks(std::move(links), &watched[rank]);
  };
  RunWorld(sizes, {.preferred = route}, watch, [&](Communicator& c) -> absl::Status {
    RETURN_IF_ERROR(c.Barrier("before"));
    watched[c.rank()].Reset();
    RETURN_IF_ERROR(c.Barrier("all are reset"));
    return RouteCall(c, op, bytes);
  });
  uint64_t most = 0, messages = 0;
  for (size_t g = 0; g < sizes.size(); ++g) {
    uint64_t sent = 0;
    for (const int rank : Count(Begins(sizes)[g], sizes[g])) {
      sent += watched[rank].bytes;
      messages = std::max<uint64_t>(messages, watched[rank].messages);
    }
    most = std::max(most, sent);
  }
  const Traffic traffic = TrafficOf(route, op, static_cast<uint64_t>(bytes), static_cast<int>(sizes.size()), sizes[0]);
  EXPECT_EQ(messages, static_cast<uint64_t>(traffic.messages));
  EXPECT_LE(static_cast<double>(most), 1.01 * static_cast<double>(traffic.bytes) + 64);
  EXPECT_GE(static_cast<double>(most), 0.99 * static_cast<double>(traffic.bytes));
}

TEST(Routes, TravelAsTheTableSays) {
  const Sizes worlds[] = {{1, 1, 1}, {2, 2}, Sizes(5, 1), Sizes(16, 1), Sizes(4, 4)};
  for (const Sizes& sizes : worlds) {
    for (const Route route : kRoutes) {
      for (const CollectiveOp op :
           CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.moves_data; })) {
        if (!CanGo(route, TraitsOf(op))) continue;
        // Slices, and results for the last group of the chain, send fewer bytes downwards.
        if (route == Route::kChain && TraitsOf(op).counts_slices()) continue;
        ExpectTraffic(sizes, route, op, 1 << 18);
      }
    }
  }
}

TEST(Routes, OwnersShareSmallTensorsToo) {
  for (const Route route : {Route::kOwner, Route::kRing}) {
    ExpectTraffic(Sizes(16, 1), route, CollectiveOp::kAllReduce, 16 << 10);
    ExpectTraffic({4, 4, 4, 4}, route, CollectiveOp::kAllReduce, 16 << 10);
  }
}

// With so many groups, each communicates only with its neighbours in a barrier.
TEST(Routes, OfManyGroupsNobodyLeavesABarrierBeforeAllHaveCome) {
  constexpr int kGroups = 34;
  for (const int late : {0, kGroups / 2, kGroups - 1}) {
    std::atomic<int> come{0};
    RunWorld(Sizes(kGroups, 1), {}, nullptr, [&](Communicator& c) -> absl::Status {
      if (c.rank() == late) absl::SleepFor(absl::Milliseconds(100));
      ++come;
      RETURN_IF_ERROR(c.Barrier("all are there"));
      if (come != kGroups) return Internal() << come << " of " << kGroups << " had come, rank " << late << " last";
      return absl::OkStatus();
    });
  }
}

// Ranks that call with different counts take different routes and still detect the difference.
TEST(Routes, OfRanksThatDisagreeAreOneError) {
  // selects all, halving and ring, depending on the size
  const NetworkCosts costs{.latency = 1e-6, .message = 1e-5, .byte_to_all = 1e-8, .byte_to_neighbour = 1e-9};
  const RouteOptions options{.groups = 8, .policy = {.costs = costs}};
  const auto ranges = RoutesBySize(CollectiveOp::kAllReduce, options);
  ASSERT_GE(ranges.size(), 2u);
  for (size_t i = 0; i + 1 < ranges.size(); ++i) {
    for (const int other : {0, 3, 7}) {
      auto world = CreateInProcessGroups(8, Count(0, 8), {.timeout = absl::Seconds(20)}, options.policy);
      ASSERT_TRUE(world.ok());
      std::vector<std::thread> threads;
      std::vector<absl::Status> results(8);
      for (auto& communicator : *world) {
        threads.emplace_back([&, c = std::move(communicator)] {
          const uint64_t bytes = ranges[i + 1].from * (c->rank() == other ? 2 : 1) / (c->rank() == other ? 1 : 2);
          results[c->rank()] = RouteCall(*c, CollectiveOp::kAllReduce, static_cast<int64_t>(bytes));
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const absl::Status& result : results) {
        EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition) << result;
        EXPECT_NE(std::string(result.message()).find("rank " + std::to_string(other)), std::string::npos) << result;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
