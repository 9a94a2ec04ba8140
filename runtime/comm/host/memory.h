// The memory of collectives: segments that the ranks of a group can all reach, and where operands lie in them.
// Ranks that are threads of one process reach everything; ranks that are processes map each other's segments, which are
// anonymous files (memfd): nothing is left behind when a process dies, and no limit of /dev/shm applies. One rank's
// PeerMemory is used by one thread at a time; segments may be freed by any thread.

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

// Zeroed memory, aligned to 64 bytes or more, freed with the object.
class Segment {
 public:
  // Memory of this process. Allocation failure is an error of code kResourceExhausted.
  static absl::StatusOr<std::shared_ptr<Segment>> CreatePrivate(size_t bytes);
  // Memory that other processes can Open with this process's id, descriptor() and nonce() while the segment lives, and
  // that processes forked from here share.
  static absl::StatusOr<std::shared_ptr<Segment>> CreateShared(size_t bytes);
  // An error if there is no such process, if this one may not see its descriptors, or if they mean something else.
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

// Memory for what n ranks know of each other (control_block.h), initialised, which other processes can open.
absl::StatusOr<std::shared_ptr<Segment>> CreateSharedControlBlock(int n);

class PeerMemory {
 public:
  // An operand as peers can reach it, and what must live until the collective is over.
  struct Located {
    MemoryRef ref;
    std::shared_ptr<Segment> segment;  // null where all ranks are in one process
  };

  explicit PeerMemory(bool one_process) : one_process_(one_process) {}

  // A new segment of this rank that Find() knows as long as somebody holds it. `id` > 0, even, the same on all ranks.
  // Shared ownership because the user's handle and a collective in flight both keep it.
  absl::StatusOr<std::shared_ptr<Segment>> Allocate(size_t bytes, uint64_t id);

  // Where [data, data + bytes) of this rank lies, if peers can reach it.
  std::optional<Located> Find(const void* data, size_t bytes);

  // Memory of at least `bytes` that peers can reach and that nobody else holds at the moment, for an operand that they
  // cannot.
  absl::StatusOr<Located> Stage(size_t bytes);

  // The address at which this process reaches `bytes` at `ref` of the peer, process number `process`.
  absl::StatusOr<std::byte*> Resolve(int peer, int process, const MemoryRef& ref, size_t bytes);

 private:
  struct Own {
    uint64_t id;
    std::weak_ptr<Segment> segment;
  };
  void Prune();

  const bool one_process_;
  std::vector<Own> own_;
  std::vector<std::pair<uint64_t, std::shared_ptr<Segment>>> staging_;
  uint64_t next_staging_id_ = 1;                                        // odd
  std::map<std::pair<int, uint64_t>, std::shared_ptr<Segment>> peers_;  // by peer and segment
};

}  // namespace lockstep
