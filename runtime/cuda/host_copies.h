// Copies within host memory by several threads, because one thread copies more slowly than the bus of a GPU. The thread
// that adds the copies is one of them, and the only one that may call the functions. Copies are cut into pieces, which
// are begun in the order of the copies: all threads copy for the oldest one, so that it is done soon. Used by Staging.

#pragma once

#include <cstddef>
#include <memory>

namespace lockstep::cuda {

class HostCopies {
 public:
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  // `threads` includes the caller's. The others start with the first copy, and sleep while there are no pieces.
  explicit HostCopies(int threads);
  // Requires that all copies are finished. A process that was forked since the first copy has none of the threads, and
  // leaks what they used.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Begins a copy of at least one byte. The memory must live until the copy is finished.
  void Add(std::byte* to, const std::byte* from, size_t bytes);
  // Copies pieces until the oldest copy is done.
  void FinishOldest();
  void FinishAll();

 private:
  struct Shared;

  const int threads_;
  std::unique_ptr<Shared> shared_;  // on the heap, because a forked process must leave it as it is
};

}  // namespace lockstep::cuda
