// One array of a parameter server: its value, what its update keeps, and the requests of workers that wait. What may go
// on does so, in the order in which it came; of one worker nothing overtakes what it sent before.
//
// Asynchronous: each gradient is an update at once. With a bound on staleness what a worker asks for waits while it has
// pushed more than so many gradients more than the slowest worker (Ho et al., More Effective Distributed ML via a Stale
// Synchronous Parallel Parameter Server, NeurIPS 2013). Synchronous: the gradients of all workers are one update, their
// sum in the order of workers; without an update the sum is the value.
//
// The value lies in memory that workers of this host can open. While one reads it (between the reply to a pull and its
// release) it is not written: an update goes to other memory, so at most one piece more than there are readers. Used by
// the server's thread.

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
  // Sends a reply to a worker's request; one who is gone gets none.
  using Reply = std::function<void(int worker, uint64_t request, Message reply)>;

  // `value` is copied. `workers` is borrowed.
  static absl::StatusOr<std::unique_ptr<ServedArray>> Create(std::string key, const ArrayInfo& info,
                                                             const std::byte* value, const Workers* workers,
                                                             Reply reply);

  const ArrayInfo& info() const { return info_; }
  Update* update() { return update_.get(); }
  void set_update(std::unique_ptr<Update> update) { update_ = std::move(update); }

  // Gives it another value, which is copied. Requests that wait see that one.
  absl::Status Assign(const std::byte* value);
  // Takes a push, a pull or a pull of ranges. `gradient`: of a push, which lives until the reply.
  void Take(int worker, Message message, const std::byte* gradient);
  // The worker has read what the reply to this request of its showed.
  void Release(int worker, uint64_t request);
  // A worker is there no more: what it waits for is dropped, and others go on, or fail if they need it.
  void Forget(int worker);

  // What the request waits for; empty if it is none that waits here.
  std::string Describe(int worker, uint64_t request) const;
  // How many updates had each staleness: updates by other workers between the worker's last pull and its push.
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
    std::shared_ptr<Segment> segment;  // opened by workers, too
    std::vector<Reader> readers;
  };
  struct PerWorker {
    int64_t pushed = 0;
    int64_t pulled_version = 0, pushed_since = 0;
    std::deque<Request> round;  // synchronous: its gradient of the next update, one at most
  };

  ServedArray(std::string key, const ArrayInfo& info, const Workers* workers, Reply reply);
  void Advance();
  bool Serve(Request& request);
  bool MustWait(const Request& request) const;
  absl::Status Check(const Request& request) const;
  void Push(Request& request);
  void CompleteRound();
  void Refuse();
  void Show(const Request& request);
  absl::Status Apply(const std::byte* gradient);
  absl::StatusOr<size_t> FreeMemory();
  void Sum(std::byte* sum) const;

  const std::string key_;
  const ArrayInfo info_;
  const Workers& workers_;
  const Reply reply_;
  std::unique_ptr<Update> update_;
  std::vector<Memory> memory_;
  size_t current_ = 0;   // where the value is
  int64_t version_ = 0;  // updates
  int64_t rounds_ = 0;   // synchronous: sums, also those whose update failed
  std::vector<PerWorker> per_worker_;
  std::deque<Request> waiting_;
  std::unique_ptr<std::byte[]> sum_;
  std::map<int64_t, int64_t> staleness_;
};

}  // namespace lockstep
