#include "runtime/execution/part_order.h"

#include <memory>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/in_process.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<Lane> kLanes = {{"stage", 0, 1}, {"stage", 1, 0}};

std::string MessageOf(const std::vector<std::string>& parts, const std::vector<Lane>& lanes = kLanes) {
  return std::string(CheckParts(parts, lanes).message());
}

// Both send first: a start waits for nothing.
TEST(PartOrder, PartsThatFitTogetherDo) {
  EXPECT_EQ(MessageOf({"start 0 0 %a\nwait 0\nstart 1 1 %b\nwait 1\n", "start 0 0 %a\nstart 1 1 %b\nwait 0\nwait 1\n"}),
            "");
  // Collectives along other axes, such as a sum over replicas of a stage, do not concern the other parts.
  EXPECT_EQ(MessageOf({"start 0 -2 %g\nwait 0\nstart 1 -1 %l\nwait 1\n", "start 0 -1 %l\nwait 0\n"}), "");
  EXPECT_EQ(MessageOf({"", ""}), "");
}

TEST(PartOrder, TheFirstTransferThatDiffersIsNamed) {
  EXPECT_THAT(MessageOf({"start 0 0 %a\nstart 1 0 %b\n", "start 0 0 %a\nstart 1 0 %c\n"}),
              AllOf(HasSubstr("transfer 1 of stage 0 to 1"), HasSubstr("part 0: %b"), HasSubstr("part 1: %c")));
  EXPECT_THAT(MessageOf({"start 0 0 %a\n", ""}), AllOf(HasSubstr("part 0: %a"), HasSubstr("part 1: (nothing)")));
  EXPECT_THAT(MessageOf({"start 0 -1 %a\n", "start 0 -1 %b\n"}), HasSubstr("transfer 0 of all parts"));
  EXPECT_THAT(MessageOf({"start 0 -1 %a\n", "start 0 -1 %a\n", "start 0 -1 %b\n"}), HasSubstr("part 2: %b"));
}

// Each part waits for data that the other sends after its own wait.
TEST(PartOrder, PartsThatWouldWaitForEverAreNamed) {
  EXPECT_THAT(
      MessageOf({"start 0 1 %b\nwait 0\nstart 1 0 %a\nwait 1\n", "start 0 0 %a\nwait 0\nstart 1 1 %b\nwait 1\n"}),
      AllOf(HasSubstr("for ever"), HasSubstr("part 0 waits for %b"), HasSubstr("part 1 waits for %a")));
  // The sender waits until its memory is free, but the receiver receives it only after a later transfer.
  EXPECT_THAT(
      MessageOf({"start 0 0 %a\nwait 0\nstart 1 -1 %l\nwait 1\n", "start 0 -1 %l\nwait 0\nstart 1 0 %a\nwait 1\n"}),
      AllOf(HasSubstr("part 0 waits for %a"), HasSubstr("part 1 waits for %l")));
  // A wait for a call of all parts lasts until the last part has started it, which waits for the first part.
  EXPECT_THAT(
      MessageOf({"start 0 -1 %l\nwait 0\nstart 1 0 %a\nwait 1\n", "start 0 -1 %l\nwait 0\n",
                 "start 1 0 %a\nwait 1\nstart 0 -1 %l\nwait 0\n"},
                {{"stage", 0, 2}}),
      AllOf(HasSubstr("part 0 waits for %l"), HasSubstr("part 1 waits for %l"), HasSubstr("part 2 waits for %a")));
}

class NothingSent : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext&) override { return absl::OkStatus(); }
};

// Returns a program of one part, for two ranks, that starts these of its collectives.
Executable ProgramOf(const std::vector<int>& order) {
  Executable executable;
  executable.name = "step";
  executable.mesh = Mesh({{"stage", 1}, {"data", 2}});
  executable.parts_along = "stage";
  for (const int id : order) {
    StepInfo info;
    info.kind = StepKind::kStart;
    info.collective.emplace();
    info.collective->id = id;
    info.collective->axis = "data";
    executable.steps.push_back(std::make_unique<NothingSent>(std::move(info)));
  }
  return executable;
}

TEST(PartOrder, RanksThatHaveTheSamePartHaveOneOrder) {
  for (const bool is_same : {true, false}) {
    const auto world = *CreateInProcess(2);
    const Executable first = ProgramOf({0, 1}), second = ProgramOf(is_same ? std::vector{0, 1} : std::vector{1, 0});
    absl::Status of_second;
    std::thread other([&] { of_second = AgreeOnParts(*world[1], second); });
    const absl::Status of_first = AgreeOnParts(*world[0], first);
    other.join();
    for (const absl::Status& status : {of_first, of_second}) {
      EXPECT_EQ(status.ok(), is_same) << status;
      if (is_same) continue;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("ranks 0 and 1 of @step have the same part of it, stage 0"),
                        HasSubstr("communicate in different orders")));
    }
  }
}

}  // namespace
}  // namespace lockstep
