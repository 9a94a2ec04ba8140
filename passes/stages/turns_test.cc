// Tests the order of 1F1B by a simulation of the stages, which shares no code with the tested functions.

#include "passes/stages/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <utility>

namespace lockstep::passes {
namespace {

std::string TurnsText(const std::vector<Turn>& turns) {
  std::ostringstream text;
  for (const Turn& turn : turns) text << (text.tellp() > 0 ? " " : "") << turn;
  return text.str();
}

TEST(Turns, AreOneForwardOneBackward) {
  EXPECT_EQ(TurnsText(TurnsOfStage(0, 3, 4)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(TurnsText(TurnsOfStage(1, 3, 4)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(TurnsText(TurnsOfStage(2, 3, 4)), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(Turns, OfFewerMicroBatchesThanStages) {
  EXPECT_EQ(TurnsText(TurnsOfStage(0, 4, 2)), "F0 F1 B0 B1");
  EXPECT_EQ(TurnsText(TurnsOfStage(2, 4, 2)), "F0 F1 B0 B1");
  EXPECT_EQ(TurnsText(TurnsOfStage(3, 4, 2)), "F0 B0 F1 B1");
  EXPECT_EQ(TurnsText(TurnsOfStage(1, 4, 1)), "F0 B0");
}

TEST(Turns, OfOneStageKeepNothing) { EXPECT_EQ(TurnsText(TurnsOfStage(0, 1, 3)), "F0 B0 F1 B1 F2 B2"); }

class AllTurns : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

// Runs each rank in its own order, with a message from each turn to the turns that wait for it, until none can
// continue.
TEST_P(AllTurns, NoStageWaitsForEver) {
  const auto [stages, micro_batches] = GetParam();
  std::set<std::string> messages;  // "F0>1": stage 1 has the input of F0
  std::vector<std::vector<Turn>> left;
  for (int64_t stage = 0; stage < stages; ++stage) left.push_back(TurnsOfStage(stage, stages, micro_batches));
  const auto message = [](const Turn& turn, int64_t to) { return TurnsText({turn}) + ">" + std::to_string(to); };
  int64_t done = 0;
  for (bool any = true; std::exchange(any, false);) {
    for (int64_t stage = stages - 1; stage >= 0; --stage) {  // a different order than the tested function's
      std::vector<Turn>& turns = left[static_cast<size_t>(stage)];
      while (!turns.empty()) {
        const Turn turn = turns.front();
        const bool is_first = turn.is_backward ? stage == stages - 1 : stage == 0;
        if (!is_first && messages.erase(message(turn, stage)) == 0) break;
        messages.insert(message(turn, turn.is_backward ? stage - 1 : stage + 1));
        turns.erase(turns.begin());
        any = true;
        ++done;
      }
    }
  }
  EXPECT_EQ(done, 2 * stages * micro_batches);
}

TEST_P(AllTurns, KeepEachStagesOrderAndComeAfterWhatTheyNeed) {
  const auto [stages, micro_batches] = GetParam();
  std::vector<std::vector<Turn>> seen(static_cast<size_t>(stages));
  const auto has = [&](int64_t stage, const Turn& turn) {
    const std::vector<Turn>& turns = seen[static_cast<size_t>(stage)];
    return std::find(turns.begin(), turns.end(), turn) != turns.end();
  };
  int64_t last = 0;
  for (const auto& [stage, turn, time] : TurnsOfAllStages(stages, micro_batches)) {
    if (turn.is_backward) {
      EXPECT_TRUE(has(stage, {false, turn.micro_batch})) << turn;
      EXPECT_TRUE(stage == stages - 1 || has(stage + 1, turn)) << turn << " of " << stage;
    } else {
      EXPECT_TRUE(stage == 0 || has(stage - 1, turn)) << turn << " of " << stage;
    }
    seen[static_cast<size_t>(stage)].push_back(turn);
    last = std::max(last, time);
  }
  for (int64_t stage = 0; stage < stages; ++stage)
    EXPECT_EQ(seen[static_cast<size_t>(stage)], TurnsOfStage(stage, stages, micro_batches)) << stage;
  EXPECT_EQ(last + 1, 2 * (micro_batches + stages - 1));  // the bubble is 2 * (stages - 1)
}

TEST_P(AllTurns, HoldFewActivations) {
  const auto [stages, micro_batches] = GetParam();
  for (int64_t stage = 0; stage < stages; ++stage) {
    int64_t held = 0, most = 0;
    for (const Turn& turn : TurnsOfStage(stage, stages, micro_batches))
      most = std::max(most, held += turn.is_backward ? -1 : 1);
    EXPECT_EQ(held, 0);
    EXPECT_EQ(most, std::min(stages - stage, micro_batches));
  }
}

std::vector<std::pair<int64_t, int64_t>> Sizes() {
  std::vector<std::pair<int64_t, int64_t>> sizes;
  for (int64_t stages : {1, 2, 3, 4, 7}) {
    for (int64_t micro_batches : {1, 2, 3, 4, 8, 20}) sizes.emplace_back(stages, micro_batches);
  }
  return sizes;
}

INSTANTIATE_TEST_SUITE_P(Sizes, AllTurns, testing::ValuesIn(Sizes()), [](const auto& info) {
  return std::to_string(info.param.first) + "_stages_" + std::to_string(info.param.second) + "_micro_batches";
});

}  // namespace
}  // namespace lockstep::passes
