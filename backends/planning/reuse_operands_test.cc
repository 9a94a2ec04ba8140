// The operands that a kernel's result may overwrite, and each condition that prevents it.

#include "backends/planning/reuse_operands.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// %x is an input; %a, %b and %c are temporaries of the same size; x -> a -> b -> c, where each kernel may overwrite its
// operand.
enum : int { kX, kA, kB, kC };

Instruction KernelOf(std::vector<int> reads, int write, bool may_overwrite = true) {
  Instruction instruction;
  instruction.reads = std::move(reads);
  instruction.writes = {write};
  if (may_overwrite) instruction.may_overwrite = {{0, 0}};
  return instruction;
}

Program ChainOf() {
  Program program;
  for (const char* name : {"x", "a", "b", "c"}) {
    Storage storage;
    storage.kind = program.storages.empty() ? Storage::Kind::kInput : Storage::Kind::kTemporary;
    storage.name = name;
    storage.bytes = 64;
    program.AddStorage(storage);
  }
  for (int from : {kX, kA, kB}) program.instructions.push_back(KernelOf({from}, from + 1));
  return program;
}

TEST(ReuseOperands, AChainLiesInOnePlace) {
  Program program = ChainOf();
  ReuseOperands(program);
  EXPECT_EQ(program.Root(kA), kA);  // an input belongs to the caller
  EXPECT_EQ(program.Root(kB), kA);
  EXPECT_EQ(program.Root(kC), kA);
  EXPECT_EQ(Lifetimes(program)[kA].end(), 2);
}

TEST(ReuseOperands, NotWhereTheKernelReadsElsewhereThanItWrites) {
  Program program = ChainOf();
  program.instructions[1].may_overwrite.clear();
  ReuseOperands(program);
  EXPECT_EQ(program.Root(kB), kB);
  EXPECT_EQ(program.Root(kC), kB);
}

TEST(ReuseOperands, NotWhatIsReadLater) {
  Program program = ChainOf();
  program.instructions.push_back(KernelOf({kA}, program.AddStorage(program.storage(kC)), false));
  ReuseOperands(program);
  EXPECT_EQ(program.Root(kB), kB);
}

// %b could overwrite %a, but another name of %a is read later.
TEST(ReuseOperands, NotWhatIsReadLaterByAnotherName) {
  Program program = ChainOf();
  Storage reshaped = program.storage(kA);
  reshaped.alias_of = kA;
  const int name = program.AddStorage(reshaped);
  program.instructions.push_back(KernelOf({name}, program.AddStorage(program.storage(kC)), false));
  ReuseOperands(program);
  EXPECT_EQ(program.Root(kB), kB);
}

TEST(ReuseOperands, NotWhatTheKernelReadsTwice) {
  Program program = ChainOf();
  program.instructions[1].reads = {kA, kA};
  ReuseOperands(program);
  EXPECT_EQ(program.Root(kB), kB);
}

TEST(ReuseOperands, NotTheBytesOfAnotherSize) {
  Program program = ChainOf();
  program.storage(kB).bytes = 128;
  ReuseOperands(program);
  EXPECT_EQ(program.Root(kB), kB);
  EXPECT_EQ(program.Root(kC), kC);
}

TEST(ReuseOperands, NotWhatHasItsPlace) {
  for (int Storage::* place : {&Storage::bucket, &Storage::state, &Storage::result}) {
    Program program = ChainOf();
    program.storage(kB).*place = 0;
    ReuseOperands(program);
    EXPECT_EQ(program.Root(kB), kB);  // its place is fixed
    EXPECT_EQ(program.Root(kC), kC);  // nothing else uses its place
  }
}

// Two results of a kernel cannot both overwrite one operand.
TEST(ReuseOperands, NotTwice) {
  Program program = ChainOf();
  program.instructions[1].writes = {kB, kC};
  program.instructions[1].may_overwrite = {{0, 0}, {1, 0}};
  program.instructions.pop_back();
  ReuseOperands(program);
  EXPECT_EQ(program.Root(kB), kA);
  EXPECT_EQ(program.Root(kC), kC);
}

}  // namespace
}  // namespace lockstep
