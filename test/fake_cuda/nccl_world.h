// What the ranks of one of the fake NCCL's communicators share, be they threads of a process or processes: memory
// without a name, which belongs to the process that made the communicator's id, and which the others open by /proc. It
// goes with the last that has it, however that ends, and no rank that dies leaves it locked. For the fake NCCL alone.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/nccl.h"

namespace lockstep::cuda {

// What a rank asks for.
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
  // The id of a world that nobody has joined yet. Its memory can be opened until it is dropped by this process.
  static std::string MakeId();
  static void DropId(const std::string& id);  // does nothing to other processes' ids

  // Null if the process that made the id is gone or has dropped it.
  static std::shared_ptr<NcclWorld> Open(const std::string& id, int ranks);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  // False if there is no such rank, or it is there already.
  bool Join(int rank, int gpu);
  bool complete() const;      // all ranks have joined
  bool shares_a_gpu() const;  // two of those that have joined
  int ranks() const { return ranks_; }

  // The rank's collective of that number, from 0 on, one after the other: leaves `bytes` of input, and waits for the
  // peers. Their inputs, by rank, valid until the next; empty if `stop` became true first. A peer that is gone, or
  // whose collective of that number is another, never comes.
  std::vector<const std::byte*> Meet(int rank, uint64_t number, const Collective& call, const std::byte* input,
                                     size_t bytes, const std::atomic<bool>& stop);
  // A message from `rank` to `to`, and the one that it has from `from`: each waits for the peer, who has to take the
  // message before the next one; false if `stop` became true first. At most kMaxMessage bytes, as many on both sides.
  bool Send(int rank, int to, const std::byte* data, size_t bytes, const std::atomic<bool>& stop);
  bool Receive(int rank, int from, std::byte* data, size_t bytes, const std::atomic<bool>& stop);
  // A rank has captured one more collective; whether all others have captured as many as it.
  void HaveCaptured(int rank);
  bool AllHaveCaptured(int rank) const;
  void Wake();  // those who wait, to look at `stop`

  static constexpr int kMaxRanks = 64;
  static constexpr size_t kMaxBytes = size_t{64} << 20;    // of an input
  static constexpr size_t kMaxMessage = size_t{16} << 20;  // bytes

 private:
  struct Shared;
  NcclWorld(Shared* shared, size_t bytes, int ranks) : shared_(shared), bytes_(bytes), ranks_(ranks) {}
  std::byte* InputOf(int rank, uint64_t number) const;
  std::byte* MessageOf(int from, int to) const;
  bool AllHaveCome(uint64_t number, const Collective& call) const;

  Shared* const shared_;
  const size_t bytes_;  // mapped
  const int ranks_;
};

}  // namespace lockstep::cuda
