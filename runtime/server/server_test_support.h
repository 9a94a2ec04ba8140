// Parameter servers and workers as threads of one process, for tests.

#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/server/parameter_server.h"
#include "runtime/server/server_client.h"

namespace lockstep {

struct JobOptions {
  int servers = 1, workers = 1;
  bool shares_memory = true;
  bool tolerates_loss = false;
  absl::Duration timeout = absl::Seconds(60);
  MakeUpdate make_update = {};
};

// Servers that run until all workers have left, or this object is destroyed.
class ServersInProcess {
 public:
  explicit ServersInProcess(const JobOptions& options);
  ~ServersInProcess();

  std::unique_ptr<ServerClient> Connect(int rank);
  // Stops a server at once: its connections close.
  void Kill(int server);
  // Returns the result of the server's Run. Waits for it.
  absl::Status Outcome(int server);

 private:
  const JobOptions options_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  std::vector<ServerAddress> addresses_;
  std::vector<absl::Status> outcomes_;
  std::vector<std::thread> threads_;
};

// Runs body(client) on a thread for each worker.
void RunWorkers(ServersInProcess& servers, int workers, const std::function<void(ServerClient&)>& body);

}  // namespace lockstep
