// Split communicators: they compute, and a failure of one is a failure of all.

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/comm/conformance/support.h"

namespace lockstep {
namespace {

// All_reduces `value` over the ranks of `c`, in memory registered with it.
absl::Status ExpectSum(Communicator& c, int64_t value, int64_t expected, const std::string& label) {
  constexpr int64_t kCount = 3000;
  ASSIGN_OR_RETURN(Operand operand, Operand::Make(c, true, kCount * sizeof(int64_t)));
  int64_t* x = reinterpret_cast<int64_t*>(operand.data());
  for (int64_t i = 0; i < kCount; ++i) x[i] = value + i;
  RETURN_IF_ERROR(c.Run(Collective::AllReduce(kCount, DType::kI64, ReduceKind::kSum), x, x, {.label = label}));
  for (int64_t i = 0; i < kCount; ++i) {
    if (x[i] != expected + i * c.size()) return Wrong(c, label) << "element " << i << " is " << x[i];
  }
  return absl::OkStatus();
}

// Splits by `color_of`, and checks the members of this rank's part and that it computes.
absl::StatusOr<std::unique_ptr<Communicator>> SplitAndCheck(Communicator& c, const std::function<int(int)>& color_of,
                                                            const std::string& label) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part, c.Split(color_of(c.rank()), label));
  std::vector<int> members;
  for (int r = 0; r < c.size(); ++r) {
    if (color_of(r) == color_of(c.rank())) members.push_back(r);
  }
  EXPECT_THAT_OR_RETURN(part->size() == static_cast<int>(members.size()), label);
  EXPECT_THAT_OR_RETURN(members[part->rank()] == c.rank(), label);
  EXPECT_THAT_OR_RETURN(part->transport() == c.transport(), label);
  EXPECT_THAT_OR_RETURN(part->timeout() == c.timeout(), label);
  int64_t sum = 0;
  for (int i = 0; i < part->size(); ++i) {
    EXPECT_THAT_OR_RETURN(part->host(i) == c.host(members[i]), label);
    sum += members[i];
  }
  RETURN_IF_ERROR(ExpectSum(*part, c.rank(), sum, label));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, part->AllGatherBytes(std::to_string(c.rank()), label));
  for (int i = 0; i < part->size(); ++i) EXPECT_THAT_OR_RETURN(all[i] == std::to_string(members[i]), label);
  return part;
}

// Rows and columns of a grid with two columns. Collectives on both and on all ranks are in flight at once, and ranks
// wait for them in different orders.
absl::Status SplitIntoRowsAndColumns(Communicator& c) {
  ASSIGN_OR_RETURN(auto row, SplitAndCheck(c, [](int r) { return r / 2; }, "rows"));
  ASSIGN_OR_RETURN(auto column, SplitAndCheck(c, [](int r) { return r % 2; }, "columns"));
  Communicator* const worlds[] = {row.get(), column.get(), &c};
  for (int round = 0; round < 20; ++round) {
    std::vector<float> values[3];
    Communicator::Ticket tickets[3];
    for (int w = 0; w < 3; ++w) {
      values[w].assign(20000, static_cast<float>(w + round));
      ASSIGN_OR_RETURN(tickets[w], worlds[w]->Start(Collective::AllReduce(20000, DType::kF32, ReduceKind::kSum),
                                                    values[w].data(), values[w].data(), {.label = "at once"}));
    }
    for (int k = 0; k < 3; ++k) {
      const int w = (k + c.rank() + round) % 3;
      RETURN_IF_ERROR(worlds[w]->Wait(tickets[w]));
      for (float x : values[w]) {
        EXPECT_THAT_OR_RETURN(x == static_cast<float>((w + round) * worlds[w]->size()), "rows and columns");
      }
    }
  }
  // One of them is destroyed. The other works on and can be split again.
  column.reset();
  RETURN_IF_ERROR(row->Barrier("row"));
  ASSIGN_OR_RETURN(auto alone, row->Split(row->rank(), "alone"));
  EXPECT_THAT_OR_RETURN(alone->size() == 1 && alone->rank() == 0, "alone");
  RETURN_IF_ERROR(ExpectSum(*alone, 5, 5, "alone"));
  return c.Barrier("all");
}

// Splits into parts of different sizes with non-consecutive ranks, and into one part with all ranks; many times.
absl::Status SplitUnevenly(Communicator& c) {
  auto uneven = [](int r) { return r == 0 || r == 5 ? -7 : r < 3 ? 1 : 1000000; };
  for (int round = 0; round < 5; ++round) {
    ASSIGN_OR_RETURN(auto part, SplitAndCheck(c, uneven, "uneven"));
    ASSIGN_OR_RETURN(auto same, SplitAndCheck(c, [](int) { return 3; }, "all"));
    ASSIGN_OR_RETURN(auto again, SplitAndCheck(*same, [](int r) { return r % 3; }, "again"));
    RETURN_IF_ERROR(part->Barrier("part"));
  }
  return c.Barrier("all");
}

// A failure of one communicator is a failure of all. The last rank does `fail` to the communicator of all ranks or to
// its part. All others get an error with its number in the world, in whichever communicator they wait.
absl::Status FailureReachesAll(Communicator& c,
                               const std::function<void(Communicator& world, Communicator& part)>& fail,
                               const std::string& reason) {
  ASSIGN_OR_RETURN(auto part, c.Split(c.rank() % 2, "halves"));
  absl::Status status = c.Barrier("before");
  const int last = c.size() - 1;
  const absl::Time begin = absl::Now();
  if (status.ok() && c.rank() == last) {
    absl::SleepFor(absl::Milliseconds(50));
    fail(c, *part);
  }
  // Some ranks wait in their part, some in the communicator of all ranks.
  Communicator& waits_in = c.rank() % 3 == 0 ? c : *part;
  while (status.ok() && absl::Now() - begin < 2 * kSoon) status = waits_in.Barrier("waiting");
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "failure of a part");
  const std::string message(status.message());
  if (!absl::StrContains(message, "rank " + std::to_string(last) + " on host " + c.host(last)) ||
      !absl::StrContains(message, reason)) {
    return Wrong(c, "failure of a part") << status.ToString();
  }
  EXPECT_THAT_OR_RETURN(!c.Barrier("later").ok() && !part->Barrier("later").ok(), "failure of a part");
  return absl::OkStatus();
}

absl::Status PartsDisagree(Communicator& c) {
  ASSIGN_OR_RETURN(auto part, c.Split(c.rank() == 0 ? 0 : 1, "all but the first"));
  absl::Status status = c.Barrier("before");
  const bool last = c.rank() == c.size() - 1;
  if (status.ok()) status = c.rank() == 0 ? c.Barrier("rank 0 waits") : part->Barrier(last ? "left" : "right");
  if (status.ok()) status = c.Barrier("after");
  const std::string message(status.message());
  if (!absl::StrContains(message, "disagree") || !absl::StrContains(message, "`left`") ||
      !absl::StrContains(message, "rank " + std::to_string(c.size() - 1) + " on host")) {
    return Wrong(c, "parts disagree") << status.ToString();
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ConformanceCase> SplitCases() {
  return {
      {"SplitIntoRowsAndColumns", 1, kNormal, SplitIntoRowsAndColumns},
      {"SplitUnevenly", 1, kNormal, SplitUnevenly},
      {"AbortOfAPartReachesAll", 2, kNormal,
       [](Communicator& c) {
         return FailureReachesAll(
             c, [](Communicator&, Communicator& part) { part.Abort(absl::CancelledError("no more of this")); },
             "no more of this");
       },
       /*waits=*/true},
      {"AbortOfTheWorldReachesParts", 2, kNormal,
       [](Communicator& c) {
         return FailureReachesAll(
             c, [](Communicator& world, Communicator&) { world.Abort(absl::CancelledError("no more at all")); },
             "no more at all");
       },
       /*waits=*/true},
      {"PartsDisagree", 3, kNormal, PartsDisagree, /*waits=*/true},
  };
}

}  // namespace lockstep
