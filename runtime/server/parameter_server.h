// A parameter server: keeps arrays under keys, and updates them by the gradients that workers push (decisions/0039).
// One thread is in Run, which sleeps in the kernel when idle. It accepts connections, requests and gradients, and runs
// the updates. Workers use runtime/server/server_client.h. A server knows no graph: Options::make_update makes the
// update of a key from a text that a worker sends.
//
// A worker whose connection closes without a goodbye has died. Then the job has failed: all other workers get an error
// with its name, by the next reply or at once during a wait. With Options::tolerates_loss, the others continue, and
// nothing waits for that worker any more.

#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/comm/host/memory.h"
#include "runtime/comm/network/sockets.h"
#include "runtime/server/message.h"
#include "runtime/server/served_array.h"
#include "runtime/server/update.h"
#include "runtime/server/workers.h"

namespace lockstep {

class ParameterServer {
 public:
  struct Options {
    int workers = 1;
    bool tolerates_loss = false;
    absl::Duration timeout = absl::Minutes(10);  // for all workers to arrive
    std::string interfaces = {};                 // as in SocketListener::Create
    MakeUpdate make_update = {};                 // for texts other than `add`; null: there are none
  };
  static absl::StatusOr<std::unique_ptr<ParameterServer>> Create(const Options& options);

  // The port and the addresses to which workers connect.
  const ListenerInfo& info() const { return listener_->info(); }

  // Serves until all workers have left. Returns OK, or the failure of the job.
  absl::Status Run();

  // Makes Run return. Any thread.
  void Stop();

 private:
  // The message of a worker that waits for those of all workers.
  struct ExchangeEntry {
    uint64_t request = 0;
    std::string text;
  };
  struct Client {
    explicit Client(int rank, Descriptor connection) : rank(rank), connection(std::move(connection)) {}
    int rank;
    MessageConnection connection;
    PeerMemory memory{/*one_process=*/false};
    bool is_watched_for_writing = false;
    bool says_farewell = false;
    absl::Status gives_up;  // the reason, if it gives up
  };

  explicit ParameterServer(const Options& options);
  absl::Status Open();
  // Returns the milliseconds for which Run may sleep, or a failure if it has slept too long.
  absl::StatusOr<int> Patience() const;
  void Welcome();
  void Read(Client& client);
  void Flush();
  void Lose(int rank, const absl::Status& why);
  void Fail(const absl::Status& failure);
  bool IsOver() const;

  void Take(Client& client, Message message);
  void TakeHello(Client& client, const Message& message);
  absl::StatusOr<const std::byte*> Bytes(Client& client, const Message& message, size_t* bytes);
  // Returns the reply to a message that can be answered at once.
  absl::StatusOr<Message> Answer(Client& client, const Message& message);
  absl::StatusOr<Message> Init(Client& client, const Message& message);
  absl::StatusOr<Message> Find(const Message& message);
  absl::StatusOr<Message> Assign(Client& client, const Message& message);
  absl::StatusOr<Message> SetUpdate(const Message& message);
  absl::StatusOr<Message> Set(const Message& message);
  absl::StatusOr<Message> States(const Message& message);
  absl::StatusOr<Message> ReadState(const Message& message);
  absl::StatusOr<Message> WriteState(Client& client, const Message& message);
  absl::StatusOr<Message> Staleness();
  absl::StatusOr<Message> Describe(int worker, const Message& message);
  absl::StatusOr<ServedArray*> FindArray(const std::string& key);
  absl::StatusOr<Update*> FindUpdate(const std::string& key);
  void TakeExchange(int rank, const Message& message);
  void AdvanceExchange();
  void Reply(int worker, uint64_t request, Message reply);

  const Options options_;
  std::shared_ptr<SocketListener> listener_;
  Descriptor poll_, stop_;
  int arrivals_ = -1;
  Workers workers_;
  std::map<int, std::unique_ptr<Client>> clients_;  // by rank
  std::map<int, int> ranks_;                        // by descriptor
  std::map<std::string, std::unique_ptr<ServedArray>, std::less<>> arrays_;
  std::vector<PeerMemory> memory_of_gone_;    // may contain gradients that have not been used yet
  std::map<int, ExchangeEntry> at_exchange_;  // by rank
  std::shared_ptr<Segment> probe_;            // workers try to open it
  absl::Status failure_;
  absl::Duration began_, failed_at_;
  bool stopped_ = false;
};

}  // namespace lockstep
