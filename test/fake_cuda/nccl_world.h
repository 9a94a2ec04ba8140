// The memory that the ranks of one of the fake NCCL's communicators share, as threads of one process or as processes.
// It has no name: it belongs to the process that made the communicator's id, and the others open it through /proc. It
// is freed when the last process that maps it ends in any way. A rank that dies leaves no lock held. Only for the fake
// NCCL.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/nccl.h"

namespace lockstep::cuda {

// The collective that a rank calls.
struct Collective {
  enum class Kind { kAllReduce, kBroadcast, kAllGather, kReduceScatter } kind;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  bool operator==(const Collective&) const = default;
};

class NcclWorld {
 public:
  // Returns the id of a new world without ranks. Its memory can be opened until this process drops the id.
  static std::string MakeId();
  static void DropId(const std::string& id);  // has no effect on other processes' ids

  // Returns null if the process that made the id is gone or has dropped it.
  static std::shared_ptr<NcclWorld> Open(const std::string& id, int ranks);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  // Returns false if there is no such rank, or it has already joined.
  bool Join(int rank, int gpu);
  bool complete() const;      // all ranks have joined
  bool shares_a_gpu() const;  // two ranks that have joined
  int ranks() const { return ranks_; }

  // Runs the rank's collective with this number; numbers count up from 0. Leaves `bytes` of input and waits for the
  // peers. Returns their inputs, by rank, valid until the next collective; empty if `stop` became true first. A peer
  // that is gone, or whose collective with this number differs, never arrives.
  std::vector<const std::byte*> Meet(int rank, uint64_t number, const Collective& call, const std::byte* input,
                                     size_t bytes, const std::atomic<bool>& stop);
  // Send sends a message to `to`; Receive gets the one from `from`. Each waits for the peer, which has to receive a
  // message before the next one. They return false if `stop` became true first. At most kMaxMessage bytes, equally many
  // on both sides.
  bool Send(int rank, int to, const std::byte* data, size_t bytes, const std::atomic<bool>& stop);
  bool Receive(int rank, int from, std::byte* data, size_t bytes, const std::atomic<bool>& stop);
  // HaveCaptured counts one more captured collective of the rank. AllHaveCaptured returns true if all others have
  // captured as many.
  void HaveCaptured(int rank);
  bool AllHaveCaptured(int rank) const;
  void Wake();  // waiting threads, so that they check `stop`

  static constexpr int kMaxRanks = 64;
  static constexpr size_t kMaxBytes = size_t{64} << 20;    // bytes of an input
  static constexpr size_t kMaxMessage = size_t{16} << 20;  // bytes

 private:
  struct Shared;
  NcclWorld(Shared* shared, size_t bytes, int ranks) : shared_(shared), bytes_(bytes), ranks_(ranks) {}
  std::byte* InputOf(int rank, uint64_t number) const;
  std::byte* MessageOf(int from, int to) const;
  bool AllHaveCome(uint64_t number, const Collective& call) const;

  Shared* const shared_;
  const size_t bytes_;  // of the mapping
  const int ranks_;
};

}  // namespace lockstep::cuda
