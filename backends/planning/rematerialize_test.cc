// Programs of small kernels that hash their operands: whatever is recomputed, in an arena of any size, the results have
// the same bits.

#include "backends/planning/rematerialize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "backends/planning/buffer_plan.h"
#include "backends/planning/certificate.h"
#include "backends/planning/emit_steps.h"
#include "backends/planning/recompute_plan.h"
#include "backends/planning/reuse_operands.h"
#include "bazel/num_cases.h"
#include "gtest/gtest.h"
#include "runtime/device.h"

namespace lockstep {
namespace {

// --- Programs --------------------------------------------------------------------------------------------------------

// Every write is a hash of all reads, of the kernel and of the write's number, in whole words.
lockstep::Kernel Mixing(std::vector<uint64_t> reads, std::vector<uint64_t> writes, uint64_t salt,
                        uint64_t scratch = 0) {
  lockstep::Kernel kernel;
  kernel.name = "mix";
  kernel.scratch_bytes = scratch;
  kernel.run = [=](const KernelArgs& args) {
    uint64_t sum = salt;
    for (size_t r = 0; r < reads.size(); ++r) {
      for (uint64_t i = 0; i < reads[r] / 8; ++i) sum = sum * 6364136223846793005u + args.read<uint64_t>(r)[i];
    }
    if (scratch > 0) std::memset(args.scratch, 0x5a, scratch);
    for (size_t w = 0; w < writes.size(); ++w) {
      for (uint64_t i = 0; i < writes[w] / 8; ++i) args.write<uint64_t>(w)[i] = sum + w * 977 + i;
    }
    return absl::OkStatus();
  };
  return kernel;
}

class Writer {
 public:
  int Input(uint64_t bytes) {
    program.inputs.push_back({"x", {}, {DType::kI64, Shape({static_cast<int64_t>(bytes / 8)})}, {}, -1});
    return Add(Storage::Kind::kInput, bytes, static_cast<int>(program.inputs.size()) - 1);
  }
  int State(uint64_t bytes) {
    program.states.push_back({"s", {}, {DType::kI64, Shape({static_cast<int64_t>(bytes / 8)})}, {}, -1});
    return Add(Storage::Kind::kState, bytes, static_cast<int>(program.states.size()) - 1);
  }
  int Temporary(uint64_t bytes) { return Add(Storage::Kind::kTemporary, bytes, -1); }
  int AliasOf(int id) {
    Storage alias = program.storage(id);
    alias.alias_of = id;
    return program.AddStorage(std::move(alias));
  }
  int Result(uint64_t bytes) {
    program.results.push_back({"y", {}, {DType::kI64, Shape({static_cast<int64_t>(bytes / 8)})}, {}, -1});
    const int id = Temporary(bytes);
    program.storage(id).result = static_cast<int>(program.results.size()) - 1;
    return id;
  }
  // Adds the next value of a state, in the state's buffer.
  int Next(int state, uint64_t bytes) {
    const int id = Temporary(bytes);
    program.storage(id).state = program.storage(state).index;
    return id;
  }
  Instruction& Run(std::vector<int> reads, std::vector<int> writes, double flops = 0, uint64_t scratch = 0) {
    std::vector<uint64_t> of_reads, of_writes;
    for (int id : reads) of_reads.push_back(program.storage(id).bytes);
    for (int id : writes) of_writes.push_back(program.storage(id).bytes);
    Instruction instruction;
    instruction.kernel = Mixing(of_reads, of_writes, program.instructions.size() + 1, scratch);
    instruction.work.operations = flops;
    instruction.reads = std::move(reads);
    instruction.writes = std::move(writes);
    program.instructions.push_back(std::move(instruction));
    return program.instructions.back();
  }

  Program program;

 private:
  int Add(Storage::Kind kind, uint64_t bytes, int index) {
    Storage storage;
    storage.kind = kind;
    storage.name = "v" + std::to_string(program.storages.size());
    storage.dtype = DType::kI64;
    storage.bytes = bytes;
    storage.index = index;
    return program.AddStorage(std::move(storage));
  }
};

struct Outcome {
  uint64_t arena = 0;
  std::map<std::string, std::vector<std::byte>> contents;  // of results and states, by kind and number
  size_t instructions = 0;
};

// Plans and runs the program, in memory that is filled with other values.
Outcome RunProgram(Program program) {
  Outcome outcome;
  outcome.instructions = program.instructions.size();
  ReuseOperands(program);
  const BufferPlan plan = PlanBuffers(program);
  const StepList steps = EmitSteps(program, plan);
  const auto certificate = CertifyOrder(steps, plan.buffers, Mesh());
  EXPECT_TRUE(certificate.ok()) << certificate.status();
  std::vector<std::vector<uint64_t>> memory;
  std::vector<std::byte*> addresses;
  for (const Buffer& buffer : plan.buffers) {
    const bool is_given = buffer.kind == BufferKind::kInput || buffer.kind == BufferKind::kState;
    memory.emplace_back((buffer.bytes + 7) / 8 + 1, is_given ? 42 + memory.size() : 0xbadbadbadbadbad);
    addresses.push_back(reinterpret_cast<std::byte*>(memory.back().data()));
    if (buffer.kind == BufferKind::kArena) outcome.arena += buffer.bytes;
  }
  const std::unique_ptr<Device> device = CreateHostDevice();
  StepContext context(addresses, *device, {}, {});
  for (const auto& step : steps) EXPECT_TRUE(step->Run(context).ok());
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.kind != BufferKind::kResult && buffer.kind != BufferKind::kState) continue;
    outcome.contents[std::to_string(i) + buffer.ToString()] = {addresses[i], addresses[i] + buffer.bytes};
  }
  return outcome;
}

// Returns a forward pass a[i] = f(a[i-1]) and a backward pass d[i] = g(a[i], d[i+1]), where one result reads all d.
Program Chain(int length, uint64_t bytes = 640, double flops = 0) {
  Writer w;
  std::vector<int> a = {w.Input(bytes)};
  for (int i = 0; i < length; ++i) {
    const int next = w.Temporary(bytes);
    w.Run({a.back()}, {next}, flops);
    a.push_back(next);
  }
  int d = w.Temporary(bytes);
  w.Run({a.back()}, {d});
  for (int i = length; i > 0; --i) {
    const int next = i > 1 ? w.Temporary(bytes) : w.Result(bytes);
    w.Run({a[static_cast<size_t>(i)], d}, {next});
    d = next;
  }
  return std::move(w.program);
}

// --- Tests -----------------------------------------------------------------------------------------------------------

TEST(Rematerialize, WhatFitsStaysAsItIs) {
  const Outcome whole = RunProgram(Chain(10));
  Program program = Chain(10);
  const Rematerialization done = Rematerialize(program, whole.arena);
  EXPECT_TRUE(done.fits);
  EXPECT_EQ(done.work.kernels, 0);
  EXPECT_EQ(done.work.all_kernels, 21);
  EXPECT_EQ(done.least, whole.arena);
  EXPECT_EQ(RunProgram(std::move(program)).instructions, whole.instructions);
}

TEST(Rematerialize, FewerBytesCostMoreKernelsAndNoBit) {
  const Outcome whole = RunProgram(Chain(24));
  EXPECT_GE(whole.arena, 24 * 640u);
  int64_t before = 0;
  for (const double share : {0.9, 0.7, 0.5, 0.4}) {
    Program program = Chain(24);
    const auto limit = static_cast<uint64_t>(share * static_cast<double>(whole.arena));
    const Rematerialization done = Rematerialize(program, limit);
    ASSERT_TRUE(done.fits) << share;
    const Outcome less = RunProgram(std::move(program));
    EXPECT_LE(less.arena, limit);
    EXPECT_EQ(less.contents, whole.contents);
    EXPECT_EQ(static_cast<int64_t>(less.instructions - whole.instructions), done.work.kernels);
    EXPECT_EQ(done.work.all_kernels, static_cast<int64_t>(whole.instructions));
    EXPECT_GE(done.work.kernels, before);
    EXPECT_LE(done.work.kernels, 3 * 24);
    before = done.work.kernels;
  }
  EXPECT_GT(before, 10);
}

// A chain needs about twice the root of its length (Chen et al., 2016), with one more kernel for each value. The walk
// finds an arena between the logarithm and three times the root.
TEST(Rematerialize, TheLeastIsSmallAndIsFoundAgain) {
  Program program = Chain(100);
  const Rematerialization least = Rematerialize(program, 1);
  EXPECT_FALSE(least.fits);
  EXPECT_LE(least.least, 30 * 640u);
  const Outcome found = RunProgram(std::move(program));
  EXPECT_EQ(found.arena, least.least);
  EXPECT_EQ(found.contents, RunProgram(Chain(100)).contents);
  Program again = Chain(100);
  EXPECT_TRUE(Rematerialize(again, least.least).fits);
  EXPECT_LE(RunProgram(std::move(again)).arena, least.least);
}

// %a is expensive, %b is cheap, and one of them must be dropped.
TEST(Rematerialize, TheCheapOneGoes) {
  Writer w;
  const int x = w.Input(640), a = w.Temporary(640), b = w.Temporary(640), c = w.Temporary(640), d = w.Temporary(640);
  w.Run({x}, {a}, /*flops=*/1e9);
  w.Run({x}, {b}).kernel.constant_bytes = 4096;
  w.Run({a, b}, {c});
  w.Run({c}, {d}, 0, /*scratch=*/640);
  w.Run({d, a, b}, {w.Result(640)});
  Program program = std::move(w.program);
  const Rematerialization done = Rematerialize(program, 4 * 640);
  EXPECT_TRUE(done.fits);
  EXPECT_EQ(done.work.kernels, 1);
  EXPECT_EQ(done.work.flops, 0);
  EXPECT_EQ(done.work.all_flops, 1e9);
  EXPECT_EQ(done.work.bytes, 1280);
  ASSERT_EQ(program.instructions.size(), 6u);
  EXPECT_EQ(program.instructions[4].reads, std::vector<int>{x});
  EXPECT_EQ(program.storage(program.instructions[4].writes[0]).name, "v2'");
  EXPECT_EQ(program.instructions[5].reads, (std::vector<int>{d, a, program.instructions[4].writes[0]}));
  EXPECT_EQ(program.KernelsConstantBytes(), 4096u);  // both runs share them
}

// Its kernel reads state s, whose next value overwrites it before the last use, so it cannot be recomputed.
TEST(Rematerialize, NotWhatWasComputedOfAnOldState) {
  const auto make = [](bool late) {
    Writer w;
    const int s = w.State(640), x = w.Input(640), a = w.Temporary(640), b = w.Temporary(640), c = w.Temporary(640);
    w.Run({s, x}, {a});
    w.Run({a}, {b});
    if (!late) w.Run({b}, {w.Next(s, 640)});
    w.Run({b}, {c}, 0, 640);
    w.Run({c, a}, {w.Result(640)});
    if (late) w.Run({x}, {w.Next(s, 640)});
    return std::move(w.program);
  };
  for (const bool late : {false, true}) {
    Program program = make(late);
    const Rematerialization done = Rematerialize(program, 3 * 640);
    EXPECT_EQ(done.fits, late);
    EXPECT_EQ(RunProgram(std::move(program)).contents, RunProgram(make(late)).contents);
  }
}

// A kernel with two results, of which one is needed again under another name.
TEST(Rematerialize, OneResultOfTwoByAnotherName) {
  const auto make = [] {
    Writer w;
    const int x = w.Input(640), a = w.Temporary(640), b = w.Temporary(640), c = w.Temporary(640), d = w.Temporary(640);
    const int other = w.AliasOf(w.AliasOf(a));
    w.Run({x}, {a, b});
    w.Run({other, b}, {c});
    w.Run({c}, {d}, 0, 1280);
    const int e = w.Temporary(640);
    w.Run({d, b}, {e});
    w.Run({e, other}, {w.Result(640)});
    return std::move(w.program);
  };
  Program program = make();
  EXPECT_FALSE(Rematerialize(program, 3 * 640).fits);
  program = make();
  EXPECT_TRUE(Rematerialize(program, 4 * 640).fits);
  const Outcome less = RunProgram(std::move(program)), whole = RunProgram(make());
  EXPECT_EQ(less.contents, whole.contents);
  EXPECT_LT(less.arena, whole.arena);
}

// Operands in flight do not move, and a collective runs only once.
TEST(Rematerialize, NotWhatACollectiveTouches) {
  Writer w;
  const int x = w.Input(640), a = w.Temporary(640), b = w.Temporary(640), c = w.Temporary(640), d = w.Temporary(640);
  const int e = w.Temporary(640);
  w.Run({x}, {a});
  Instruction start;
  start.kind = Instruction::Kind::kStart;
  start.reads = {a};
  start.writes = {b};
  w.program.instructions.push_back(std::move(start));
  w.Run({x}, {c});
  w.Run({c}, {d});
  w.Run({d}, {e}, 0, 640);
  Instruction wait;
  wait.kind = Instruction::Kind::kWait;
  wait.reads = {a};
  wait.writes = {b};
  w.program.instructions.push_back(std::move(wait));
  w.Run({b, c, e}, {w.Result(640)});
  const RecomputeFacts facts(w.program);
  for (int id : {a, b}) EXPECT_FALSE(facts.value(facts.ValueOf(id)).can_be_dropped);
  EXPECT_TRUE(facts.value(facts.ValueOf(c)).can_be_dropped);
  ASSERT_TRUE(Rematerialize(w.program, 5 * 640).fits);
  int collectives = 0;
  for (const Instruction& each : w.program.instructions) collectives += each.kind != Instruction::Kind::kKernel;
  EXPECT_EQ(collectives, 2);
}

// A value computed from a bucket is not recomputed either: the bucket holds a sum by then.
TEST(Rematerialize, NotWhatWasComputedInABucket) {
  Writer w;
  const int x = w.Input(640), a = w.Temporary(640), b = w.Temporary(640);
  w.program.storage(a).bucket = 0;
  w.Run({x}, {a});
  w.Run({a}, {b});
  w.Run({b}, {w.Temporary(640)});
  w.Run({b}, {w.Result(640)});
  const RecomputeFacts facts(w.program);
  EXPECT_EQ(facts.ValueOf(a), -1);
  EXPECT_FALSE(facts.value(facts.ValueOf(b)).can_be_dropped);
}

// A value that two instructions write is not recomputed: neither instruction alone computes it.
TEST(Rematerialize, NotWhatIsWrittenTwice) {
  Writer w;
  const int x = w.Input(640), a = w.Temporary(640), b = w.Temporary(640);
  w.Run({x}, {a});
  w.Run({x, a}, {a});
  w.Run({a}, {b});
  w.Run({a, b}, {w.Result(640)});
  const RecomputeFacts facts(w.program);
  EXPECT_EQ(facts.value(facts.ValueOf(a)).writer, -1);
  EXPECT_FALSE(facts.value(facts.ValueOf(a)).can_be_dropped);
}

Program RandomProgram(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  const auto size = [&] { return static_cast<uint64_t>(64 * (1 + below(12))); };
  Writer w;
  std::vector<int> known = {w.Input(size()), w.State(640), w.State(1280)};
  std::vector<int> states = {known[1], known[2]};
  const int length = 10 + below(40);
  for (int i = 0; i < length; ++i) {
    std::vector<int> reads, writes;
    for (int r = 1 + below(3); r > 0; --r) {
      // Early values are as likely as late ones, which makes lifetimes long.
      const int id = known[static_cast<size_t>(below(static_cast<int>(known.size())))];
      if (std::find(reads.begin(), reads.end(), id) == reads.end()) reads.push_back(id);
    }
    for (int n = 1 + below(6) / 5; n > 0; --n) writes.push_back(below(8) == 0 ? w.Result(size()) : w.Temporary(size()));
    Instruction& instruction = w.Run(reads, writes, below(4) * 1e4, below(3) == 0 ? size() : 0);
    const bool is_equal = w.program.storage(reads[0]).bytes == w.program.storage(writes[0]).bytes;
    if (is_equal && writes.size() == 1) instruction.may_overwrite = {{0, 0}};
    for (int id : writes) known.push_back(below(5) == 0 ? w.AliasOf(id) : id);
    if (!states.empty() && below(12) == 0) {  // a state's next value; the old one is not read afterwards
      const int state = states.back();
      states.pop_back();
      known.erase(std::find(known.begin(), known.end(), state));
      const int next = w.Next(state, w.program.storage(state).bytes);
      w.Run({known.back()}, {next});
      known.push_back(next);
    }
  }
  w.Run({known.back(), known[known.size() / 2], known[known.size() / 3]}, {w.Result(640)});
  return std::move(w.program);
}

TEST(Rematerialize, RandomProgramsKeepTheirBits) {
  int64_t kernels = 0;
  int fitted = 0;
  const int count = NumCases(300);
  for (int seed = 0; seed < count; ++seed) {
    const Outcome whole = RunProgram(RandomProgram(seed));
    Program smallest = RandomProgram(seed);
    const uint64_t least = Rematerialize(smallest, 1).least;
    EXPECT_LE(least, whole.arena) << seed;
    for (const uint64_t limit : {least, (least + whole.arena) / 2, whole.arena * 9 / 10}) {
      Program program = RandomProgram(seed);
      const Rematerialization done = Rematerialize(program, limit);
      EXPECT_TRUE(done.fits || limit < least) << seed;
      const Outcome less = RunProgram(std::move(program));
      EXPECT_EQ(less.contents, whole.contents) << seed;
      EXPECT_TRUE(!done.fits || less.arena <= limit) << seed;
      kernels += done.work.kernels;
      fitted += done.fits && done.work.kernels > 0;
    }
  }
  EXPECT_GT(kernels, 4 * count);
  EXPECT_GT(fitted, count);
}

}  // namespace
}  // namespace lockstep
