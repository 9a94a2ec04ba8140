// The positions of starts and waits of collectives, and which collectives are urgent.

#include "backends/planning/schedule.h"

#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kFew = 16, kMany = kMostUrgentBytes / 4 + 1;  // elements of f32

// Builds a program of kernels and all_reduces over temporaries, for a mesh of two axes.
class ScheduleWriter {
 public:
  ScheduleWriter() { program_.mesh = Mesh({{"data", 2}, {"model", 2}}); }

  int Compute(std::vector<int> reads, int64_t count) {
    Storage result;
    result.name = "v" + std::to_string(program_.storages.size());
    result.bytes = static_cast<uint64_t>(count) * SizeOf(DType::kF32);
    const int id = program_.AddStorage(std::move(result));
    Instruction instruction;
    instruction.reads = std::move(reads);
    instruction.writes = {id};
    program_.instructions.push_back(std::move(instruction));
    return id;
  }

  int AllReduce(int operand, int mesh_axis = 0) {
    return Communicate(CollectiveOp::kAllReduce, operand, program_.storage(operand).bytes, mesh_axis);
  }

  int Communicate(CollectiveOp op, int operand, uint64_t bytes, int mesh_axis = 0) {
    Storage result;
    result.name = "r" + program_.storage(operand).name.substr(1);
    result.bytes = bytes;
    const int id = program_.AddStorage(std::move(result));
    Instruction instruction;
    instruction.kind = Instruction::Kind::kCollective;
    instruction.reads = {operand};
    instruction.writes = {id};
    instruction.collective.op = op;
    instruction.collective.mesh_axis = mesh_axis;
    instruction.collective.axis = program_.mesh.axes()[static_cast<size_t>(mesh_axis)].name;
    program_.instructions.push_back(std::move(instruction));
    return id;
  }

  // Adds this rank's end of a transfer along the lane, as its source or its target.
  void Give(int operand) { AddTransfer({operand}, {}); }
  int Get() {
    Storage result;
    result.name = "g" + std::to_string(program_.storages.size());
    result.bytes = 64;
    const int id = program_.AddStorage(std::move(result));
    AddTransfer({}, {id});
    return id;
  }

  // Returns the schedule, such as "kernel, start 0 urgent, wait 0 urgent".
  std::string Scheduled() {
    ScheduleCollectives(program_);
    std::string text;
    for (const Instruction& instruction : program_.instructions) {
      text += text.empty() ? "" : ", ";
      if (instruction.kind == Instruction::Kind::kKernel || instruction.kind == Instruction::Kind::kCopy) {
        text += instruction.kind == Instruction::Kind::kKernel ? "kernel" : "copy";
        continue;
      }
      text += instruction.kind == Instruction::Kind::kStart ? "start " : "wait ";
      text += std::to_string(instruction.collective.id) + (instruction.collective.is_urgent ? " urgent" : "");
    }
    return text;
  }

  Program& program() { return program_; }

 private:
  void AddTransfer(std::vector<int> reads, std::vector<int> writes) {
    program_.parts_along = "data";
    program_.lanes = {{"data", 0, 1}};
    Instruction instruction;
    instruction.kind = Instruction::Kind::kCollective;
    instruction.reads = std::move(reads);
    instruction.writes = std::move(writes);
    instruction.collective.op = CollectiveOp::kPermute;
    instruction.collective.is_transfer = true;
    instruction.collective.axis = "data";
    instruction.collective.mesh_axis = 2;
    instruction.collective.pairs = {{0, 1}};
    instruction.collective.label = "%v";
    program_.instructions.push_back(std::move(instruction));
  }

  Program program_;
};

TEST(Schedule, ACollectiveStartsWhenItsOperandIsThereAndIsWaitedForWhenItsResultIsRead) {
  ScheduleWriter writer;
  const int gradient = writer.Compute({}, kFew);
  writer.Compute({}, kFew);
  const int reduced = writer.AllReduce(gradient);
  writer.Compute({}, kFew);
  writer.Compute({reduced}, kFew);
  EXPECT_EQ(writer.Scheduled(), "kernel, start 0, kernel, kernel, wait 0, kernel");
}

// The result overwrites the operand.
TEST(Schedule, AReductionInPlaceStartsBehindWhatElseReadsItsOperand) {
  ScheduleWriter writer;
  const int gradient = writer.Compute({}, kFew);
  writer.Compute({gradient}, kFew);
  const int reduced = writer.AllReduce(gradient);
  writer.Compute({}, kFew);
  writer.Compute({reduced}, kFew);
  EXPECT_EQ(writer.Scheduled(), "kernel, kernel, start 0, kernel, wait 0, kernel");
}

// The memory is registered with the communicator of only one axis.
TEST(Schedule, WhatLiesInABucketOfAnotherAxisIsCopied) {
  for (const int second_axis : {0, 1}) {
    ScheduleWriter writer;
    const int slice = writer.Compute({}, kFew);
    const int rows = writer.Communicate(CollectiveOp::kAllGather, slice, 8 * kFew);
    writer.Compute({writer.Communicate(CollectiveOp::kAllGather, rows, 16 * kFew, second_axis)}, kFew);
    EXPECT_EQ(writer.Scheduled(), second_axis == 0 ? "kernel, start 0 urgent, wait 0 urgent, start 1, wait 1, kernel"
                                                   : "kernel, start 0, wait 0, copy, start 1, wait 1, kernel");
  }
}

TEST(Schedule, ReductionsToSlicesAreWaitedForEarlyWhereRanksShareStates) {
  for (const bool shares : {false, true}) {
    ScheduleWriter writer;
    if (shares) writer.program().shared = {{.axis = 0, .part_of = -1}};
    const int slice = writer.Communicate(CollectiveOp::kReduceScatter, writer.Compute({}, kFew), 2 * kFew);
    const int reduced = writer.AllReduce(writer.Compute({}, kMany));
    writer.Compute({slice, reduced}, kFew);
    EXPECT_EQ(writer.Scheduled(), shares ? "kernel, start 0 urgent, kernel, wait 0 urgent, start 1, wait 1, kernel"
                                         : "kernel, start 0, kernel, start 1, wait 0, wait 1, kernel");
  }
}

TEST(Schedule, WhatTheComputationWaitsForIsUrgent) {
  ScheduleWriter writer;
  const int gradient = writer.AllReduce(writer.Compute({}, kMany));
  const int statistics = writer.AllReduce(writer.Compute({}, kFew));
  const int other = writer.AllReduce(writer.Compute({statistics}, kFew));
  writer.Compute({gradient, other}, kFew);
  EXPECT_EQ(writer.Scheduled(),
            "kernel, start 0, kernel, start 1 urgent, wait 1 urgent, kernel, start 2, wait 0, wait 2, kernel");
}

TEST(Schedule, NotWhatIsLarge) {
  ScheduleWriter writer;
  const int large = writer.AllReduce(writer.Compute({}, kMany));
  writer.AllReduce(writer.Compute({large}, kFew));
  EXPECT_EQ(writer.Scheduled(), "kernel, start 0, wait 0, kernel, start 1, wait 1");
}

TEST(Schedule, WhatIsAsLargeAsMayBeIsUrgent) {
  ScheduleWriter writer;
  const int statistics = writer.AllReduce(writer.Compute({}, kMostUrgentBytes / 4));
  writer.AllReduce(writer.Compute({statistics}, kFew));
  EXPECT_EQ(writer.Scheduled(), "kernel, start 0 urgent, wait 0 urgent, kernel, start 1, wait 1");
}

TEST(Schedule, NotBeforeCollectivesOfAnotherAxis) {
  ScheduleWriter writer;
  const int statistics = writer.AllReduce(writer.Compute({}, kFew), /*mesh_axis=*/1);
  writer.AllReduce(writer.Compute({statistics}, kFew), /*mesh_axis=*/0);
  EXPECT_EQ(writer.Scheduled(), "kernel, start 0, wait 0, kernel, start 1, wait 1");
}

// The limit is the number of ranks along the axis, here 2: then the memory of the first is waited for.
TEST(Schedule, WhoGivesWaitsForTheFirstOfThoseUnderWay) {
  ScheduleWriter writer;
  for (int i = 0; i < 4; ++i) writer.Give(writer.Compute({}, kFew));
  EXPECT_EQ(writer.Scheduled(),
            "kernel, start 0, kernel, start 1, kernel, wait 0, start 2, kernel, wait 1, start 3, wait 2, wait 3");
}

TEST(Schedule, WhoGetsStartsAtOnceAndWaitsWhereItReads) {
  ScheduleWriter writer;
  const int first = writer.Get(), second = writer.Get();
  writer.Compute({first}, kFew);
  writer.Compute({second}, kFew);
  EXPECT_EQ(writer.Scheduled(), "start 0, start 1, wait 0, kernel, wait 1, kernel");
}

}  // namespace
}  // namespace lockstep
