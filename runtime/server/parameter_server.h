// A parameter server: keeps arrays under keys, and updates them by what workers push (decisions/0039). One thread is in
// Run, which sleeps in the kernel while there is nothing to do; it takes connections, requests and gradients, and runs
// the updates. Workers use runtime/server/server_client.h. A server knows no graph: the update of a key is made by
// Options::make_update from a text that a worker sends.
//
// A worker whose connection closes without a farewell has died. Then the job has failed: all others are told, with its
// name, by the next reply or at once where they wait; or, where Options::tolerates_loss, the others go on, and nothing
// waits for it any more.

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
    absl::Duration timeout = absl::Minutes(10);  // for all workers to come
    std::string interfaces = {};                 // as in SocketListener::Create
    MakeUpdate make_update = {};                 // of texts other than `add`; null: there are no others
  };
  static absl::StatusOr<std::unique_ptr<ParameterServer>> Create(const Options& options);

  // Where workers find it.
  const SocketPlace& place() const { return listener_->place(); }

  // Serves until all workers have left: OK, or the failure of the job.
  absl::Status Run();

  // Makes Run return. Any thread.
  void Stop();

 private:
  // Of a worker that waits for what all say.
  struct Said {
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
    absl::Status gives_up;  // why
  };

  explicit ParameterServer(const Options& options);
  absl::Status Open();
  // How long Run may sleep, in milliseconds, and the failure if it has slept too long.
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
  // The reply to what can be answered at once.
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
  std::vector<PeerMemory> memory_of_gone_;  // in which gradients may lie that have not been used yet
  std::map<int, Said> at_exchange_;         // by rank
  std::shared_ptr<Segment> probe_;          // which workers try to open
  absl::Status failure_;
  absl::Duration began_, failed_at_;
  bool stopped_ = false;
};

}  // namespace lockstep
