// A worker's end of the parameter servers (parameter_server.h): arrays under keys, into which workers push gradients
// and of which they pull values (decisions/0039). One thread at a time uses it; there is no other: bytes travel in its
// calls. On the host of a server values travel through shared memory: a push is a copy of the gradient there, which
// the server reads in place, and a pull is a copy of the value from where the server has it.
//
//   ASSIGN_OR_RETURN(auto client, ServerClient::Connect(servers, {.rank = 1, .workers = 2}));
//   RETURN_IF_ERROR(client->Push("fc1.weight", gradient));
//   RETURN_IF_ERROR(client->Pull("fc1.weight", weight));
//
// Nothing waits for ever: a server that dies, or does not answer within the timeout, and whoever a server waits for so
// long, is named by the error. After such an error, and after one that a server tells (a worker died) or that who calls
// finds while it waits (Watch), the client stays in error, as a communicator does. Errors about one call's arguments
// are that call's alone.

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

// Where a server is, as it says itself.
struct ServerAddress {
  SocketPlace place;
  std::string host;
  int process = 0;
};

class ServerClient {
 public:
  struct Options {
    int rank = 0, workers = 1;
    absl::Duration timeout = absl::Minutes(10);
    bool shares_memory = true;              // false: values travel by TCP even on one host; for tests
    bool tolerates_loss = false;            // as the servers do (ParameterServer::Options)
    std::string interfaces = {};            // as in SocketListener::Create
    std::function<void()> on_failure = {};  // called when the client comes to be in error
  };
  struct ArrayOptions {
    bool synchronous = false;
    int64_t max_staleness = -1;
    int64_t bigarray_bound = 1'000'000;  // elements; a larger array is cut over all servers
  };
  // A call in flight; wait for each once.
  struct Ticket {
    std::vector<uint64_t> requests;
  };
  // Whether who is waited for can still come, from elsewhere than from servers; what is wrong if not. Waits for nobody.
  using Check = std::function<absl::Status()>;
  // While it lives, whoever waits in the client asks `check`, too, several times a second: its error ends the wait, and
  // is the client's from then on. They nest; that which was made last is asked.
  class Watch {
   public:
    Watch(ServerClient& client, Check check) : client_(client), before_(std::move(client.check_)) {
      client_.check_ = std::move(check);
    }
    ~Watch() { client_.check_ = std::move(before_); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    ServerClient& client_;
    Check before_;
  };

  static absl::StatusOr<std::unique_ptr<ServerClient>> Connect(const std::vector<ServerAddress>& servers,
                                                               const Options& options);
  // Says farewell, as Leave.
  ~ServerClient();

  int rank() const { return options_.rank; }
  int workers() const { return options_.workers; }
  bool tolerates_loss() const { return options_.tolerates_loss; }
  int servers() const { return static_cast<int>(links_.size()); }
  const std::string& host(int server) const { return links_[static_cast<size_t>(server)]->address.host; }
  // A number that is this worker's, 1, 2, … at each call: workers that make the same calls have the same.
  int64_t NextProgram() { return ++programs_; }
  // For callers that cannot know whether another thread uses this object.
  ExclusiveUse::Flag& in_use() { return in_use_; }

  // Makes a key, of which this is the first value. One worker calls it for all: it decides which server has the key.
  // FailedPrecondition if there is that key.
  absl::Status Init(const std::string& key, const TensorType& type, const void* value, const ArrayOptions& options);
  // The type of a key that some worker has made; NotFound if none has.
  absl::StatusOr<TensorType> TypeOf(const std::string& key);
  // The types of its pieces, by server.
  absl::StatusOr<std::vector<TensorType>> PiecesOf(const std::string& key);

  // Gives the servers a gradient of the key's type. Returns when it has been taken from `gradient`, perhaps long before
  // the update; but waits for that of the last push of this key. An error of the update is returned by a later call.
  absl::Status Push(const std::string& key, const void* gradient);
  // Fills `value` with the key's value, after the updates by what this worker has pushed before; `value` belongs to the
  // client until it has been waited for.
  absl::StatusOr<Ticket> StartPull(const std::string& key, void* value);
  absl::Status Wait(const Ticket& ticket);
  // Instead of Wait: nothing is written to `value` any more.
  void Forget(const Ticket& ticket);
  absl::Status Pull(const std::string& key, void* value);
  absl::Status PushPull(const std::string& key, const void* gradient, void* value);
  // Fills `values` with the rows (indices of dimension 0) of the key's value, in the order of `rows`.
  absl::Status PullRows(const std::string& key, std::span<const int64_t> rows, void* values);

  // Returns when what this worker has pushed has updated the values.
  absl::Status Flush();
  // Returns when all workers have called it: what each said, by worker. Of a job that tolerates their deaths, by those
  // that live. What this worker has pushed before need not be in the values; Flush waits for that.
  absl::StatusOr<std::map<int, std::string>> Exchange(const std::string& text);
  // Flush, and then Exchange of nothing.
  absl::Status Barrier();

  // Gives a key another value. What was pushed before, and has not updated yet, updates this one.
  absl::Status Assign(const std::string& key, const void* value);

  // From now on pieces of the key are updated by what the text describes that is made for each (update.h).
  using TextOf = std::function<absl::StatusOr<std::string>(const TensorType& piece)>;
  absl::Status SetUpdate(const std::string& key, const TextOf& text);
  // A setting of the updates of all keys that begin so, or, if that is empty, of those that are no program's
  // (kProgramKeys); the number of pieces that have it.
  absl::StatusOr<int64_t> Set(const std::string& setting, double value, const std::string& keys = "");
  // What the update of a key keeps, by name. A state of the pieces' types is one of the key's type; of others, such as
  // counters, each piece has the same.
  absl::StatusOr<std::map<std::string, TensorType>> States(const std::string& key);
  absl::StatusOr<Tensor> ReadState(const std::string& key, const std::string& state);
  absl::Status WriteState(const std::string& key, const std::string& state, const Tensor& value);

  // How many updates of pieces had each staleness: the updates by other workers between the pull that a gradient is
  // made from and its push.
  absl::StatusOr<std::map<int64_t, int64_t>> Staleness();

  // Waits for what was pushed, tells the servers that this worker is done, and waits until they know. Nothing may be
  // called after it.
  void Leave();
  // Goes without a farewell, as a process that is killed does. For tests.
  void CloseConnections();

 private:
  struct Link {
    Link(ServerAddress address, Descriptor connection)
        : address(std::move(address)), connection(std::move(connection)) {}
    ServerAddress address;
    MessageConnection connection;
    bool takes_memory = false;  // of this process
    bool shows_memory = false;  // of its own, which this process can open
  };
  struct Request {
    size_t server = 0;
    MessageKind kind = {};
    std::string key;
    std::byte* to = nullptr;           // of a pull
    size_t bytes = 0;                  // there
    std::shared_ptr<Segment> segment;  // that holds what was pushed
    bool is_done = false, is_forgotten = false;
    Message reply;
  };
  struct Array {
    TensorType type;
    std::vector<std::pair<size_t, ArrayInfo>> pieces;  // by server
    int64_t pushed = 0;
    std::vector<uint64_t> pushes;  // that are under way
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
  absl::Status AskWatch();
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
  Check check_;                               // of the Watch that lives
  std::vector<std::unique_ptr<Link>> links_;  // by server
  PeerMemory memory_{/*one_process=*/false};
  std::map<std::string, Array> arrays_;
  std::vector<int64_t> bytes_;  // that this worker has placed, by server
  std::map<uint64_t, Request> requests_;
  uint64_t next_request_ = 1;
  absl::Status failure_, push_error_;
  int64_t programs_ = 0;
  bool has_left_ = false;
};

}  // namespace lockstep
