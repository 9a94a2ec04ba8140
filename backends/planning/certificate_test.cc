// The order certificate: the step lists that it accepts, and each kind of damage that it refuses.

#include "backends/planning/certificate.h"

#include <algorithm>
#include <functional>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

class Nothing : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext&) override { return absl::OkStatus(); }
};

constexpr BufferSlice kFirst{0, 0, 64}, kSecond{1, 0, 128}, kState{2, 0, 64}, kOther{2, 64, 64};

StepInfo Kernel(std::vector<StepOperand> reads, std::vector<StepOperand> writes) {
  StepInfo info;
  info.name = "kernel";
  info.reads = std::move(reads);
  info.writes = std::move(writes);
  return info;
}

StepInfo Collective(StepKind kind, CollectiveOp op, int id, BufferSlice input, BufferSlice output) {
  StepInfo info;
  info.kind = kind;
  info.name = std::string(TraitsOf(op).name) + (kind == StepKind::kStart ? ".start" : ".wait");
  CollectiveInfo collective;
  collective.id = id;
  collective.op = op;
  collective.axis = "data";
  collective.counts = {static_cast<int64_t>(std::min(input.bytes, output.bytes) / 4)};
  collective.input = input;
  collective.output = output;
  collective.label = "bucket " + std::to_string(id);
  const std::string name = "g" + std::to_string(id);
  if (kind == StepKind::kStart) info.reads = {{name, "", input}};
  else info.writes = {{name, "", output}};
  info.collective = collective;
  return info;
}
StepInfo Start(int id, BufferSlice bucket) {
  return Collective(StepKind::kStart, CollectiveOp::kAllReduce, id, bucket, bucket);
}
StepInfo Wait(int id, BufferSlice bucket) {
  return Collective(StepKind::kWait, CollectiveOp::kAllReduce, id, bucket, bucket);
}

// [0] g0  [1] start 0  [2] g1  [3] start 1  [4] wait 0  [5] uses g0  [6] wait 1  [7] uses g1
std::vector<StepInfo> Good() {
  std::vector<StepInfo> infos;
  infos.push_back(Kernel({}, {{"g0", "", kFirst}}));
  infos.push_back(Start(0, kFirst));
  infos.push_back(Kernel({}, {{"g1", "", kSecond}}));
  infos.push_back(Start(1, kSecond));
  infos.push_back(Wait(0, kFirst));
  infos.push_back(Kernel({{"g0", "", kFirst}}, {{"w0", "", kState}}));
  infos.push_back(Wait(1, kSecond));
  infos.push_back(Kernel({{"g1", "", kSecond}}, {{"w1", "", kState}}));
  return infos;
}

// kFirst and kSecond are registered along `data`, these along `model`, and kOfLane along the lane.
constexpr BufferSlice kOfModel{3, 0, 64}, kMoreOfModel{3, 64, 64}, kOfLane{6, 0, 64};

std::vector<Buffer> Buffers() {
  std::vector<Buffer> buffers(7);
  buffers[0] = {BufferKind::kRegistered, "data", 192, 0};
  buffers[1] = {BufferKind::kRegistered, "data", 128, 0};
  buffers[3] = {BufferKind::kRegistered, "model", 128, 2};
  buffers[4] = {BufferKind::kState, "w", 64, 0, /*sharers=*/2};
  buffers[5] = {BufferKind::kState, "w", 32, 0, /*sharers=*/2, /*part_of=*/4};
  buffers[6] = {BufferKind::kRegistered, "data 0 to 1", 64, 3};
  return buffers;
}

absl::StatusOr<Certificate> Certify(const std::vector<StepInfo>& infos) {
  StepList steps;
  for (const StepInfo& info : infos) steps.push_back(std::make_unique<Nothing>(info));
  const std::vector<Lane> lanes = {{"data", 0, 1}};
  return CertifyOrder(steps, Buffers(), Mesh({{"data", 2}, {"one", 1}, {"model", 2}}), lanes);
}

// Moves a start or a wait to the axis `model`.
StepInfo AlongModel(StepInfo info) {
  info.collective->axis = "model";
  info.collective->mesh_axis = 2;
  return info;
}

void ExpectRefused(const std::vector<StepInfo>& infos, const std::string& rule) {
  const auto certificate = Certify(infos);
  ASSERT_FALSE(certificate.ok());
  EXPECT_NE(certificate.status().message().find("(" + rule + ")"), std::string::npos) << certificate.status();
}

TEST(Certificate, AcceptsAndListsTheCollectives) {
  const auto certificate = Certify(Good());
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  ASSERT_EQ(certificate->lines.size(), 2u);
  EXPECT_EQ(certificate->lines[0], "all_reduce sum f32[16] along data, bucket 0: %g0@0+64");
}

TEST(Certificate, RefusesADroppedWait) {
  auto infos = Good();
  infos.erase(infos.begin() + 6);
  infos.pop_back();  // the step that uses its result
  ExpectRefused(infos, "O2");
}

TEST(Certificate, RefusesADuplicatedWait) {
  auto infos = Good();
  infos.insert(infos.begin() + 5, infos[4]);
  ExpectRefused(infos, "O2");
}

TEST(Certificate, RefusesAWaitBeforeItsStart) {
  auto infos = Good();
  std::swap(infos[1], infos[4]);
  ExpectRefused(infos, "O2");
}

TEST(Certificate, RefusesAnotherOrderOfStarts) {
  auto infos = Good();
  std::swap(infos[0], infos[2]);
  std::swap(infos[1], infos[3]);
  ExpectRefused(infos, "O1");
}

TEST(Certificate, RefusesASecondStart) {
  auto infos = Good();
  infos.insert(infos.begin() + 2, infos[1]);
  ExpectRefused(infos, "O3");
}

TEST(Certificate, RefusesUsesBeforeTheWait) {
  auto infos = Good();
  std::swap(infos[4], infos[5]);  // a kernel reads g0
  ExpectRefused(infos, "O3");
  infos = Good();
  std::swap(infos[0], infos[1]);  // a kernel writes g0
  ExpectRefused(infos, "O3");
}

TEST(Certificate, RefusesAWaitForSomethingElse) {
  auto infos = Good();
  infos[4].collective->output = kSecond;
  ExpectRefused(infos, "O2");
}

TEST(Certificate, RefusesToWriteABucketInFlight) {
  auto infos = Good();
  infos[2].writes.push_back({"w0", "", kFirst});
  ExpectRefused(infos, "O3");
}

TEST(Certificate, RefusesScratchMemoryInABucketInFlight) {
  auto infos = Good();
  infos[2].scratch = {0, 32, 8};
  ExpectRefused(infos, "O3");
  infos = Good();
  infos[5].scratch = {0, 32, 8};  // after the wait, but in memory that the step reads
  ExpectRefused(infos, "O5");
  infos = Good();
  infos[7].scratch = {0, 32, 8};  // the memory is not used any more
  EXPECT_TRUE(Certify(infos).ok());
}

TEST(Certificate, RefusesTwoCollectivesInFlightThatShareMemory) {
  auto infos = Good();
  const BufferSlice both{0, 32, 64};
  infos[2].writes.clear();
  infos[3] = Start(1, both);
  infos[6] = Wait(1, both);
  infos[5] = infos[7] = Kernel({}, {});
  ExpectRefused(infos, "O3");
  // The gap between operands, which no step accesses, counts too.
  infos[3].reads[0].slice = {0, 64, 32};
  ExpectRefused(infos, "O3");
  std::swap(infos[3], infos[4]);  // one collective after the other
  EXPECT_TRUE(Certify(infos).ok()) << Certify(infos).status();
}

TEST(Certificate, RefusesOperandsOfOneStepThatShareMemory) {
  const StepOperand x{"x", "", kState}, y{"y", "", kState}, inside{"y", "", {2, 16, 16}}, apart{"z", "", kOther};
  ExpectRefused({Kernel({x}, {y})}, "O5");
  ExpectRefused({Kernel({}, {x, y})}, "O5");
  EXPECT_TRUE(Certify({Kernel({x, y}, {apart})}).ok());
  StepInfo in_place = Kernel({x, apart}, {y});
  in_place.may_overwrite = {{0, 0}};
  EXPECT_TRUE(Certify({in_place}).ok());
  in_place.reads[1] = x;  // a second read, which is not declared
  ExpectRefused({in_place}, "O5");
  in_place.reads[1] = apart;
  in_place.writes[0] = inside;  // not the same bytes
  ExpectRefused({in_place}, "O5");
  StepInfo scratch = Kernel({x}, {apart});
  scratch.scratch = {2, 120, 64};
  ExpectRefused({scratch}, "O5");
}

TEST(Certificate, RefusesOperandsOutsideTheBucket) {
  auto infos = Good();
  infos[1].reads[0].slice = kSecond;
  ExpectRefused(infos, "O4");
  infos = Good();
  infos[4].writes[0].slice = kState;
  ExpectRefused(infos, "O4");
}

TEST(Certificate, ListsTheCollectivesOfAllAxesInOneOrder) {
  const auto of = [](bool model_first) {
    const std::vector<StepInfo> starts = {Start(model_first, kFirst), AlongModel(Start(!model_first, kOfModel))};
    const std::vector<StepInfo> waits = {Wait(model_first, kFirst), AlongModel(Wait(!model_first, kOfModel))};
    return Certify({starts[model_first], starts[!model_first], waits[0], waits[1]});
  };
  const auto data_first = of(false), model_first = of(true);
  ASSERT_TRUE(data_first.ok()) << data_first.status();
  ASSERT_TRUE(model_first.ok()) << model_first.status();
  ASSERT_EQ(data_first->lines.size(), 2u);
  EXPECT_EQ(data_first->lines[1], "all_reduce sum f32[16] along model, bucket 1: %g1@0+64");
  // Each axis has one collective, and either may start first, but ranks must not differ in the order.
  EXPECT_NE(data_first->hash, model_first->hash);
}

TEST(Certificate, RefusesAnAxisThatIsNotOfTheMesh) {
  const auto refused = [](const std::function<void(CollectiveInfo&)>& change) {
    StepInfo start = Start(0, kFirst), wait = Wait(0, kFirst);
    change(*start.collective);
    change(*wait.collective);
    ExpectRefused({start, wait}, "O6");
  };
  refused([](CollectiveInfo& info) { info.axis = "other"; });
  refused([](CollectiveInfo& info) { info.mesh_axis = 2; });  // the axis's name is still data
  refused([](CollectiveInfo& info) { info.mesh_axis = 3; });
  refused([](CollectiveInfo& info) { info.mesh_axis = -1; });
  const auto of_one_rank = [](CollectiveInfo& info) {  // an axis without a communicator
    info.axis = "one";
    info.mesh_axis = 1;
  };
  refused(of_one_rank);
  refused([&](CollectiveInfo& info) {  // and has no buffers
    of_one_rank(info);
    info.op = CollectiveOp::kBarrier;
  });
}

TEST(Certificate, RefusesABucketOfAnotherAxis) {
  EXPECT_TRUE(Certify({AlongModel(Start(0, kOfModel)), AlongModel(Wait(0, kOfModel))}).ok());
  ExpectRefused({Start(0, kOfModel), Wait(0, kOfModel)}, "O6");
  ExpectRefused({AlongModel(Start(0, kFirst)), AlongModel(Wait(0, kFirst))}, "O6");
  ExpectRefused({Start(0, kState), Wait(0, kState)}, "O6");  // not in a bucket
}

// This rank's end of a transfer, which it gives or gets.
StepInfo Transfer(StepKind kind, bool gives, const std::function<void(CollectiveInfo&)>& change = [](auto&) {}) {
  StepInfo info = Collective(kind, CollectiveOp::kPermute, 0, kOfLane, kOfLane);
  CollectiveInfo& collective = *info.collective;
  collective.is_transfer = true;
  collective.mesh_axis = 3;
  collective.pairs = {{0, 1}};
  (gives ? collective.output : collective.input) = {};
  if (gives) info.writes.clear();
  else info.reads.clear();
  change(collective);
  return info;
}

TEST(Certificate, AcceptsOneEndOfATransfer) {
  const StepInfo reads = Kernel({{"g0", "", kOfLane}}, {}), writes = Kernel({}, {{"g0", "", kOfLane}});
  const StepInfo start = Transfer(StepKind::kStart, true), wait = Transfer(StepKind::kWait, true);
  const auto given = Certify({start, reads, wait});
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->lines[0], "permute f32[16] 0 to 1 along data, bucket 0: %g0@0+64");
  ExpectRefused({start, writes, wait}, "O3");
  const StepInfo get = Transfer(StepKind::kStart, false), got = Transfer(StepKind::kWait, false);
  EXPECT_TRUE(Certify({get, got, reads}).ok());
  ExpectRefused({get, reads, got}, "O3");
}

TEST(Certificate, RefusesATransferThatIsNotAlongItsLane) {
  const auto refused = [](const std::function<void(CollectiveInfo&)>& change) {
    ExpectRefused({Transfer(StepKind::kStart, true, change), Transfer(StepKind::kWait, true, change)}, "O6");
  };
  refused([](CollectiveInfo& info) { info.mesh_axis = 4; });
  refused([](CollectiveInfo& info) { info.mesh_axis = 0; });
  refused([](CollectiveInfo& info) { info.axis = "model"; });
  refused([](CollectiveInfo& info) { info.pairs = {{1, 0}}; });
  refused([](CollectiveInfo& info) { info.input = kFirst; });     // registered with another communicator
  refused([](CollectiveInfo& info) { info.output = kOfModel; });  // has both ends
  refused([](CollectiveInfo& info) { info.output = kOfLane; });   // has both ends, of this lane
  refused([](CollectiveInfo& info) { info.input = {}; });         // has no end
}

TEST(Certificate, RefusesAWaitAlongAnotherAxis) {
  ExpectRefused({Start(0, kFirst), AlongModel(Wait(0, kFirst))}, "O2");
}

// A collective whose result has separate memory.
class OutOfPlace : public testing::TestWithParam<CollectiveOp> {
 protected:
  std::vector<StepInfo> Steps(StepInfo between) {
    const CollectiveTraits traits = TraitsOf(GetParam());
    const bool gathers = traits.gathers && !traits.scatters;
    input = gathers ? kFirst : kSecond;
    output = gathers ? kSecond : kFirst;
    return {Kernel({}, {{"x", "", input}}), Collective(StepKind::kStart, GetParam(), 0, input, output),
            std::move(between), Collective(StepKind::kWait, GetParam(), 0, input, output),
            Kernel({{"g0", "", output}}, {{"w", "", kState}})};
  }
  BufferSlice input, output;
};

TEST_P(OutOfPlace, InputMayBeReadInFlightAndNothingElse) {
  const auto good = Steps(Kernel({}, {}));
  EXPECT_TRUE(Certify(good).ok());
  EXPECT_TRUE(Certify(Steps(Kernel({{"x", "", input}}, {{"y", "", kOther}}))).ok());
  ExpectRefused(Steps(Kernel({}, {{"x", "", input}})), "O3");
  ExpectRefused(Steps(Kernel({{"g0", "", output}}, {})), "O3");
  ExpectRefused(Steps(Kernel({}, {{"g0", "", output}})), "O3");
  StepInfo scratch = Kernel({}, {});
  scratch.scratch = input;
  ExpectRefused(Steps(scratch), "O3");
}

TEST_P(OutOfPlace, OutputIsApartFromTheInput) {
  auto infos = Steps(Kernel({}, {}));
  for (StepInfo* info : {&infos[1], &infos[3]}) info->collective->output = info->collective->input;
  ExpectRefused(infos, "O4");
}

TEST_P(OutOfPlace, OperandsLieInTheSlices) {
  auto infos = Steps(Kernel({}, {}));
  infos[1].reads[0].slice.bytes += 4;
  ExpectRefused(infos, "O4");
}

TEST_P(OutOfPlace, InputAndOutputAreRegisteredAlongItsAxis) {
  const auto steps = [](const BufferSlice& from, const BufferSlice& to) -> std::vector<StepInfo> {
    return {Collective(StepKind::kStart, GetParam(), 0, from, to),
            Collective(StepKind::kWait, GetParam(), 0, from, to)};
  };
  EXPECT_TRUE(Certify(steps(kFirst, kSecond)).ok());
  ExpectRefused(steps(kOfModel, kFirst), "O6");
  ExpectRefused(steps(kFirst, kOfModel), "O6");
  ExpectRefused(steps(kState, kFirst), "O6");
  ExpectRefused(steps(kFirst, kState), "O6");
}

INSTANTIATE_TEST_SUITE_P(Ops, OutOfPlace, testing::ValuesIn(CollectiveOpsWith([](const CollectiveTraits& traits) {
                           return traits.moves_data && !traits.is_in_place;
                         })));

TEST(Certificate, HashCoversAllThatRanksMustAgreeOn) {
  using Change = std::function<void(StepInfo&)>;
  // A reduction, and a broadcast, whose root is hashed; each with its wait.
  const auto hash_of = [](const Change& change, CollectiveOp op) -> uint64_t {
    const BufferSlice& output = TraitsOf(op).is_in_place ? kFirst : kSecond;
    std::vector<StepInfo> infos = {Collective(StepKind::kStart, op, 0, kFirst, output),
                                   Collective(StepKind::kWait, op, 0, kFirst, output)};
    for (StepInfo& info : infos) change(info);
    const auto certificate = Certify(infos);
    EXPECT_TRUE(certificate.ok()) << certificate.status();
    return certificate.ok() ? certificate->hash : 0;
  };
  const auto expect_changed = [&](const Change& change, CollectiveOp op = CollectiveOp::kAllReduce) {
    EXPECT_NE(hash_of(change, op), hash_of([](StepInfo&) {}, op));
  };
  expect_changed([](StepInfo& info) { info.collective->kind = ReduceKind::kMax; });
  expect_changed([](StepInfo& info) { info.collective->counts = {15}; });
  expect_changed([](StepInfo& info) { info.collective->dtype = DType::kI32; });
  expect_changed([](StepInfo& info) { info.collective->label = "bucket 7"; });
  expect_changed([](StepInfo& info) { info.collective->is_urgent = true; });
  expect_changed([](StepInfo& info) { info.collective->root = 1; }, CollectiveOp::kBroadcast);
  expect_changed([](StepInfo& info) { info.collective->counts = {8, 8}; }, CollectiveOp::kAllGather);
  expect_changed([](StepInfo& info) { info.collective->pairs = {{0, 1}}; }, CollectiveOp::kPermute);
  expect_changed(
      [](StepInfo& info) {
        info = AlongModel(info);
        info.collective->input = kOfModel;
        info.collective->output = kMoreOfModel;
        for (StepOperand& read : info.reads) read.slice = kOfModel;
        for (StepOperand& write : info.writes) write.slice = kMoreOfModel;
      },
      CollectiveOp::kBroadcast);
  const auto of_read = [](const std::function<void(StepOperand&)>& change) {
    return [change](StepInfo& info) {
      if (!info.reads.empty()) change(info.reads[0]);
    };
  };
  expect_changed(of_read([](StepOperand& read) { read.layout = "16a"; }));
  expect_changed(of_read([](StepOperand& read) { read.slice.bytes = 32; }));
  expect_changed(of_read([](StepOperand& read) { read.slice = {0, 32, 32}; }));
  expect_changed(of_read([](StepOperand& read) { read.name = "other"; }));
}

TEST(Certificate, HashIsOfTheLines) {
  const auto certificate = Certify(Good());
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  uint64_t expected = 14695981039346656037u;  // FNV-1a
  for (const std::string& line : certificate->lines) {
    for (char c : line + "\n") expected = (expected ^ static_cast<uint64_t>(c)) * 1099511628211u;
  }
  EXPECT_EQ(certificate->hash, expected);
}

TEST(Certificate, RefusesHalfACollective) {
  auto infos = Good();
  infos[1].collective.reset();
  ExpectRefused(infos, "O1");
  infos = Good();
  infos[2].collective = infos[1].collective;  // on a kernel
  ExpectRefused(infos, "O1");
}

// Changes each property in which a wait can differ from its start, one at a time.
TEST(Certificate, RefusesAWaitThatDiffersFromItsStart) {
  const std::vector<std::function<void(CollectiveInfo&)>> changes = {
      [](CollectiveInfo& wait) { wait.op = CollectiveOp::kBroadcast; },
      [](CollectiveInfo& wait) { wait.axis = "model"; },
      [](CollectiveInfo& wait) { wait.input = kSecond; },
      [](CollectiveInfo& wait) { wait.output = kSecond; },
      [](CollectiveInfo& wait) { wait.kind = ReduceKind::kMax; },
      [](CollectiveInfo& wait) { wait.dtype = DType::kI32; },
      [](CollectiveInfo& wait) { wait.counts = {15}; },
      [](CollectiveInfo& wait) { wait.root = 1; },
      [](CollectiveInfo& wait) { wait.label = "bucket 7"; },
  };
  for (const auto& change : changes) {
    auto infos = Good();
    change(*infos[4].collective);
    ExpectRefused(infos, "O2");
  }
}

TEST(Certificate, RefusesAnAllReduceThatIsNotInPlace) {
  ExpectRefused({Collective(StepKind::kStart, CollectiveOp::kAllReduce, 0, kFirst, kSecond),
                 Collective(StepKind::kWait, CollectiveOp::kAllReduce, 0, kFirst, kSecond)},
                "O4");
}

TEST_P(OutOfPlace, OutputSharesNoByteWithTheInput) {
  const BufferSlice from{0, 0, 64}, to{0, 60, 64};
  ExpectRefused(
      {Collective(StepKind::kStart, GetParam(), 0, from, to), Collective(StepKind::kWait, GetParam(), 0, from, to)},
      "O4");
}

// A bucket that does not begin at the beginning of its buffer.
TEST(Certificate, OperandsAreFromTheBucketsBegin) {
  const BufferSlice bucket{0, 64, 64};
  const auto with = [&](BufferSlice read, BufferSlice write) {
    std::vector<StepInfo> infos = {Start(0, bucket), Wait(0, bucket)};
    infos[0].reads[0].slice = read;
    infos[1].writes[0].slice = write;
    return infos;
  };
  const BufferSlice inside{0, 96, 16}, before{0, 48, 32}, after{0, 112, 32}, around{0, 32, 128};
  const auto certificate = Certify(with(inside, inside));
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_NE(certificate->lines[0].find("%g0@32+16"), std::string::npos) << certificate->lines[0];
  for (const BufferSlice& outside : {before, after, around}) {
    ExpectRefused(with(outside, inside), "O4");
    ExpectRefused(with(inside, outside), "O4");
  }
}

// Inputs and outputs of a collective count also where they contain no operand of a step.
TEST_P(OutOfPlace, TwoInFlightShareNothingThatOneWrites) {
  const BufferSlice a{0, 0, 64}, b{1, 0, 64}, rest_of_b{1, 64, 64}, c{0, 64, 64}, d{0, 128, 64};
  const auto both = [&](BufferSlice first_output, BufferSlice second_input, BufferSlice second_output) {
    std::vector<StepInfo> infos;
    for (StepKind kind : {StepKind::kStart, StepKind::kWait}) {
      infos.push_back(Collective(kind, GetParam(), 0, a, first_output));
      infos.push_back(Collective(kind, GetParam(), 1, second_input, second_output));
    }
    for (StepInfo& info : infos) info.reads.clear();
    infos[2].writes[0].slice = rest_of_b;
    return infos;
  };
  const BufferSlice whole_b{1, 0, 128};
  EXPECT_TRUE(Certify(both(whole_b, c, d)).ok()) << Certify(both(whole_b, c, d)).status();
  EXPECT_TRUE(Certify(both(whole_b, a, d)).ok()) << "both read the same";
  ExpectRefused(both(whole_b, b, d), "O3");  // the second reads what the first writes
  ExpectRefused(both(whole_b, c, a), "O3");  // the second writes what the first reads
  ExpectRefused(both(whole_b, c, b), "O3");  // both write
}

TEST(Certificate, RefusesOneByteOfScratchMemoryInABucketInFlight) {
  auto infos = Good();
  infos[2].scratch = {0, 32, 1};
  ExpectRefused(infos, "O3");
}

// Pairs of (write, read).
TEST(Certificate, WhatMayOverwriteIsAPairOfAWriteAndARead) {
  StepInfo step = Kernel({{"x", "", kOther}, {"y", "", kState}}, {{"z", "", kState}, {"u", "", kFirst}});
  step.may_overwrite = {{0, 1}};
  EXPECT_TRUE(Certify({step}).ok()) << Certify({step}).status();
  step.may_overwrite = {{1, 0}};
  ExpectRefused({step}, "O5");
}

// Buffer 4 is shared by the ranks along `data`; buffer 5 is this rank's part of it.
constexpr BufferSlice kWhole{4, 0, 64}, kPart{5, 0, 32}, kSecondHalf{0, 64, 64};

StepInfo ReadWhole() { return Kernel({{"w", "", kWhole}}, {}); }
StepInfo WritePart() { return Kernel({{"w.part", "", kPart}}, {{"next", "", kPart}}); }

StepInfo Barrier(StepKind kind, int id) {
  StepInfo info = Collective(kind, CollectiveOp::kBarrier, id, {}, {});
  info.reads.clear();
  info.writes.clear();
  return info;
}

// [0] reads the whole  [1] start 0  [2] wait 0  [3] writes its part  [4] barrier start  [5] barrier wait
std::vector<StepInfo> GoodSharing() {
  StepInfo update = WritePart();
  update.may_overwrite = {{0, 0}};
  return {ReadWhole(),
          Start(0, kFirst),
          Wait(0, kFirst),
          update,
          Barrier(StepKind::kStart, 1),
          Barrier(StepKind::kWait, 1)};
}

TEST(Certificate, AcceptsPartsThatAreWrittenBetweenMeetingsOfAllRanks) {
  const auto certificate = Certify(GoodSharing());
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_EQ(certificate->lines[1], "barrier along data, bucket 1:");
}

TEST(Certificate, AcceptsReadersBehindAMeetingAfterTheWriter) {
  auto infos = GoodSharing();
  infos.push_back(ReadWhole());
  EXPECT_TRUE(Certify(infos).ok()) << Certify(infos).status();
}

TEST(Certificate, RefusesToWriteAPartThatOthersMayStillReadSinceTheLastRun) {
  auto infos = GoodSharing();
  infos.erase(infos.begin(), infos.begin() + 3);
  for (StepInfo& info : infos) {
    if (info.collective) info.collective->id = 0;
  }
  ExpectRefused(infos, "O7");
}

TEST(Certificate, RefusesToWriteAPartThatOthersMayReadBehindTheMeeting) {
  auto infos = GoodSharing();
  std::swap(infos[0], infos[1]);  // all reach the start before they read
  ExpectRefused(infos, "O7");
}

TEST(Certificate, RefusesToWriteAPartBeforeTheMeetingIsOver) {
  auto infos = GoodSharing();
  std::swap(infos[2], infos[3]);
  ExpectRefused(infos, "O7");
}

TEST(Certificate, RefusesAReaderThatMayComeBeforeAWriter) {
  auto infos = GoodSharing();
  infos.insert(infos.begin() + 5, ReadWhole());
  ExpectRefused(infos, "O7");
}

TEST(Certificate, RefusesAnEndThatMayComeBeforeAWriter) {
  auto infos = GoodSharing();
  infos.resize(4);
  ExpectRefused(infos, "O7");
}

TEST(Certificate, RefusesAMeetingAlongAnotherAxisOrOfSomeRanks) {
  auto infos = GoodSharing();
  for (size_t i : {4u, 5u}) infos[i] = AlongModel(infos[i]);
  ExpectRefused(infos, "O7");
  infos = GoodSharing();
  infos[1] = Collective(StepKind::kStart, CollectiveOp::kBroadcast, 0, kFirst, kSecondHalf);
  infos[2] = Collective(StepKind::kWait, CollectiveOp::kBroadcast, 0, kFirst, kSecondHalf);
  ExpectRefused(infos, "O7");
  infos = GoodSharing();
  for (size_t i : {1u, 2u}) infos[i].collective->counts = {0};  // a collective without elements synchronizes nothing
  ExpectRefused(infos, "O7");
}

TEST(Certificate, RefusesToWriteTheWhole) {
  auto infos = GoodSharing();
  infos[3] = Kernel({}, {{"next", "", kWhole}});
  ExpectRefused(infos, "O7");
}

TEST(Certificate, RefusesAKernelThatReadsTheWholeAndWritesItsPart) {
  auto infos = GoodSharing();
  infos[3].reads.push_back({"w", "", kWhole});
  ExpectRefused(infos, "O7");
}

// --- Parameter servers ----------------------------------------------------------------------------------------------

StepInfo OfServers(StepKind kind, int served, BufferSlice slice) {
  StepInfo info;
  info.kind = kind;
  info.name = kind == StepKind::kPush ? "push" : kind == StepKind::kStartPull ? "pull.start" : "pull.wait";
  info.served = served;
  const StepOperand operand{served == 0 ? "w0" : "w1", "", slice};
  (kind == StepKind::kPush ? info.reads : info.writes).push_back(operand);
  return info;
}

// [0] push 0  [1] push 1  [2] start 0  [3] a kernel  [4] start 1  [5] wait 0  [6] wait 1  [7] reads pulled values
std::vector<StepInfo> Served() {
  return {OfServers(StepKind::kPush, 0, kFirst),      OfServers(StepKind::kPush, 1, kFirst),
          OfServers(StepKind::kStartPull, 0, kState), Kernel({{"x", "", kFirst}}, {{"y", "", kSecond}}),
          OfServers(StepKind::kStartPull, 1, kOther), OfServers(StepKind::kWaitPull, 0, kState),
          OfServers(StepKind::kWaitPull, 1, kOther),  Kernel({{"w0", "", kState}}, {{"z", "", kSecond}})};
}

TEST(Certificate, ListsWhatIsPushedAndPulled) {
  const auto certificate = Certify(Served());
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_EQ(certificate->lines,
            (std::vector<std::string>{"push %w0 of 64 bytes, number 0", "push %w1 of 64 bytes, number 1",
                                      "pull %w0, number 0", "pull %w1, number 1", "has pulled %w0, number 0",
                                      "has pulled %w1, number 1"}));
  auto others = Served();
  std::swap(others[0], others[1]);
  EXPECT_NE(Certify(others)->hash, certificate->hash);
}

TEST(Certificate, RefusesPushesAndPullsInAnotherOrder) {
  const auto without = [](size_t step) {
    auto infos = Served();
    infos.erase(infos.begin() + static_cast<std::ptrdiff_t>(step));
    return infos;
  };
  for (size_t step : {0, 1, 2, 4, 5, 6}) ExpectRefused(without(step), "O8");
  for (size_t step : {0, 1, 2, 4, 5, 6}) {
    auto twice = Served();
    twice.insert(twice.begin() + 7, twice[step]);
    ExpectRefused(twice, "O8");
  }
  auto infos = Served();
  infos[5].writes[0].slice = kOther;  // of another pull
  ExpectRefused(infos, "O8");
}

TEST(Certificate, RefusesWhatTouchesAStateThatIsPulled) {
  auto infos = Served();
  infos[3].reads[0].slice = kState;
  ExpectRefused(infos, "O8");
  infos = Served();
  infos[3].writes[0].slice = kState;
  ExpectRefused(infos, "O8");
  infos = Served();
  infos[4] = OfServers(StepKind::kStartPull, 1, kState);  // the same memory as the other pull
  infos[6] = OfServers(StepKind::kWaitPull, 1, kState);
  ExpectRefused(infos, "O8");
}

}  // namespace
}  // namespace lockstep
