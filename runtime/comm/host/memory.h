// The memory of collectives: segments that all ranks of a group can reach, and the positions of operands in them. Ranks
// that are threads of one process reach all memory. Ranks that are processes map each other's segments, which are
// anonymous files (memfd): nothing remains when a process dies, and no limit of /dev/shm applies. One thread at a time
// uses a rank's PeerMemory. Any thread may free segments.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/comm/host/control_block.h"
#include "runtime/communicator.h"

namespace lockstep {

// Zeroed memory, aligned to at least 64 bytes, freed with the object.
class Segment {
 public:
  // Allocates memory of this process. Returns kResourceExhausted if there is not enough.
  static absl::StatusOr<std::shared_ptr<Segment>> CreatePrivate(size_t bytes);
  // Allocates memory that other processes can Open with this process's id, descriptor() and nonce() while the segment
  // lives. Processes forked from this one share it.
  static absl::StatusOr<std::shared_ptr<Segment>> CreateShared(size_t bytes);
  // Returns an error if the process does not exist, if its descriptors are not accessible, or if they name another
  // file.
  static absl::StatusOr<std::shared_ptr<Segment>> Open(int process, int descriptor, uint64_t nonce);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }  // -1: private, or opened
  uint64_t nonce() const { return nonce_; }       // random, part of the file's name; 0 if private

 private:
  Segment(std::byte* data, size_t bytes, int descriptor, uint64_t nonce, bool mapped)
      : data_(data), bytes_(bytes), descriptor_(descriptor), nonce_(nonce), mapped_(mapped) {}
  static absl::StatusOr<std::shared_ptr<Segment>> Map(int descriptor, size_t bytes, uint64_t nonce,
                                                      bool keep_descriptor);

  std::byte* data_;
  size_t bytes_;
  int descriptor_;
  uint64_t nonce_;
  bool mapped_;
};

// Allocates an initialised control block for n ranks (control_block.h), which other processes can open.
absl::StatusOr<std::shared_ptr<Segment>> CreateSharedControlBlock(int n);

class PeerMemory {
 public:
  // An operand's location for peers, and the segment that must live until the collective is done.
  struct Located {
    MemoryRef ref;
    std::shared_ptr<Segment> segment;  // null if it is known by its address
  };

  // `one_process`: the group's ranks are threads. `alone`: the group has one rank.
  explicit PeerMemory(bool one_process, bool alone = false) : one_process_(one_process), alone_(alone) {}

  // Allocates a new segment of this rank, which Find() knows as long as it lives. Requires that `id` is positive, even
  // and equal on all ranks. Ownership is shared between the user's handle and collectives in flight.
  absl::StatusOr<std::shared_ptr<Segment>> Allocate(size_t bytes, uint64_t id);

  // Returns the location of [data, data + bytes) of this rank, if all peers can reach it.
  std::optional<Located> Find(const void* data, size_t bytes);

  // Returns unused memory of at least `bytes` that peers can reach, for an operand that they cannot reach.
  absl::StatusOr<Located> Stage(size_t bytes);

  // Returns the address in this process of `bytes` at `ref` of the peer, whose process is number `process`.
  absl::StatusOr<std::byte*> Resolve(int peer, int process, const MemoryRef& ref, size_t bytes);

 private:
  struct Own {
    uint64_t id;
    std::weak_ptr<Segment> segment;
  };
  void Prune();

  const bool one_process_, alone_;
  std::vector<Own> own_;
  std::vector<std::pair<uint64_t, std::shared_ptr<Segment>>> staging_;
  uint64_t next_staging_id_ = 1;                                        // odd
  std::map<std::pair<int, uint64_t>, std::shared_ptr<Segment>> peers_;  // by peer and segment
};

}  // namespace lockstep
