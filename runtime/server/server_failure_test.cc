// Tests workers and servers that die or leave, and the names in errors.

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/server/server_test_support.h"

namespace lockstep {
namespace {

const TensorType kType{DType::kF32, Shape({4})};

void ExpectOk(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

void ExpectError(const absl::Status& status, const std::string& part) {
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status << ", expected: " << part;
}

std::vector<std::unique_ptr<ServerClient>> ConnectAll(ServersInProcess& servers, int workers) {
  std::vector<std::unique_ptr<ServerClient>> clients;
  for (int rank = 0; rank < workers; ++rank) clients.push_back(servers.Connect(rank));
  return clients;
}

void MakeFailing(ServerClient& client, bool synchronous) {
  const float value[4] = {};
  ExpectOk(client.Init("w", kType, value, {.synchronous = synchronous}));
  ExpectOk(client.SetUpdate("w", [](const TensorType&) { return std::string(kAddUpdate); }));
}

TEST(ServerFailure, AServerThatDiesIsNamed) {
  ServersInProcess servers({.servers = 2, .workers = 2});
  auto clients = ConnectAll(servers, 2);
  MakeFailing(*clients[0], false);
  servers.Kill(1);
  const absl::Time begin = absl::Now();
  for (const auto& client : clients) {
    ExpectError(client->Staleness().status(), "server 1 (rank 3 of the job, process ");
    ExpectError(client->Flush(), "on host here) died: its connection is");  // and the error stays
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  clients.clear();  // the other server gets the reason, and knows that the job has failed
  ExpectError(servers.Outcome(0), "gave up: server 1 (rank 3 of the job, process ");
}

TEST(ServerFailure, AWorkerThatDiesIsNamedToThoseThatWait) {
  for (const bool synchronous : {false, true}) {
    ServersInProcess servers({.servers = 2, .workers = 3});
    auto clients = ConnectAll(servers, 3);
    MakeFailing(*clients[0], synchronous);
    std::thread dies([&] {
      absl::SleepFor(absl::Milliseconds(100));
      clients[2]->CloseConnections();
    });
    const float gradient[4] = {1, 1, 1, 1};
    float got[4];
    const absl::Status status =
        synchronous ? clients[0]->PushPull("w", gradient, got) : clients[0]->Barrier();  // both wait for worker 2
    dies.join();
    ExpectError(status, "worker 2 (process ");
    ExpectError(status, "died: its connection is closed");
    ExpectError(clients[1]->Barrier(), "worker 2 (process ");
    clients.clear();
    ExpectError(servers.Outcome(0), "worker 2 (process ");
    ExpectError(servers.Outcome(1), "worker 2 (process ");
  }
}

TEST(ServerFailure, AWorkerThatDiesIsLeftOutIfAsked) {
  ServersInProcess servers({.servers = 2, .workers = 3, .tolerates_loss = true});
  auto clients = ConnectAll(servers, 3);
  MakeFailing(*clients[0], true);
  const float gradient[4] = {1, 2, 3, 4};
  std::thread dies([&] {
    ExpectOk(clients[2]->Push("w", gradient));  // of an update that is never complete
    absl::SleepFor(absl::Milliseconds(100));
    clients[2]->CloseConnections();
  });
  std::vector<std::thread> others;
  for (int rank = 0; rank < 2; ++rank) {
    others.emplace_back([&, rank] {
      float got[4] = {};
      for (int step = 1; step <= 3; ++step) {
        if (rank == 1 && step == 1) absl::SleepFor(absl::Milliseconds(300));
        ExpectOk(clients[static_cast<size_t>(rank)]->PushPull("w", gradient, got));
      }
      EXPECT_EQ(got[3], 3 * 2 * 4);
      ExpectOk(clients[static_cast<size_t>(rank)]->Barrier());
      const auto told = clients[static_cast<size_t>(rank)]->Exchange(std::to_string(10 + rank));
      ExpectOk(told.status());
      EXPECT_EQ(*told, (std::map<int, std::string>{{0, "10"}, {1, "11"}}));
    });
  }
  dies.join();
  for (std::thread& other : others) other.join();
  clients.clear();
  EXPECT_TRUE(servers.Outcome(0).ok()) << servers.Outcome(0);
}

TEST(ServerFailure, AWorkerThatLeavesIsMissedWhereItIsNeeded) {
  ServersInProcess servers({.servers = 1, .workers = 2});
  auto clients = ConnectAll(servers, 2);
  MakeFailing(*clients[0], true);
  clients[1].reset();  // with a goodbye
  const float gradient[4] = {1, 2, 3, 4};
  float got[4];
  ExpectError(clients[0]->PushPull("w", gradient, got), "key w waits for the gradient of worker 1");
  ExpectError(clients[0]->Barrier(), "which has left");
  clients.clear();
  EXPECT_TRUE(servers.Outcome(0).ok());
}

TEST(ServerFailure, WhoIsWaitedForTooLongIsNamed) {
  ServersInProcess servers({.servers = 2, .workers = 2, .timeout = absl::Milliseconds(300)});
  auto clients = ConnectAll(servers, 2);
  MakeFailing(*clients[0], true);
  const float gradient[4] = {1, 2, 3, 4};
  float got[4];
  const absl::Time begin = absl::Now();
  ExpectError(clients[0]->PushPull("w", gradient, got),
              "key w waits for the gradient of worker 1 (process " + std::to_string(getpid()));
  ExpectError(clients[1]->Barrier(), "a barrier waits for worker 0 (process ");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(3));
}

TEST(ServerFailure, WhatAWatchFindsEndsTheWaitForGood) {
  ServersInProcess servers({.workers = 2});
  auto clients = ConnectAll(servers, 2);
  {
    int asked = 0;
    const ServerClient::ScopedCheck watch(
        *clients[0], [&] { return ++asked < 3 ? absl::OkStatus() : absl::AbortedError("rank 1 has other troubles"); });
    {
      const ServerClient::ScopedCheck inner(*clients[0], [] { return absl::AbortedError("of an inner one"); });
    }
    ExpectError(clients[0]->Barrier(), "rank 1 has other troubles");
    EXPECT_EQ(asked, 3);
  }
  ExpectError(clients[0]->Barrier(), "rank 1 has other troubles");
  clients.clear();
  ExpectError(servers.Outcome(0), "gave up: rank 1 has other troubles");
}

TEST(ServerFailure, AWorkerThatNeverComesIsNamed) {
  ServersInProcess servers({.servers = 1, .workers = 2, .timeout = absl::Milliseconds(300)});
  auto client = servers.Connect(0);
  absl::SleepFor(absl::Milliseconds(600));
  ExpectError(client->Barrier(), "worker 1 has not arrived");
  client.reset();
  ExpectError(servers.Outcome(0), "worker 1 has not arrived within 300ms");
}

}  // namespace
}  // namespace lockstep
