#include "runtime/execution/reduced_tensors.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

class NothingRun : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext&) override { return absl::OkStatus(); }
};

constexpr int32_t kArena = 0, kBucket = 1, kState = 2;
const BufferSlice kA{kBucket, 0, 64}, kB{kBucket, 64, 128};

StepInfo Kernel(std::vector<StepOperand> reads, std::vector<StepOperand> writes) {
  StepInfo info;
  info.reads = std::move(reads);
  info.writes = std::move(writes);
  return info;
}

StepInfo Collective(StepKind kind, CollectiveOp op, int id, std::vector<StepOperand> operands) {
  StepInfo info;
  info.kind = kind;
  info.collective.emplace().op = op;
  info.collective->id = id;
  (kind == StepKind::kStart ? info.reads : info.writes) = std::move(operands);
  return info;
}

StepList ListOf(const std::vector<StepInfo>& infos) {
  StepList steps;
  for (const StepInfo& info : infos) steps.push_back(std::make_unique<NothingRun>(info));
  return steps;
}

TEST(ReducedTensors, KnowsWhoComputesAndUsesThem) {
  const BufferSlice x{kArena, 0, 256}, w{kState, 0, 64}, v{kState, 64, 128};
  const StepList steps = ListOf({
      Kernel({}, {{"x", "", x}, {"other", "", kA}}),  // the earlier contents, before %a
      Kernel({{"x", "", x}}, {{"a", "", kA}}),
      Kernel({{"x", "", x}}, {{"b", "", kB}}),
      Kernel({{"x", "", x}}, {{"y", "", x}}),
      Collective(StepKind::kStart, CollectiveOp::kAllReduce, 7, {{"a", "", kA}, {"b", "", kB}}),
      Kernel({{"x", "", x}}, {{"z", "", x}}),
      Collective(StepKind::kWait, CollectiveOp::kAllReduce, 7, {{"a.1", "", kA}, {"b.1", "", kB}}),
      Kernel({{"b.1", "", kB}}, {{"v", "", v}}),
      Kernel({{"a.1", "", kA}, {"b.1", "", kB}}, {{"w", "", w}}),  // counts for the first
      Kernel({{"b.1", "", kB}}, {{"v", "", v}}),
      Kernel({}, {{"late", "", kA}}),
  });
  EXPECT_THAT(ReducedTensors(steps),
              ElementsAre(ReducedTensor{"a", 64, 1, 6, {8}}, ReducedTensor{"b", 128, 2, 6, {7, 9}}));
}

TEST(ReducedTensors, InputsAreComputedByNobody) {
  const StepList steps = ListOf({
      Collective(StepKind::kStart, CollectiveOp::kReduceScatter, 0, {{"x", "", kB}}),
      Collective(StepKind::kWait, CollectiveOp::kReduceScatter, 0, {{"x.1", "", kA}}),
  });
  EXPECT_THAT(ReducedTensors(steps), ElementsAre(ReducedTensor{"x", 128, -1, 1, {}}));
}

TEST(ReducedTensors, WhatOnlyMovesIsNone) {
  const StepList steps = ListOf({
      Kernel({}, {{"a", "", kA}}),
      Collective(StepKind::kStart, CollectiveOp::kAllGather, 0, {{"a", "", kA}}),
      Collective(StepKind::kWait, CollectiveOp::kAllGather, 0, {{"a.1", "", kB}}),
  });
  EXPECT_TRUE(ReducedTensors(steps).empty());
}

}  // namespace
}  // namespace lockstep
