// The order certificate: what it accepts, and each kind of damage that it refuses.

#include "backends/lowering/certificate.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

class Nothing : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext&) override { return absl::OkStatus(); }
};

constexpr BufferSlice kFirst{0, 0, 64}, kSecond{1, 0, 128}, kState{2, 0, 64};

StepInfo Kernel(std::vector<StepOperand> reads, std::vector<StepOperand> writes) {
  StepInfo info;
  info.kind = "kernel";
  info.reads = std::move(reads);
  info.writes = std::move(writes);
  return info;
}

StepInfo AllReduce(int id, CollectiveInfo::Phase phase, BufferSlice bucket) {
  StepInfo info;
  info.kind = phase == CollectiveInfo::Phase::kStart ? "all_reduce.start" : "all_reduce.wait";
  CollectiveInfo collective;
  collective.phase = phase;
  collective.id = id;
  collective.op = "all_reduce";
  collective.axis = "data";
  collective.count = static_cast<int64_t>(bucket.bytes / 4);
  collective.input = collective.output = bucket;
  collective.label = "bucket " + std::to_string(id);
  (phase == CollectiveInfo::Phase::kStart ? info.reads : info.writes) = {{"g" + std::to_string(id), "", bucket}};
  info.collective = collective;
  return info;
}
StepInfo Start(int id, BufferSlice bucket) { return AllReduce(id, CollectiveInfo::Phase::kStart, bucket); }
StepInfo Wait(int id, BufferSlice bucket) { return AllReduce(id, CollectiveInfo::Phase::kWait, bucket); }

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

absl::StatusOr<Certificate> Certify(const std::vector<StepInfo>& infos) {
  StepList steps;
  for (const StepInfo& info : infos) steps.push_back(std::make_unique<Nothing>(info));
  return CertifyOrder(steps);
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
  infos.pop_back();  // its use
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
  std::swap(infos[4], infos[5]);  // reads g0
  ExpectRefused(infos, "O3");
  infos = Good();
  std::swap(infos[0], infos[1]);  // writes g0
  ExpectRefused(infos, "O3");
}

TEST(Certificate, RefusesOperandsOutsideTheBucket) {
  auto infos = Good();
  infos[1].reads[0].slice = kSecond;
  ExpectRefused(infos, "O4");
}

TEST(Certificate, HashCoversOrderKindsCountsContentsAndLayouts) {
  const uint64_t hash = Certify(Good())->hash;
  EXPECT_EQ(Certify(Good())->hash, hash);
  const auto changed = [&](const std::function<void(StepInfo&)>& change) {
    auto infos = Good();
    change(infos[1]);
    const auto certificate = Certify(infos);
    return certificate.ok() && certificate->hash != hash;
  };
  EXPECT_TRUE(changed([](StepInfo& start) { start.collective->kind = ReduceKind::kMax; }));
  EXPECT_TRUE(changed([](StepInfo& start) { start.collective->count = 15; }));
  EXPECT_TRUE(changed([](StepInfo& start) { start.collective->dtype = DType::kI32; }));
  EXPECT_TRUE(changed([](StepInfo& start) { start.reads[0].layout = "16a"; }));
  EXPECT_TRUE(changed([](StepInfo& start) { start.reads[0].slice.bytes = 32; }));
  EXPECT_TRUE(changed([](StepInfo& start) { start.reads[0].name = "other"; }));
}

}  // namespace
}  // namespace lockstep
