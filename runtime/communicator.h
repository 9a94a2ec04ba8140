// The interface for communication between ranks: collectives over memory that the communicator allocates, as blocking
// calls or as a start and a wait. A Communicator is an argument, never a global. One object is one rank's end of it.
// The executor calls it from the rank's own thread. Calls must not overlap, except Abort and CheckPeers, which any
// thread may call at any time.
//
// The rules that all implementations keep (runtime/comm/conformance/in_process_test.cc tests them):
//  * All ranks start the same collectives in the same order. Calls are numbered. If the ranks' n-th calls differ in op,
//    kind, dtype, counts, root, pairs or label, all ranks get an error that prints two of the calls. If the evidence of
//    the calls differs, all ranks get kFailedPrecondition with two of the ranks, the call, and the first field that
//    differs.
//  * Reductions are taken in rank order, ((x0 + x1) + x2) + ..., with every transport, in place or not. Between more
//    than two hosts, or hosts of several ranks, the order is that of the route, which depends on the network
//    (runtime/comm/routes/route_choice.h), so bits may differ between placements of the ranks on hosts.
//    Options::in_rank_order asks for rank order there, too. In every order, every byte of the results is equal on all
//    ranks, and in every run with the same routes. f16 and bf16 accumulate in f32 and are rounded once (twice for bf16
//    if a host of several ranks adds its own first). All other dtypes accumulate in themselves, integers modulo 2^bits.
//    Mean is the sum divided by size(). For integers, the sum is then taken in 64 bits and the quotient is truncated.
//    A NaN on any rank is the min and the max. On bool, sum and max are "any"; prod, min and mean are "all".
//  * Between start and wait, the operands belong to the communicator: the input must not be written, the output must
//    neither be read nor written, and neither may be freed before the wait returns, Abort returns, or the communicator
//    is destroyed.
//  * No call waits for ever. If a rank calls Abort, dies, destroys its communicator, starts another call or does not
//    arrive within Options::timeout, the calls of its peers return an error with that rank, its host and the label.
//    The error does not name a rank that is itself waiting: the chain of waiting ranks is followed to its end, which
//    may take two seconds more than the timeout. After an error, a communicator stays in error: every call returns it,
//    later calls with the words that an earlier call failed, and no peer touches the operands of this rank any more.
//    (An error about the arguments of one call has the code kInvalidArgument. Only the caller gets it, and nothing was
//    started. The caller should correct the call or Abort.)
//  * A communicator belongs to the process that made it. In a forked process, every call returns an error and does
//    nothing else. Abort and destruction do nothing there.
//
// Which thread does the work? Ranks that share memory (in process, or on one host) have no communication thread. Start
// publishes the operands. As soon as all ranks have published theirs, the ranks in a wait take pieces of the reduction
// and write the results to the outputs of all ranks. So a rank that computes is not disturbed, a rank that has to wait
// does the work, and a late rank finds its bucket reduced. With one thread per rank, a communication thread would only
// take cycles from the kernels. If there are spare cores, Options::progress_thread adds one. Between hosts there is
// always such a thread, because data must flow while kernels run.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/collective.h"
#include "runtime/exclusive_use.h"

namespace lockstep {

// A queue of a device (runtime/device.h). CPUs have none: pass nullptr. On a GPU, start makes the collective wait for
// the present work of the stream, and wait makes later work of the stream wait for the collective. The host thread
// blocks in neither.
class Stream;

class Recorder;

// Memory that is registered with a communicator, in which collectives need no copies. data() is this rank's own part: a
// plain pointer, aligned to 64 bytes, initially zero. It points to device memory if the communicator is one of devices.
// It may outlive its communicator.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Returns why collectives copy this memory after all, such as "ncclCommRegister: …"; empty if they do not.
  const std::string& why_copied() const { return why_copied_; }

 protected:
  RegisteredMemory(std::byte* data, size_t bytes, std::string why_copied = "")
      : data_(data), bytes_(bytes), why_copied_(std::move(why_copied)) {}

 private:
  std::byte* data_;
  size_t bytes_;
  std::string why_copied_;
};

class Communicator {
 public:
  struct Options {
    absl::Duration timeout = absl::Minutes(10);  // the time that a call waits for a live peer that does not arrive
    bool progress_thread = false;                // adds a communication thread even if all ranks share memory
    // If true, reductions add in rank order however the ranks are distributed over hosts, so that another distribution
    // gives the same bits. If false, hosts of several ranks may first add their own, which sends less, and many hosts
    // may add in the order of a ring or a tree.
    bool in_rank_order = false;
  };

  // The values on which ranks must agree, besides the call itself, for a collective to be meaningful. They are compared
  // with every collective. Zeros are compared like other numbers.
  struct Evidence {
    uint64_t program = 0;      // hash of the program that the ranks run; 0: the call belongs to no program
    uint64_t assignments = 0;  // hash of the number of assignments of each state since the last run; 0: no assignments
    uint64_t inputs = 0;       // hash of the replicated inputs
    uint64_t states = 0;       // hash of the replicated states
    uint64_t settings = 0;     // hash of the settings
    // The states that were assigned and the settings that differ from their initial values, as texts for the message.
    // They end with a 0; empty: none.
    std::array<char, 128> assigned = {}, set = {};
    // Compares only the numbers, which represent the texts. So peers need not read the cache lines of the texts.
    bool operator==(const Evidence& other) const {
      return program == other.program && assignments == other.assignments && inputs == other.inputs &&
             states == other.states && settings == other.settings;
    }
  };

  // The description of a call in messages, its stream, and its evidence. The label ("bucket 0 (%g1, %g2)") must be
  // equal on all ranks; its first 95 bytes count.
  struct Call {
    std::string_view label;
    Stream* stream = nullptr;
    Evidence evidence = {};
    // If true, no data is moved and the operands are not touched; they may be null. The call is compared with those of
    // the peers, and its Wait returns when all have started it. Must be equal on all ranks.
    bool compared_only = false;
    // If true, messages call the broadcast a transfer from one rank. The label then names source and target, since the
    // root is a number within this communicator, which users do not know.
    bool is_transfer = false;
  };

  // A collective in flight. A plain value. Wait for each ticket exactly once, in any order.
  struct Ticket {
    uint64_t id = 0;
  };

  // Destruction without a ticket in flight means that this rank is done and peers need nothing more from it. With a
  // ticket in flight, destruction is an Abort.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(hosts_.size()); }
  const std::string& transport() const { return transport_; }  // "in_process", "shared_memory", "mpi", …
  // Returns true if the memory that this communicator allocates is host memory, as Device::is_host(), and false if it
  // is memory of this rank's device.
  bool is_host() const { return traits_.is_host; }
  // Returns true if reductions follow the rules above exactly. Otherwise the header of the implementation says what
  // differs. Results are equal on all ranks in both cases.
  bool reduces_in_rank_order() const { return traits_.reduces_in_rank_order; }
  // Returns true if the host's communicator carries a collective when a stream reaches it. Then no one may call the
  // host's communicator before the stream has ended. If false, it is free as soon as Wait has returned.
  bool needs_host_in_stream() const { return traits_.needs_host_in_stream; }
  absl::Duration timeout() const { return traits_.timeout; }        // Options::timeout
  const std::string& host(int rank) const { return hosts_[rank]; }  // the host name of that rank
  const std::vector<std::string>& hosts() const { return hosts_; }  // by rank
  // The recorder of this rank (runtime/record/recorder.h). All communicators of a world share it, and it lives as long
  // as they do. Null without recording.
  Recorder* recorder() const { return traits_.recorder; }
  // For callers that cannot know if another thread uses this object (runtime/exclusive_use.h). The calls of an Executor
  // hold it.
  ExclusiveUse::Flag& in_use() { return in_use_; }
  int ranks_on_this_host() const;  // the number of ranks on this rank's host, including itself
  int rank_on_this_host() const;   // this rank's number among them

  // Allocates at least `bytes` (0 is fine) of registered memory. Collective: all ranks call it, each with its own size.
  virtual absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) = 0;

  // Allocates memory that all ranks share: data() has the same bytes on each. Collective, with equal `bytes`. The
  // callers must synchronize their reads and writes. A collective whose operands lie there needs a copy between
  // processes. FailedPrecondition if the ranks have no memory in common: on several hosts, or on devices.
  virtual absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) = 0;

  // Starts a collective. Operands may lie in registered memory or elsewhere. Elsewhere costs a copy in and a copy out
  // between processes of one host. Operands that overlap are an error unless they are in place (runtime/collective.h).
  virtual absl::StatusOr<Ticket> Start(const Collective& collective, const void* input, void* output,
                                       const Call& call) = 0;

  // Returns when the collective is complete and its output may be used (on a GPU: by later work of `stream`).
  virtual absl::Status Wait(Ticket ticket, Stream* stream = nullptr) = 0;

  // Returns when all ranks have called it.
  virtual absl::Status Barrier(std::string_view label) = 0;

  // Returns the strings of all ranks, by rank. Any length, in host memory. For comparing certificates and options, not
  // for tensors.
  virtual absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) = 0;

  // Returns a communicator of the ranks that pass the same color, in rank order. Its rank() and size() count only these
  // ranks. Collective: all ranks call it. Messages still use the ranks' numbers in the world, the communicator from
  // which all others were split. A failure of one communicator is a failure of all communicators of the world, on all
  // its ranks. For this, the communicator of the world must outlive the others; otherwise a failure reaches only the
  // ranks of its own communicator. Memory is registered with the communicator that allocated it.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) = 0;

  // Returns OK, or the failure of the world, as the next call would return it. Also checks if peers have died. For
  // callers that wait for peers by other means than a call. Does not wait. Any thread, also while another thread is in
  // a call.
  virtual absl::Status CheckPeers() = 0;

  // Tells the peers that this rank fails because of `cause` (not OK). Their present or next call returns an error with
  // this rank, its host and the message, and so do this rank's own calls. Takes a moment at most. The first abort
  // counts.
  virtual void Abort(const absl::Status& cause) = 0;

  // Calls Start and then Wait.
  absl::Status Run(const Collective& collective, const void* input, void* output, const Call& call);

 protected:
  struct Traits {
    bool is_host = true;
    bool reduces_in_rank_order = true;
    bool needs_host_in_stream = false;
    absl::Duration timeout = Options().timeout;
    Recorder* recorder = nullptr;
  };
  Communicator(int rank, std::vector<std::string> hosts, std::string transport, const Traits& traits);

 private:
  const int rank_;
  const std::vector<std::string> hosts_;  // by rank
  const std::string transport_;
  const Traits traits_;
  ExclusiveUse::Flag in_use_;
};

}  // namespace lockstep
