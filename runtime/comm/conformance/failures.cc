// Ranks that disagree, abort, come late or leave: all ranks get an error that names the rank.

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

// Returns true if a later call returns the error of an earlier one, perhaps marked as the error of an earlier call.
bool Stays(const absl::Status& first, const absl::Status& later) {
  return later.code() == first.code() && absl::EndsWith(later.message(), first.message());
}

// The last rank starts another first collective. All ranks must get an error with both calls, and keep it.
absl::Status Disagree(Communicator& c, const std::function<absl::Status(Communicator&, bool odd)>& call,
                      const std::vector<std::string>& words) {
  const absl::Time begin = absl::Now();
  const absl::Status status = call(c, c.rank() == c.size() - 1);
  EXPECT_THAT_OR_RETURN(!status.ok(), "disagreement");
  const std::string message(status.message());
  for (const std::string& word : words) {
    if (!absl::StrContains(message, word)) return Wrong(c, "disagreement") << "`" << word << "` is not in: " << message;
  }
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "disagreement");
  EXPECT_THAT_OR_RETURN(Stays(status, c.Barrier("after")), "the error stays");
  return absl::OkStatus();
}

absl::Status DifferentCounts(Communicator& c) {
  return Disagree(
      c,
      [](Communicator& world, bool odd) {
        std::vector<float> x(100);
        return world.Run(Collective::AllReduce(odd ? 99 : 100, DType::kF32, ReduceKind::kSum), x.data(), x.data(),
                         {.label = "bucket 0 (%g1)"});
      },
      {"disagree", "f32[100]", "f32[99]", "bucket 0 (%g1)", "rank " + std::to_string(c.size() - 1) + " on host"});
}

absl::Status DifferentOps(Communicator& c) {
  return Disagree(c,
                  [](Communicator& world, bool odd) {
                    std::vector<float> x(100);
                    if (odd)
                      return world.Run(Collective::Broadcast(100, DType::kF32, 0), x.data(), x.data(), {.label = "x"});
                    return world.Run(Collective::AllReduce(100, DType::kF32, ReduceKind::kSum), x.data(), x.data(),
                                     {.label = "x"});
                  },
                  {"disagree", "all_reduce sum", "broadcast from rank 0"});
}

absl::Status DifferentPairs(Communicator& c) {
  return Disagree(c,
                  [](Communicator& world, bool odd) {
                    std::vector<float> x(100), y(100);
                    const std::vector<RankPair> there = {{0, 1}}, back = {{1, 0}};
                    return world.Run(Collective::Permute(100, DType::kF32, odd ? back : there), x.data(), y.data(),
                                     {.label = "x"});
                  },
                  {"disagree", "permute f32[100] (pairs 0x"});
}

absl::Status DifferentPieces(Communicator& c) {
  return Disagree(c,
                  [](Communicator& world, bool odd) {
                    std::vector<float> x(100), y(100 * world.size());
                    const std::vector<int64_t> counts = {10, 20}, others = {20, 10};
                    return world.Run(Collective::AllGather(odd ? others : counts, DType::kF32), x.data(), y.data(),
                                     {.label = "x"});
                  },
                  {"disagree", "all_gather f32[30] in 2 pieces (counts 0x"});
}

absl::Status DifferentLabels(Communicator& c) {
  return Disagree(c, [](Communicator& world, bool odd) { return world.Barrier(odd ? "left" : "right"); },
                  {"disagree", "`left`", "`right`"});
}

// Calls that move no data: no rank continues before all calls have been compared, for any number of hosts.
absl::Status DifferentCallsThatMoveNothing(Communicator& c, int64_t count, bool compared_only) {
  return Disagree(c,
                  [&](Communicator& world, bool odd) {
                    return world.Run(
                        Collective::AllReduce(count, DType::kF32, odd ? ReduceKind::kMax : ReduceKind::kSum), nullptr,
                        nullptr, {.label = "x", .compared_only = compared_only});
                  },
                  {"disagree", "all_reduce sum", "all_reduce max", "rank " + std::to_string(c.size() - 1)});
}

// All ranks make the same calls, but the evidence of the last rank's second call differs.
absl::Status DifferentEvidence(Communicator& c, uint64_t Communicator::Evidence::* field,
                               const std::vector<std::string>& words) {
  Communicator::Evidence evidence{.program = 0x12,
                                  .assignments = 3,
                                  .inputs = 0xfedcba9876543210,
                                  .states = 9,
                                  .settings = 5,
                                  .assigned = {"w, b"},
                                  .set = {"rate=0.5"}};
  float x = 1;
  const absl::Time begin = absl::Now();
  absl::Status status =
      c.Run(Collective::AllReduce(1, DType::kF32, ReduceKind::kSum), &x, &x, {.label = "first", .evidence = evidence});
  const int last = c.size() - 1;
  if (c.rank() == last) {
    evidence.*field = 0;
    evidence.assigned = evidence.set = {};
  }
  // A slow rank may get the error of a quick rank's second call in its first, because an error reaches all ranks.
  if (status.ok()) {
    EXPECT_THAT_OR_RETURN(x == static_cast<float>(c.size()), "equal evidence");
    status = c.Run(Collective::AllReduce(1, DType::kF32, ReduceKind::kSum), &x, &x,
                   {.label = "bucket 0 (%g1)", .evidence = evidence});
  }
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "evidence");
  const std::string message(status.message());
  if (!absl::IsFailedPrecondition(status)) return Wrong(c, "evidence") << status.ToString();
  std::vector<std::string> expected = words;
  expected.push_back("rank " + std::to_string(last) + " on host " + c.host(last));
  expected.push_back("all_reduce sum f32[1] `bucket 0 (%g1)`");
  for (const std::string& word : expected) {
    if (!absl::StrContains(message, word)) return Wrong(c, "evidence") << "`" << word << "` is not in: " << message;
  }
  EXPECT_THAT_OR_RETURN(Stays(status, c.Barrier("after")), "the error stays");
  return absl::OkStatus();
}

// Only the first 95 bytes of a label count.
absl::Status LongLabels(Communicator& c, size_t equal_bytes) {
  const std::string label = std::string(equal_bytes, 'x') + std::string(1, static_cast<char>('a' + c.rank()));
  if (equal_bytes >= 95) return c.Barrier(label);
  return Disagree(c, [&](Communicator& world, bool) { return world.Barrier(label); },
                  {"disagree", label.substr(0, 94)});
}

absl::Status AbortReachesPeers(Communicator& c) {
  RETURN_IF_ERROR(c.Barrier("before"));
  const int culprit = c.size() - 1;
  std::vector<float> x(300000, 1.f);
  absl::Status status;
  const absl::Time begin = absl::Now();
  if (c.rank() == culprit) {
    EXPECT_THAT_OR_RETURN(c.CheckPeers().ok(), "before the abort");
    absl::SleepFor(absl::Milliseconds(100));
    c.Abort(absl::InvalidArgumentError("label 11 is out of range"));
    c.Abort(absl::InvalidArgumentError("only the first abort counts"));
    status = c.Barrier("after");
  } else {
    status =
        c.Run(Collective::AllReduce(300000, DType::kF32, ReduceKind::kSum), x.data(), x.data(), {.label = "bucket 1"});
  }
  EXPECT_THAT_OR_RETURN(!status.ok() && absl::Now() - begin < kSoon, "abort");
  const std::string message(status.message());
  if (!absl::StrContains(message, "rank " + std::to_string(culprit) + " on host " + c.host(culprit)) ||
      !absl::StrContains(message, "label 11 is out of range")) {
    return Wrong(c, "abort") << message;
  }
  EXPECT_THAT_OR_RETURN(Stays(status, c.Barrier("later")), "abort stays");
  EXPECT_THAT_OR_RETURN(absl::StrContains(c.CheckPeers().message(), "label 11 is out of range"), "checked peers");
  return absl::OkStatus();
}

// Rank `late` does not arrive in time. All ranks get an error, and no other rank is blamed.
absl::Status LateRankIsNamed(Communicator& c, int late) {
  RETURN_IF_ERROR(c.Barrier("before"));
  const absl::Time begin = absl::Now();
  if (c.rank() == late) absl::SleepFor(Late());
  const absl::Status status = c.Barrier("bucket 2");
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "timeout");
  const std::string message(status.message());
  const size_t blame = message.find(" for rank " + std::to_string(late) + " on host " + c.host(late) + ": ");
  if (!absl::IsDeadlineExceeded(status) || blame == std::string::npos || absl::StrContains(message, ';') ||
      !absl::StrContains(message, "barrier `bucket 2`")) {
    return Wrong(c, "timeout") << status.ToString();
  }
  absl::SleepFor(begin + Late() - absl::Now());  // all ranks end this together
  return absl::OkStatus();
}

// A rank that got an error, or has called Abort, may use and free its operands: no rank writes to them any more.
absl::Status OperandsAreFreeAfterAnAbort(Communicator& c) {
  constexpr int64_t kCount = 100000;
  std::vector<Operand> operands;
  for (int b = 0; b < 6; ++b) {
    ASSIGN_OR_RETURN(Operand operand, Operand::Make(c, b % 2 == 0, kCount * sizeof(float)));
    operands.push_back(std::move(operand));
  }
  absl::Status status = c.Barrier("before");  // a slow rank may get the error of a quick rank's next call here
  std::vector<Communicator::Ticket> tickets;
  for (Operand& operand : operands) {
    if (!status.ok()) break;
    auto ticket = c.Start(Collective::AllReduce(kCount, DType::kF32, ReduceKind::kSum), operand.data(), operand.data(),
                          {.label = "bucket"});
    if (!ticket.ok()) break;
    tickets.push_back(*ticket);
  }
  if (c.rank() == 0) {
    absl::SleepFor(absl::Microseconds(absl::ToUnixMicros(absl::Now()) % 1000));
    c.Abort(absl::CancelledError("enough"));
  }
  for (size_t i = 0; c.rank() != 0 && i < tickets.size() && status.ok(); ++i) status = c.Wait(tickets[i]);
  if (status.ok()) status = c.Barrier("after");
  EXPECT_THAT_OR_RETURN(!status.ok() && absl::StrContains(status.message(), "enough"), "abort");
  const std::vector<std::byte> own(kCount * sizeof(float), std::byte{0x77});
  for (Operand& operand : operands) std::memcpy(operand.data(), own.data(), own.size());
  absl::SleepFor(absl::Milliseconds(20));
  for (Operand& operand : operands) {
    EXPECT_THAT_OR_RETURN(std::memcmp(operand.data(), own.data(), own.size()) == 0,
                          "somebody wrote into an operand after the abort");
  }
  return absl::OkStatus();
}

absl::Status RankThatLeavesIsNamed(Communicator& c) {
  const int gone = c.size() - 1;
  absl::Status status = c.Barrier("before");
  if (c.rank() == gone) return status;  // and the driver destroys its communicator
  const absl::Time begin = absl::Now();
  // A slow rank may get the error of a quick rank's second barrier in its first, because an error reaches all ranks.
  if (status.ok()) status = c.Barrier("bucket 3");
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "leave");
  if (status.ok() || !absl::StrContains(status.message(), "rank " + std::to_string(gone) + " on host") ||
      !absl::StrContains(status.message(), "has left")) {
    return Wrong(c, "leave") << status.ToString();
  }
  return absl::OkStatus();
}

// Destroying a communicator without waiting for a started collective is an abort.
absl::Status LeavingInFlightIsAnAbort(Communicator& c) {
  thread_local std::vector<float> x;  // peers may use it until the driver destroys the communicator
  x.assign(10, 1.f);
  // A rank that is still creating its communicator would get the abort there.
  absl::Status status = c.Barrier("all have a communicator");
  if (c.rank() == c.size() - 1) {
    RETURN_IF_ERROR(status);
    return c.Start(Collective::AllReduce(10, DType::kF32, ReduceKind::kSum), x.data(), x.data(), {.label = "x"})
        .status();
  }
  // Timing decides which of these gets the abort.
  if (status.ok()) {
    status = c.Run(Collective::AllReduce(10, DType::kF32, ReduceKind::kSum), x.data(), x.data(), {.label = "x"});
  }
  if (status.ok()) status = c.Barrier("y");
  EXPECT_THAT_OR_RETURN(!status.ok() && absl::StrContains(status.message(), "in flight"), "in flight");
  return absl::OkStatus();
}

}  // namespace

std::vector<ConformanceCase> FailureCases() {
  using Evidence = Communicator::Evidence;
  const Communicator::Options hurried{.timeout = kHurry};
  std::vector<ConformanceCase> cases = {
      {"DifferentCounts", 2, kNormal, DifferentCounts},
      {"DifferentOps", 2, kNormal, DifferentOps},
      {"DifferentPairs", 2, kNormal, DifferentPairs},
      {"DifferentPieces", 2, kNormal, DifferentPieces},
      {"DifferentLabels", 2, kNormal, DifferentLabels},
      {"LongLabelsThatDiffer", 2, kNormal, [](Communicator& c) { return LongLabels(c, 94); }},
      {"LongLabelsThatEndDifferently", 2, kNormal, [](Communicator& c) { return LongLabels(c, 95); }},
      {"DifferentCallsThatAreCompared", 2, kNormal,
       [](Communicator& c) { return DifferentCallsThatMoveNothing(c, 100, /*compared_only=*/true); }},
      {"DifferentCallsWithoutElements", 2, kNormal,
       [](Communicator& c) { return DifferentCallsThatMoveNothing(c, 0, /*compared_only=*/false); }},
      {"DifferentPrograms", 2, kNormal,
       [](Communicator& c) {
         return DifferentEvidence(c, &Evidence::program,
                                  {"rank " + std::to_string(c.size() - 1) + " calls no program there"});
       }},
      {"DifferentAssignments", 2, kNormal,
       [](Communicator& c) {
         return DifferentEvidence(c, &Evidence::assignments,
                                  {"different states were assigned on them (rank ",
                                   ": w, b; rank " + std::to_string(c.size() - 1) + ": none)"});
       }},
      {"DifferentSettings", 2, kNormal,
       [](Communicator& c) {
         return DifferentEvidence(c, &Evidence::settings,
                                  {"settings have different values on them (set on rank ",
                                   ": rate=0.5; on rank " + std::to_string(c.size() - 1) + ": none)"});
       }},
      {"DifferentInputs", 2, kNormal,
       [](Communicator& c) {
         return DifferentEvidence(
             c, &Evidence::inputs,
             {"inputs that are replicated have different contents (0xfedcba9876543210 and 0x0000000000000000)"});
       }},
      {"DifferentStates", 2, kNormal,
       [](Communicator& c) {
         return DifferentEvidence(c, &Evidence::states,
                                  {"replicas of the states differ (0x0000000000000009 and 0x0000000000000000)"});
       }},
      {"AbortReachesPeers", 2, kNormal, AbortReachesPeers},
      {"LateFirstRankIsNamed", 2, hurried, [](Communicator& c) { return LateRankIsNamed(c, 0); }},
      {"LateMiddleRankIsNamed", 3, hurried, [](Communicator& c) { return LateRankIsNamed(c, c.size() / 2); }},
      {"LateLastRankIsNamed", 2, hurried, [](Communicator& c) { return LateRankIsNamed(c, c.size() - 1); }},
      {"RankThatLeavesIsNamed", 2, kNormal, RankThatLeavesIsNamed},
      {"LeavingInFlightIsAnAbort", 2, kNormal, LeavingInFlightIsAnAbort},
  };
  for (ConformanceCase& test : cases) test.waits = true;
  cases.push_back({"OperandsAreFreeAfterAnAbort", 1, kNormal, OperandsAreFreeAfterAnAbort});
  return cases;
}

}  // namespace lockstep
