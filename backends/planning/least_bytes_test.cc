#include "backends/planning/least_bytes.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

class LeastBytesTest : public testing::Test {
 protected:
  int Value(uint64_t bytes) {
    Storage storage;
    storage.bytes = bytes;
    return program_.AddStorage(std::move(storage));
  }
  int ViewOf(int id) {
    Storage view = program_.storage(id);
    view.alias_of = id;
    return program_.AddStorage(std::move(view));
  }
  Instruction& Run(bool is_loop, std::vector<int> reads, std::vector<int> writes) {
    Instruction instruction;
    instruction.is_loop = is_loop;
    for (int id : reads) instruction.read.push_back(program_.storage(id).bytes);
    for (const std::vector<int>* ids : {&reads, &writes}) {
      for (int id : *ids) instruction.work.bytes += program_.storage(id).bytes;
    }
    instruction.reads = std::move(reads);
    instruction.writes = std::move(writes);
    program_.instructions.push_back(std::move(instruction));
    return program_.instructions.back();
  }
  void Loop(std::vector<int> reads, std::vector<int> writes) { Run(true, std::move(reads), std::move(writes)); }
  void Product(std::vector<int> reads, std::vector<int> writes) { Run(false, std::move(reads), std::move(writes)); }
  void Result(int id) { program_.outputs.push_back({"y", id}); }

  Program program_;
};

TEST_F(LeastBytesTest, AProductReadsAndWritesAllOnce) {
  const int a = Value(100), b = Value(20), y = Value(3);
  Product({a, b}, {y});
  Result(y);
  EXPECT_EQ(LeastBytes(program_), 123u);
}

// Two loops after each other are one: the value between them is not in memory, and x is read once.
TEST_F(LeastBytesTest, LoopsThatNothingSeparatesAreOne) {
  const int x = Value(100), between = Value(100), y = Value(100);
  Loop({x}, {between});
  Loop({x, between}, {y});
  Result(y);
  EXPECT_EQ(LeastBytes(program_), 200u);
}

// A loop before a product and one after it are two, which both read x and the value between them.
TEST_F(LeastBytesTest, AProductSeparatesLoops) {
  const int x = Value(100), early = Value(10), product = Value(1), late = Value(1000);
  Loop({x}, {early});
  Product({early}, {product});
  Loop({x, early, product}, {late});
  Result(late);
  EXPECT_EQ(LeastBytes(program_), (100u + 10u) + (10u + 1u) + (100u + 10u + 1u + 1000u));
}

// A value that is a result is written, even if a loop of the same level needs it.
TEST_F(LeastBytesTest, ResultsAreWritten) {
  const int x = Value(100), between = Value(10), y = Value(1);
  Loop({x}, {between});
  Loop({between}, {y});
  Result(y);
  Result(ViewOf(between));
  EXPECT_EQ(LeastBytes(program_), 111u);
}

// Of an operand, such as one that is sliced, only the parts count that are read, and no more than all of it.
TEST_F(LeastBytesTest, PartsOfAnOperand) {
  const int x = Value(90), a = Value(30), b = Value(30), c = Value(60);
  for (int part : {a, b}) Run(true, {x}, {part}).read = {30};
  Result(a);
  Result(b);
  EXPECT_EQ(LeastBytes(program_), 60u + 60u);
  Run(true, {x}, {c}).read = {60};
  Result(c);
  EXPECT_EQ(LeastBytes(program_), 90u + 120u);
}

// A loop that two products depend on, the second of which depends on the first, is computed once, before both.
TEST_F(LeastBytesTest, LevelsFollowTheLongestPath) {
  const int x = Value(100), y = Value(10), first = Value(1), second = Value(1), last = Value(5);
  Loop({x}, {y});
  Product({y}, {first});
  Product({y, first}, {second});
  Loop({first, second}, {last});  // one loop, after the second product
  Result(last);
  EXPECT_EQ(LeastBytes(program_), (100u + 10u) + (10u + 1u) + (10u + 1u + 1u) + (1u + 1u + 5u));
}

}  // namespace
}  // namespace lockstep
