// How the ranks of a job talk: collectives over memory that the communicator gives out, as blocking calls or as a start
// and a wait. A Communicator is an argument, never a global; one object is one rank's end of it. The executor calls it
// from the rank's own thread: no two calls at a time, except Abort and CheckPeers, which any thread may call at any
// moment.
//
// The rules that all implementations keep (runtime/comm/conformance/in_process_test.cc tests them):
//  * Every rank starts the same collectives in the same order. Each is numbered; if the ranks' n-th calls differ in op,
//    kind, dtype, counts, root, pairs or label, all ranks get an error that prints two of the sides. If the calls'
//    evidence differs, all ranks get kFailedPrecondition with two of the ranks, the call, and the first field that
//    differs.
//  * Reductions are taken in rank order, ((x0 + x1) + x2) + ..., whatever the transport, in place or not. Between more
//    than two hosts, and hosts of several ranks, the order is that of the route that is taken, which the network
//    decides, too (runtime/comm/routes/route_choice.h), unless Options::in_rank_order asks for rank order there: where
//    ranks are placed otherwise, bits may differ. Every byte of the results is equal on all ranks, whatever the order,
//    and in every run by the same routes. f16 and bf16 accumulate in f32 and are rounded once (bf16 that hosts of
//    several ranks add, twice); all other dtypes accumulate in themselves, integers modulo 2^bits. Mean is the sum
//    divided by size(): for integers the sum is then taken in 64 bits and the quotient truncated. A NaN on any rank is
//    the min and the max. On bool, sum and max are "any", prod, min and mean are "all".
//  * Between start and wait the operands belong to the communicator: the input must not be written, the output neither
//    read nor written, and neither freed before the wait returns, Abort returns, or the communicator is destroyed.
//  * Nothing waits for ever. A rank that calls Abort, dies, destroys its communicator, starts something else or does
//    not arrive within Options::timeout makes the calls of its peers return an error that names it, its host and the
//    label. Not the rank next to it that waits for it, too: who waits for whom is followed to its end, which may take
//    two seconds more than the timeout. After an error a communicator stays in error: every call returns it, later
//    ones with the words that an earlier call failed, and no peer touches this rank's operands any more. (Errors about
//    the arguments of one call, of code kInvalidArgument, are the caller's alone: nothing was started; it should fix
//    the call or Abort.)
//  * A communicator belongs to the process that made it. In one forked from that, every call is an error and does
//    nothing, neither does Abort, nor destruction.
//
// Who does the work, and when? Ranks that share memory (in process, or one host) have no thread of their own for it:
// start publishes the operands, and as soon as all ranks have published theirs, whoever is in a wait takes pieces of
// the reduction and writes the results into all ranks' outputs. So a rank that computes is not disturbed, a rank that
// has to wait works for it, and a rank that comes late finds its bucket reduced; with one thread a rank a communication
// thread could only steal cycles from the kernels. Where spare cores exist, Options::progress_thread adds one. Between
// hosts there always is such a thread, because data must flow while kernels run.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/collective.h"
#include "runtime/exclusive_use.h"

namespace lockstep {

// A queue of a device (runtime/device.h). CPUs have none: pass nullptr. On a GPU start makes the collective wait for
// what the stream holds so far, and wait makes what the stream gets from then on wait for the collective; the host's
// thread blocks in neither.
class Stream;

class Recorder;

// Memory registered with a communicator, in which collectives need no copies. data() is this rank's own part: a plain
// pointer, aligned to 64 bytes (of the device, if the communicator is one of devices), zero at first. It may outlive
// its communicator.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  RegisteredMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* data_;
  size_t bytes_;
};

class Communicator {
 public:
  struct Options {
    absl::Duration timeout = absl::Minutes(10);  // how long a call waits for a peer that is alive and does not arrive
    bool progress_thread = false;                // a thread of its own even where ranks share memory
    // Reductions add in the order of ranks however these are spread over hosts, so that another placement gives the
    // same bits. Else hosts of several ranks may add their own first, which sends less at once, and many hosts may add
    // as they stand in a ring or a tree.
    bool in_rank_order = false;
  };

  // What ranks must agree on besides the call itself, for a collective to mean anything. Compared with every
  // collective; zeros compare like any number.
  struct Evidence {
    uint64_t program = 0;      // hash of what the ranks run; 0: the call is none of a program
    uint64_t assignments = 0;  // hash of how often each state was assigned since the last run; 0: none was
    uint64_t inputs = 0;       // hash of the inputs that are replicated
    uint64_t states = 0;       // hash of the states that are replicated
    uint64_t settings = 0;     // hash of the settings
    // Which states were assigned, and which settings have another value than at first, for the message: texts with a
    // final 0; empty: none.
    std::array<char, 128> assigned = {}, set = {};
    // Of the numbers alone, which stand for the texts: those lie in cache lines that peers then need not read.
    bool operator==(const Evidence& other) const {
      return program == other.program && assignments == other.assignments && inputs == other.inputs &&
             states == other.states && settings == other.settings;
    }
  };

  // What a call says about itself in messages ("bucket 0 (%g1, %g2)"; must be the same on all ranks, the first 95 bytes
  // count), the stream that it belongs to, and what else must be the same on all ranks.
  struct Call {
    std::string_view label;
    Stream* stream = nullptr;
    Evidence evidence = {};
    // Moves nothing and leaves the operands alone, null ones too: the call is compared with the peers', and its Wait
    // returns when all have started it. All ranks alike.
    bool compared_only = false;
    // A broadcast of what one rank alone has, which messages call a transfer: the label says from where to where, and
    // the root's number is one of this communicator, which users do not know.
    bool is_transfer = false;
  };

  // A collective in flight. A plain value; wait for each exactly once, in any order.
  struct Ticket {
    uint64_t id = 0;
  };

  // Abort-free destruction means that this rank is done: no ticket is in flight, and peers need nothing more of it.
  // With a ticket in flight it is an Abort.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(hosts_.size()); }
  const std::string& transport() const { return transport_; }  // "in_process", "shared_memory", "mpi", …
  // Whether the memory that it gives out is the host's, like Device::is_host(); else it is of this rank's device.
  bool is_host() const { return traits_.is_host; }
  // Whether reductions are exactly what the rules above say. Where they are not, the implementation's header says what
  // differs; results are still equal on all ranks.
  bool reduces_in_rank_order() const { return traits_.reduces_in_rank_order; }
  // Whether the host's communicator carries a collective when a stream comes to it, so that nobody may call that before
  // the stream has ended. Where not, it is free as soon as Wait has returned.
  bool needs_host_in_stream() const { return traits_.needs_host_in_stream; }
  absl::Duration timeout() const { return traits_.timeout; }        // Options::timeout
  const std::string& host(int rank) const { return hosts_[rank]; }  // the name of that rank's host
  const std::vector<std::string>& hosts() const { return hosts_; }  // by rank
  // What this rank does is recorded there (runtime/record/recorder.h): one for all communicators of a world, as old as
  // they are. Null where nobody records.
  Recorder* recorder() const { return traits_.recorder; }
  // For callers that cannot know whether another thread uses this object: runtime/exclusive_use.h. Held by the calls of
  // an Executor.
  ExclusiveUse::Flag& in_use() { return in_use_; }
  int ranks_on_this_host() const;  // how many ranks share this one's host, itself included
  int rank_on_this_host() const;   // its number among them

  // Gives out at least `bytes` (0 is fine) of registered memory. Collective: all ranks call it, each with its own size.
  virtual absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) = 0;

  // Gives out one piece of memory for all ranks: data() has the same bytes on each. Collective, with equal `bytes`. Who
  // reads and who writes it when is for the callers to agree on. What a collective takes or gives there costs a copy
  // between processes. FailedPrecondition where ranks have no memory in common: on several hosts, or on devices.
  virtual absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) = 0;

  // Starts a collective. Operands may lie in registered memory or anywhere else; the latter costs a copy on the way in
  // and out between processes. Operands that overlap otherwise than in place (runtime/collective.h) are an error.
  virtual absl::StatusOr<Ticket> Start(const Collective& collective, const void* input, void* output,
                                       const Call& call) = 0;

  // Returns when the collective is complete and its output may be used (on a GPU: by what `stream` gets from now on).
  virtual absl::Status Wait(Ticket ticket, Stream* stream = nullptr) = 0;

  // Returns when all ranks have called it.
  virtual absl::Status Barrier(std::string_view label) = 0;

  // Every rank's string, by rank. Of any length, on the host: for comparing certificates and options, not for tensors.
  virtual absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) = 0;

  // A communicator of those ranks that pass the same color, in rank order; rank() and size() are then of that.
  // Collective: all ranks call it. Messages still call ranks by their numbers in the world, the communicator that all
  // come from. A failure of one communicator is one of all of the world's, on all its ranks; the world's is to live as
  // long as any for that, or a failure reaches the ranks of its own communicator alone. Memory is registered with the
  // communicator that gave it out.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) = 0;

  // OK, or the failure of the world, as the next call would return it. Also looks whether peers have died. For those
  // who wait for peers by other means than a call; waits for nobody. Any thread, also while another one is in a call.
  virtual absl::Status CheckPeers() = 0;

  // Tells the peers that this rank unwinds because of `cause` (not OK). Whatever they wait in or call next returns an
  // error with this rank, its host and the message, and so do this rank's own calls. Takes a moment at most. The first
  // abort counts.
  virtual void Abort(const absl::Status& cause) = 0;

  // Start and Wait in one.
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
