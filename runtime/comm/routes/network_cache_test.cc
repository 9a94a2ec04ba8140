// The file of a network's costs, and the agreement of ranks on it.

#include "runtime/comm/routes/network_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cache_file.h"
#include "runtime/comm/conformance/watched_links.h"
#include "runtime/comm/in_process.h"
#include "runtime/comm/measure_network.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::string NewFolder() {
  std::string name = ::testing::TempDir() + "/networks.XXXXXX";
  return mkdtemp(name.data());
}

Network Example() {
  return {.cluster = ClusterName({"h0", "h0", "h1"}, "tcp", "eth"),
          .hosts = 2,
          .ranks = 2,
          .costs = {.latency = 1.0 / 3, .message = 0, .byte_to_all = 1e-9, .byte_to_neighbour = 2e-9}};
}

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(NetworkCache, NamesHostsInTheOrderOfRanks) {
  EXPECT_EQ(ClusterName({"a", "a", "b", "a"}, "tcp", ""), "a*2 b*1 a*1 by tcp");
  EXPECT_EQ(Example().cluster, "h0*2 h1*1 by tcp through eth");
  EXPECT_EQ(ClusterName({"a\"\n\\"}, "mpi", ""), "a*1 by mpi") << "as a line of the file can have it";
}

TEST(NetworkCache, KeepsCostsToTheLastBit) {
  const std::string folder = NewFolder();
  const Network written = Example();
  EXPECT_TRUE(absl::IsNotFound(ReadNetwork(folder, written.cluster).status()));
  ASSERT_TRUE(WriteNetwork(folder, written).ok());
  const auto read = ReadNetwork(folder, written.cluster);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->costs, written.costs);
  EXPECT_EQ(read->hosts, 2);
  EXPECT_EQ(read->ranks, 2);
  ASSERT_EQ(KnownNetworks(folder).size(), 1u);
  EXPECT_EQ(KnownNetworks(folder)[0].cluster, written.cluster);
  EXPECT_TRUE(absl::IsNotFound(ReadNetwork(folder, "another*1 by tcp").status()));
  EXPECT_TRUE(absl::IsNotFound(ReadNetwork("", written.cluster).status()));
}

TEST(NetworkCache, EveryTruncationAndChangedByteIsAnError) {
  const std::string whole = ToText(Example());
  ASSERT_TRUE(NetworkOf(whole).ok());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_FALSE(NetworkOf(whole.substr(0, i)).ok()) << i;
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(NetworkOf(changed).ok()) << i;
  }
}

// Written by another version, or by someone who knows the computation of the check.
TEST(NetworkCache, WhatHasARightCheckMayStillBeWrong) {
  const auto changed = [](const std::function<void(Network&)>& change) {
    Network network = Example();
    change(network);
    return std::string(NetworkOf(ToText(network)).status().message());
  };
  EXPECT_THAT(changed([](Network& n) { n.costs.latency = -1; }), HasSubstr("latency is `-1`, expected seconds"));
  EXPECT_THAT(changed([](Network& n) { n.costs.byte_to_all = std::numeric_limits<double>::infinity(); }),
              HasSubstr("byte_to_all is `inf`, expected seconds"));
  EXPECT_THAT(changed([](Network& n) { n.hosts = 0; }), HasSubstr("hosts or ranks is not a positive number"));
  EXPECT_THAT(changed([](Network& n) { n.ranks = 0; }), HasSubstr("hosts or ranks is not a positive number"));
  // A name that adds a line.
  EXPECT_THAT(changed([](Network& n) { n.cluster += "\"\nformat = \"2"; }), HasSubstr("its format is `2`, expected 1"));
}

TEST(NetworkCache, OfAnotherClusterIsAnErrorThatNamesTheFile) {
  const std::string folder = NewFolder();
  const std::string path = NetworkCachePath(folder, "x*1 by tcp");
  ASSERT_TRUE(ReplaceFile(path, ToText(Example())).ok());
  EXPECT_THAT(std::string(ReadNetwork(folder, "x*1 by tcp").status().message()), HasSubstr(path));
}

// Returns the costs that the ranks of a world use for the choice, observed from outside. Each rank has one folder.
std::vector<NetworkCosts> Chosen(int ranks, const std::vector<std::string>& folders) {
  std::vector<int> begins;
  for (int r = 0; r < ranks; ++r) begins.push_back(r);
  auto world = CreateInProcessGroups(ranks, begins, {.timeout = absl::Seconds(30)});
  EXPECT_TRUE(world.ok());
  std::vector<NetworkCosts> costs(ranks);
  std::vector<std::thread> threads;
  for (auto& communicator : *world) {
    threads.emplace_back([&, c = std::move(communicator)] {
      auto& rank = static_cast<RankCommunicator&>(*c);
      const absl::Status status = ChooseRoutes(rank, "tcp", "", folders[c->rank()]);
      EXPECT_TRUE(status.ok()) << status;
      costs[c->rank()] = rank.routes().costs;
      EXPECT_TRUE(c->Barrier("all have chosen").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return costs;
}

void ExpectAllAre(const std::vector<NetworkCosts>& found, const NetworkCosts& expected) {
  for (const NetworkCosts& each : found) EXPECT_EQ(each, expected);
}

TEST(ChooseRoutes, MeasuresOnceAndRanksAgreeWhoeverSeesTheFile) {
  const std::string folder = NewFolder(), empty = NewFolder();
  const std::vector<NetworkCosts> first = Chosen(3, {folder, folder, folder});
  EXPECT_NE(first[0], NetworkCosts()) << "they were measured";
  EXPECT_GT(first[0].latency, 0);
  EXPECT_GT(first[0].byte_to_all, 0);
  ExpectAllAre(first, first[0]);
  ExpectAllAre(Chosen(3, {folder, folder, folder}), first[0]);
  ExpectAllAre(Chosen(3, {folder, empty, ""}), first[0]);
  const std::vector<NetworkCosts> anew = Chosen(3, {empty, folder, folder});
  ExpectAllAre(anew, anew[0]);
  EXPECT_NE(anew[0], first[0]) << "it is rank 0 that has to see the file";
  ASSERT_EQ(KnownNetworks(empty).size(), 1u);
  EXPECT_EQ(KnownNetworks(empty)[0].hosts, 3) << "groups, though they are on one host";
  EXPECT_EQ(KnownNetworks(empty)[0].ranks, 1);
}

// Returns the number of consecutive messages while a world of three hosts measures.
uint32_t MessagesOfMeasuring(const std::vector<int>& begins, bool in_rank_order) {
  constexpr int kRanks = 4;
  std::vector<Watched> watched(kRanks);
  auto world = CreateInProcessGroups(
      kRanks, begins, {.timeout = absl::Seconds(30), .in_rank_order = in_rank_order}, {},
      [&](int rank, std::unique_ptr<Links> links) { return WatchLinks(std::move(links), &watched[rank]); });
  EXPECT_TRUE(world.ok());
  std::vector<std::thread> threads;
  for (auto& communicator : *world) {
    threads.emplace_back([&, c = std::move(communicator)] {
      EXPECT_TRUE(MeasureCosts(static_cast<RankCommunicator&>(*c)).ok());
      EXPECT_TRUE(c->Barrier("all have measured").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint32_t most = 0;
  for (const Watched& each : watched) most = std::max(most, each.messages.load());
  return most;
}

// Jobs with both orders share the file, so the ring is also measured in a world that never takes it.
TEST(ChooseRoutes, MeasuresTheSameRoutesInAnyOrderOfAdditions) {
  for (const std::vector<int>& begins : {std::vector<int>{0, 1, 2, 3}, std::vector<int>{0, 1, 3}}) {
    const uint32_t in_any = MessagesOfMeasuring(begins, false);
    EXPECT_GT(in_any, 10 * 2 * (begins.size() - 1)) << "small ones go around ten times";
    EXPECT_EQ(MessagesOfMeasuring(begins, true), in_any);
  }
}

TEST(ChooseRoutes, MeasuresAnewWhereTheFileIsDamagedAndSaysSo) {
  const std::string folder = NewFolder();
  const std::vector<NetworkCosts> first = Chosen(3, {folder, folder, folder});
  const std::string path = NetworkCachePath(folder, KnownNetworks(folder)[0].cluster);
  std::ofstream(path, std::ios::app) << "more\n";
  ::testing::internal::CaptureStderr();
  const std::vector<NetworkCosts> anew = Chosen(3, {folder, folder, folder});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr(path));
  EXPECT_THAT(said, HasSubstr("measured again"));
  ExpectAllAre(anew, anew[0]);
  EXPECT_TRUE(NetworkOf(Contents(path)).ok()) << "it is whole again";
}

// A file of a writer that was killed, or a copy made by a user.
TEST(NetworkCache, FilesOfOtherNamesAreNoNetworks) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(WriteNetwork(folder, Example()).ok());
  ASSERT_TRUE(ReplaceFile(NetworkCachePath(folder, Example().cluster) + ".1234", ToText(Example())).ok());
  ASSERT_TRUE(ReplaceFile(NetworkCachePath(folder, "damaged*1 by tcp"), "no network").ok());
  EXPECT_EQ(KnownNetworks(folder).size(), 1u);
}

TEST(ChooseRoutes, IsSaidWhereNothingCanBeKept) {
  ::testing::internal::CaptureStderr();
  const std::vector<NetworkCosts> costs = Chosen(3, {"/dev/null", "/dev/null", "/dev/null"});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("are not saved"));
  ExpectAllAre(costs, costs[0]);
}

TEST(ChooseRoutes, MeasuresNothingWhereCostsDecideNothing) {
  const std::string folder = NewFolder();
  for (const int ranks : {1, 2}) ExpectAllAre(Chosen(ranks, {folder, folder}), NetworkCosts());
  EXPECT_TRUE(KnownNetworks(folder).empty());
}

// Links of four ranks on which messages to ranks that are not neighbours are slow.
class SlowAcross final : public Links {
 public:
  SlowAcross(int here, std::unique_ptr<Links> links) : here_(here), links_(std::move(links)) {}
  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, MessageBuffer buffer) override {
    if (std::abs(to_rank - here_) == 2) absl::SleepFor(absl::Nanoseconds(200) * static_cast<int64_t>(buffer->size()));
    return links_->Send(to_rank, tag, std::move(buffer));
  }
  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, MessageBuffer buffer) override {
    return links_->Receive(from_rank, tag, std::move(buffer));
  }
  void Progress(absl::Duration limit) override { links_->Progress(limit); }
  absl::Status Lost(int rank) const override { return links_->Lost(rank); }
  void SendNotice(int to_rank, const Notice& notice) override { links_->SendNotice(to_rank, notice); }
  std::optional<Notice> PollNotice() override { return links_->PollNotice(); }
  absl::StatusOr<std::unique_ptr<Links>> Among(const std::vector<int>& ranks, uint32_t channel,
                                               std::vector<int> group_begins) const override {
    return links_->Among(ranks, channel, std::move(group_begins));
  }
  const std::vector<int>& group_begins() const override { return links_->group_begins(); }

 private:
  const int here_;
  const std::unique_ptr<Links> links_;
};

// Returns the costs that each of four ranks measures. Their routes are unchanged afterwards.
std::vector<NetworkCosts> CostsOfFour() {
  const auto around = [](int rank, std::unique_ptr<Links> links) {
    return std::make_unique<SlowAcross>(rank, std::move(links));
  };
  std::vector<NetworkCosts> measured(4);
  auto world = CreateInProcessGroups(4, {0, 1, 2, 3}, {.timeout = absl::Seconds(30)}, {}, around);
  EXPECT_TRUE(world.ok()) << world.status();
  if (!world.ok()) return measured;
  std::vector<std::thread> threads;
  for (auto& communicator : *world) {
    threads.emplace_back([&, c = std::move(communicator)] {
      auto& rank = static_cast<RankCommunicator&>(*c);
      const absl::StatusOr<NetworkCosts> costs = MeasureCosts(rank);
      ASSERT_TRUE(costs.ok()) << costs.status();
      measured[static_cast<size_t>(rank.rank())] = *costs;
      EXPECT_FALSE(rank.routes().preferred.has_value());
      EXPECT_TRUE(c->Barrier("all have measured").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return measured;
}

// The machine may be busy and all messages slow, so one success is enough: without a difference, no attempt succeeds.
TEST(MeasureCosts, TellsBytesToAllFromBytesToNeighboursAndLeavesTheRoutesAsTheyWere) {
  bool tells = false;
  for (int attempt = 0; attempt < 10 && !tells && !HasFailure(); ++attempt) {
    const std::vector<NetworkCosts> costs = CostsOfFour();
    tells = std::all_of(costs.begin(), costs.end(), [](const NetworkCosts& of_rank) {
      return of_rank.byte_to_all > 2 * of_rank.byte_to_neighbour;
    });
  }
  EXPECT_TRUE(tells);
}

}  // namespace
}  // namespace lockstep
