// One array of a parameter server: its value, the states of its update, and the waiting requests of workers. Requests
// that need not wait are served in the order of arrival. The requests of one worker never overtake each other.
//
// Asynchronous: each gradient is an update at once. With a bound on staleness, a worker's request waits while the
// worker has pushed more gradients than the slowest worker plus the bound (Ho et al., More Effective Distributed ML via
// a Stale Synchronous Parallel Parameter Server, NeurIPS 2013). Synchronous: the gradients of all workers are one
// update, their sum in worker order. Without an update function, the sum is the value.
//
// The value lies in memory that workers of this host can open. It is not written while a worker reads it (between the
// reply to a pull and its release): an update writes to other memory, so there is at most one piece more than readers.
// Used by the server's thread.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/host/memory.h"
#include "runtime/server/array_info.h"
#include "runtime/server/message.h"
#include "runtime/server/update.h"
#include "runtime/server/workers.h"

namespace lockstep {

class ServedArray {
 public:
  // Sends a reply to a worker's request. A worker that is gone gets none.
  using Reply = std::function<void(int worker, uint64_t request, Message reply)>;

  // Copies `value`. `workers` is borrowed.
  static absl::StatusOr<std::unique_ptr<ServedArray>> Create(std::string key, const ArrayInfo& info,
                                                             const std::byte* value, const Workers* workers,
                                                             Reply reply);

  const ArrayInfo& info() const { return info_; }
  Update* update() { return update_.get(); }
  void set_update(std::unique_ptr<Update> update) { update_ = std::move(update); }

  // Assigns a new value, which is copied. Waiting requests see it.
  absl::Status Assign(const std::byte* value);
  // Takes a push, a pull or a pull of ranges. `gradient` is that of a push, and must live until the reply.
  void Take(int worker, Message message, const std::byte* gradient);
  // Notes that the worker has read the memory in the reply to this request.
  void Release(int worker, uint64_t request);
  // Call it when a worker is gone: its waiting requests are dropped, and others continue, or fail if they need it.
  void Forget(int worker);

  // Returns what the request waits for; empty if it does not wait here.
  std::string Describe(int worker, uint64_t request) const;
  // The number of updates with each staleness: updates by other workers between the worker's last pull and its push.
  const std::map<int64_t, int64_t>& staleness() const { return staleness_; }

 private:
  struct Request {
    int worker = 0;
    Message message;
    const std::byte* gradient = nullptr;
  };
  struct Reader {
    int worker = 0;
    uint64_t request = 0;
  };
  struct Memory {
    std::shared_ptr<Segment> segment;  // workers also open it
    std::vector<Reader> readers;
  };
  struct PerWorker {
    int64_t pushed = 0;
    int64_t pulled_version = 0, pushed_since = 0;
    std::deque<Request> round;  // synchronous: its gradient for the next update, at most one
  };

  ServedArray(std::string key, const ArrayInfo& info, const Workers* workers, Reply reply);
  void Advance();
  bool Serve(Request& request);
  bool MustWait(const Request& request) const;
  absl::Status Check(const Request& request) const;
  void Push(Request& request);
  void CompleteRound();
  void Refuse();
  void ReplyWithValue(const Request& request);
  absl::Status Apply(const std::byte* gradient);
  absl::StatusOr<size_t> FreeMemory();
  void Sum(std::byte* sum) const;

  const std::string key_;
  const ArrayInfo info_;
  const Workers& workers_;
  const Reply reply_;
  std::unique_ptr<Update> update_;
  std::vector<Memory> memory_;
  size_t current_ = 0;   // the position of the value
  int64_t version_ = 0;  // the number of updates
  int64_t rounds_ = 0;   // synchronous: the number of sums, including those whose update failed
  std::vector<PerWorker> per_worker_;
  std::deque<Request> waiting_;
  std::unique_ptr<std::byte[]> sum_;
  std::map<int64_t, int64_t> staleness_;
};

}  // namespace lockstep
