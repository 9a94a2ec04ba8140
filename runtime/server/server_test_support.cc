#include "runtime/server/server_test_support.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep {

ServersInProcess::ServersInProcess(const JobOptions& options)
    : options_(options), outcomes_(static_cast<size_t>(options.servers)) {
  servers_.reserve(outcomes_.size());
  for (int i = 0; i < options.servers; ++i) {
    auto server = ParameterServer::Create({.workers = options.workers,
                                           .tolerates_loss = options.tolerates_loss,
                                           .timeout = options.timeout,
                                           .make_update = options.make_update});
    EXPECT_TRUE(server.ok()) << server.status();
    addresses_.push_back({(*server)->info(), "here", getpid()});
    servers_.push_back(*std::move(server));
    threads_.emplace_back(
        [run = servers_.back().get(), outcome = &outcomes_[static_cast<size_t>(i)]] { *outcome = run->Run(); });
  }
}

ServersInProcess::~ServersInProcess() {
  for (int i = 0; i < options_.servers; ++i) {
    if (threads_[static_cast<size_t>(i)].joinable()) Kill(i);
  }
}

std::unique_ptr<ServerClient> ServersInProcess::Connect(int rank) {
  auto client = ServerClient::Connect(addresses_, {.rank = rank,
                                                   .workers = options_.workers,
                                                   .timeout = options_.timeout,
                                                   .shares_memory = options_.shares_memory,
                                                   .tolerates_loss = options_.tolerates_loss});
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

void ServersInProcess::Kill(int server) {
  const auto i = static_cast<size_t>(server);
  servers_[i]->Stop();
  threads_[i].join();
  servers_[i].reset();
}

absl::Status ServersInProcess::Outcome(int server) {
  const auto i = static_cast<size_t>(server);
  if (threads_[i].joinable()) threads_[i].join();
  return outcomes_[i];
}

void RunWorkers(ServersInProcess& servers, int workers, const std::function<void(ServerClient&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<ServerClient> client = servers.Connect(rank);
      if (client != nullptr) body(*client);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep
