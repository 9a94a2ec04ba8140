// A worker's client of the parameter servers (parameter_server.h): arrays under keys, to which workers push gradients
// and from which they pull values (decisions/0039). One thread at a time uses it. It has no thread of its own: data
// moves during its calls. On the host of a server, values are passed by shared memory: a push copies the gradient
// there, and the server reads it in place; a pull copies the value from the server's memory.
//
//   ASSIGN_OR_RETURN(auto client, ServerClient::Connect(servers, {.rank = 1, .workers = 2}));
//   RETURN_IF_ERROR(client->Push("fc1.weight", gradient));
//   RETURN_IF_ERROR(client->Pull("fc1.weight", weight));
//
// No call waits for ever. If a server dies or does not answer within the timeout, or if a server waits too long for a
// worker, the error names it. After such an error, after an error from a server (a worker died), or after an error of a
// ScopedCheck, the client stays in error, like a communicator. Errors about the arguments of one call concern only that
// call.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/tensor.h"
#include "runtime/comm/host/memory.h"
#include "runtime/comm/network/sockets.h"
#include "runtime/exclusive_use.h"
#include "runtime/server/array_info.h"
#include "runtime/server/message.h"

namespace lockstep {

// The address of a server, as the server publishes it.
struct ServerAddress {
  ListenerInfo listener;
  std::string host;
  int process = 0;
};

class ServerClient {
 public:
  struct Options {
    int rank = 0, workers = 1;
    absl::Duration timeout = absl::Minutes(10);
    bool shares_memory = true;              // false: values travel by TCP even on one host; for tests
    bool tolerates_loss = false;            // as for the servers (ParameterServer::Options)
    std::string interfaces = {};            // as in SocketListener::Create
    std::function<void()> on_failure = {};  // called when the client enters the error state
  };
  struct ArrayOptions {
    bool synchronous = false;
    int64_t max_staleness = -1;
    int64_t bigarray_bound = 1'000'000;  // elements; a larger array is split over all servers
  };
  // A call in flight. Wait for each once.
  struct Ticket {
    std::vector<uint64_t> requests;
  };
  // Returns OK while the awaited workers can still arrive, otherwise the error, from another source than the servers.
  // Must not wait.
  using Check = std::function<absl::Status()>;
  // While an object lives, waits in the client also call `check`, several times a second. Its error ends the wait and
  // puts the client in error. Objects nest: only the latest one is called.
  class ScopedCheck {
   public:
    ScopedCheck(ServerClient& client, Check check) : client_(client), before_(std::move(client.check_)) {
      client_.check_ = std::move(check);
    }
    ~ScopedCheck() { client_.check_ = std::move(before_); }
    ScopedCheck(const ScopedCheck&) = delete;
    ScopedCheck& operator=(const ScopedCheck&) = delete;

   private:
    ServerClient& client_;
    Check before_;
  };

  static absl::StatusOr<std::unique_ptr<ServerClient>> Connect(const std::vector<ServerAddress>& servers,
                                                               const Options& options);
  // Says goodbye, like Leave.
  ~ServerClient();

  int rank() const { return options_.rank; }
  int workers() const { return options_.workers; }
  bool tolerates_loss() const { return options_.tolerates_loss; }
  int servers() const { return static_cast<int>(links_.size()); }
  const std::string& host(int server) const { return links_[static_cast<size_t>(server)]->address.host; }
  // Returns 1, 2, … at successive calls of this worker. Workers that make the same calls get the same numbers.
  int64_t NextProgram() { return ++programs_; }
  // For callers that cannot know if another thread uses this object.
  ExclusiveUse::Flag& in_use() { return in_use_; }

  // Creates a key with its first value. One worker calls it for all, and decides which server has the key.
  // FailedPrecondition if the key exists.
  absl::Status Init(const std::string& key, const TensorType& type, const void* value, const ArrayOptions& options);
  // Returns the type of a key that some worker has created; NotFound if there is none.
  absl::StatusOr<TensorType> TypeOf(const std::string& key);
  // Returns the types of its pieces, by server.
  absl::StatusOr<std::vector<TensorType>> PiecesOf(const std::string& key);

  // Sends a gradient of the key's type to the servers. Returns when `gradient` has been copied, perhaps long before the
  // update. But it waits for the update of this worker's previous push of this key. A later call returns an error of
  // the update.
  absl::Status Push(const std::string& key, const void* gradient);
  // Starts to fill `value` with the key's value, after the updates by this worker's earlier pushes. `value` belongs to
  // the client until Wait returns.
  absl::StatusOr<Ticket> StartPull(const std::string& key, void* value);
  absl::Status Wait(const Ticket& ticket);
  // Call it instead of Wait: `value` is not written any more.
  void Forget(const Ticket& ticket);
  absl::Status Pull(const std::string& key, void* value);
  absl::Status PushPull(const std::string& key, const void* gradient, void* value);
  // Fills `values` with the rows (indices of dimension 0) of the key's value, in the order of `rows`.
  absl::Status PullRows(const std::string& key, std::span<const int64_t> rows, void* values);

  // Returns when this worker's pushes have updated the values.
  absl::Status Flush();
  // Returns the texts of all workers, by worker, when all have called it; if the job tolerates deaths, those of the
  // live workers. This worker's earlier pushes need not be in the values; Flush waits for them.
  absl::StatusOr<std::map<int, std::string>> Exchange(const std::string& text);
  // Calls Flush, and then Exchange with an empty text.
  absl::Status Barrier();

  // Assigns a new value to a key. Earlier pushes that have not updated yet update the new value.
  absl::Status Assign(const std::string& key, const void* value);

  // Sets the update of the key's pieces for later pushes. `text` returns the text of the update of each piece
  // (update.h).
  using TextOf = std::function<absl::StatusOr<std::string>(const TensorType& piece)>;
  absl::Status SetUpdate(const std::string& key, const TextOf& text);
  // Sets a setting in the updates of all keys with the prefix `keys`, or, if that is empty, of the keys that belong to
  // no program (kProgramKeys). Returns the number of pieces that have the setting.
  absl::StatusOr<int64_t> Set(const std::string& setting, double value, const std::string& keys = "");
  // Returns the states of a key's update, by name. A state with the type of the pieces appears with the key's type.
  // Other states, such as counters, are equal in all pieces.
  absl::StatusOr<std::map<std::string, TensorType>> States(const std::string& key);
  absl::StatusOr<Tensor> ReadState(const std::string& key, const std::string& state);
  absl::Status WriteState(const std::string& key, const std::string& state, const Tensor& value);

  // Returns how many updates of pieces had each staleness: the number of updates by other workers between the pull from
  // which a gradient was computed and its push.
  absl::StatusOr<std::map<int64_t, int64_t>> Staleness();

  // Waits for pushes, tells the servers that this worker is done, and waits until they know. No other call may follow.
  void Leave();
  // Closes the connections without a goodbye, like a process that is killed. For tests.
  void CloseConnections();

 private:
  struct Link {
    Link(ServerAddress address, Descriptor connection)
        : address(std::move(address)), connection(std::move(connection)) {}
    ServerAddress address;
    MessageConnection connection;
    bool takes_memory = false;  // the server can open memory of this process
    bool shows_memory = false;  // this process can open memory of the server
  };
  struct Request {
    size_t server = 0;
    MessageKind kind = {};
    std::string key;
    std::byte* to = nullptr;           // of a pull
    size_t bytes = 0;                  // of `to`
    std::shared_ptr<Segment> segment;  // the memory of a push
    bool is_done = false, is_forgotten = false;
    Message reply;
  };
  struct Array {
    TensorType type;
    std::vector<std::pair<size_t, ArrayInfo>> pieces;  // by server
    int64_t pushed = 0;
    std::vector<uint64_t> pushes;  // pushes in flight
  };

  explicit ServerClient(const Options& options) : options_(options) {}
  std::string Name(size_t server) const;
  absl::Status Greet();
  absl::StatusOr<Array*> Find(const std::string& key);
  absl::StatusOr<uint64_t> Send(size_t server, Message message, Request request);
  absl::StatusOr<uint64_t> Send(size_t server, Message message) { return Send(server, std::move(message), Request()); }
  absl::Status Attach(Message& message, Request& request, const std::byte* data, size_t bytes);
  absl::StatusOr<std::vector<Message>> Call(std::vector<std::pair<size_t, Message>> messages);
  absl::Status Await(std::span<const uint64_t> requests);
  absl::Status RunCheck();
  absl::StatusOr<Message> Finish(uint64_t request);
  void Progress(absl::Duration limit);
  void Take(size_t server, Message message);
  absl::Status Receive(size_t server, uint64_t id, Request& request, const Message& reply);
  absl::Status Release(size_t server, uint64_t id, const std::string& key);
  absl::Status Late(uint64_t request);
  absl::Status DescribeSilence(size_t server) const;
  void AwaitFarewells(absl::Duration end);
  absl::Status Fail(const absl::Status& failure);
  absl::Status CheckUsable();

  const Options options_;
  ExclusiveUse::Flag in_use_;
  Check check_;                               // of the latest ScopedCheck
  std::vector<std::unique_ptr<Link>> links_;  // by server
  PeerMemory memory_{/*one_process=*/false};
  std::map<std::string, Array> arrays_;
  std::vector<int64_t> bytes_;  // placed by this worker, by server
  std::map<uint64_t, Request> requests_;
  uint64_t next_request_ = 1;
  absl::Status failure_, push_error_;
  int64_t programs_ = 0;
  bool has_left_ = false;
};

}  // namespace lockstep
