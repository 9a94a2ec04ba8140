// Where collectives start, where they are waited for, and which of them are urgent.

#include "backends/planning/schedule.h"

#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kFew = 16, kMany = kMostUrgentBytes / 4 + 1;  // elements of f32

// A program of kernels and all_reduces over temporaries, of two axes.
class Writer {
 public:
  Writer() { program_.mesh = Mesh({{"data", 2}, {"model", 2}}); }

  int Compute(std::vector<int> reads, int64_t count) {
    const int id = program_.AddStorage({.name = "v" + std::to_string(program_.storages.size()),
                                        .bytes = static_cast<uint64_t>(count) * SizeOf(DType::kF32)});
    Instruction instruction;
    instruction.reads = std::move(reads);
    instruction.writes = {id};
    program_.instructions.push_back(std::move(instruction));
    return id;
  }

  int AllReduce(int operand, int mesh_axis = 0) {
    const int id = program_.AddStorage(
        {.name = "r" + program_.storage(operand).name.substr(1), .bytes = program_.storage(operand).bytes});
    Instruction instruction;
    instruction.kind = Instruction::Kind::kCollective;
    instruction.reads = {operand};
    instruction.writes = {id};
    instruction.collective.mesh_axis = mesh_axis;
    instruction.collective.axis = program_.mesh.axes()[static_cast<size_t>(mesh_axis)].name;
    program_.instructions.push_back(std::move(instruction));
    return id;
  }

  // "kernel, start 0 urgent, wait 0 urgent"
  std::string Scheduled() {
    ScheduleCollectives(program_);
    std::string text;
    for (const Instruction& instruction : program_.instructions) {
      text += text.empty() ? "" : ", ";
      if (instruction.kind == Instruction::Kind::kKernel) {
        text += "kernel";
        continue;
      }
      text += instruction.kind == Instruction::Kind::kStart ? "start " : "wait ";
      text += std::to_string(instruction.collective.id) + (instruction.collective.is_urgent ? " urgent" : "");
    }
    return text;
  }

 private:
  Program program_;
};

TEST(Schedule, ACollectiveStartsWhenItsOperandIsThereAndIsWaitedForWhenItsResultIsRead) {
  Writer writer;
  const int gradient = writer.Compute({}, kFew);
  writer.Compute({}, kFew);
  const int reduced = writer.AllReduce(gradient);
  writer.Compute({}, kFew);
  writer.Compute({reduced}, kFew);
  EXPECT_EQ(writer.Scheduled(), "kernel, start 0, kernel, kernel, wait 0, kernel");
}

TEST(Schedule, WhatTheComputationWaitsForIsUrgent) {
  Writer writer;
  const int gradient = writer.AllReduce(writer.Compute({}, kMany));
  const int statistics = writer.AllReduce(writer.Compute({}, kFew));
  const int other = writer.AllReduce(writer.Compute({statistics}, kFew));
  writer.Compute({gradient, other}, kFew);
  EXPECT_EQ(writer.Scheduled(),
            "kernel, start 0, kernel, start 1 urgent, wait 1 urgent, kernel, start 2, wait 0, wait 2, kernel");
}

TEST(Schedule, NotWhatIsLarge) {
  Writer writer;
  const int large = writer.AllReduce(writer.Compute({}, kMany));
  writer.AllReduce(writer.Compute({large}, kFew));
  EXPECT_EQ(writer.Scheduled(), "kernel, start 0, wait 0, kernel, start 1, wait 1");
}

TEST(Schedule, NotBeforeCollectivesOfAnotherAxis) {
  Writer writer;
  const int statistics = writer.AllReduce(writer.Compute({}, kFew), /*mesh_axis=*/1);
  writer.AllReduce(writer.Compute({statistics}, kFew), /*mesh_axis=*/0);
  EXPECT_EQ(writer.Scheduled(), "kernel, start 0, wait 0, kernel, start 1, wait 1");
}

}  // namespace
}  // namespace lockstep
