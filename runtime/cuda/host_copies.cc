#include "runtime/cuda/host_copies.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/process/process.h"

namespace lockstep::cuda {

struct HostCopies::Shared {
  struct Copy {
    std::byte* to;
    const std::byte* from;
    size_t bytes;
    size_t begun = 0, done = 0;  // bytes
  };

  // Copies the next piece; returns false if there is none. `lock` holds the mutex, except during the copy.
  bool CopyPiece(std::unique_lock<std::mutex>& lock) {
    if (next == copies.size()) return false;
    Copy& copy = copies[next];
    const size_t begin = copy.begun, bytes = std::min(kPieceBytes, copy.bytes - begin);
    copy.begun += bytes;
    if (copy.begun == copy.bytes) ++next;
    lock.unlock();
    std::memcpy(copy.to + begin, copy.from + begin, bytes);
    lock.lock();
    copy.done += bytes;
    if (copy.done == copy.bytes) done.notify_one();
    return true;
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!stop) {
      if (!CopyPiece(lock)) added.wait(lock);
    }
  }

  const uint32_t generation = ForkGeneration();
  std::mutex mutex;  // guards the following members
  std::condition_variable added, done;
  std::deque<Copy> copies;  // the oldest first. A copy is not moved while threads use it
  size_t next = 0;          // the index of the copy of the next piece
  bool stop = false;
  std::vector<std::thread> threads;
};

HostCopies::HostCopies(int threads) : threads_(threads) {}

HostCopies::~HostCopies() {
  if (shared_ == nullptr) return;
  if (ForkGeneration() != shared_->generation) {
    (void)shared_.release();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->added.notify_all();
  for (std::thread& thread : shared_->threads) thread.join();
}

void HostCopies::Add(std::byte* to, const std::byte* from, size_t bytes) {
  if (shared_ == nullptr) {
    shared_ = std::make_unique<Shared>();
    for (int i = 1; i < threads_; ++i) shared_->threads.emplace_back([shared = shared_.get()] { shared->Work(); });
  }
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->copies.push_back({to, from, bytes});
  }
  shared_->added.notify_all();
}

void HostCopies::FinishOldest() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  const Shared::Copy& oldest = shared_->copies.front();
  while (oldest.done < oldest.bytes) {
    if (!shared_->CopyPiece(lock)) shared_->done.wait(lock);
  }
  shared_->copies.pop_front();
  --shared_->next;  // all pieces of the oldest have begun
}

void HostCopies::FinishAll() {
  while (shared_ != nullptr && !shared_->copies.empty()) FinishOldest();
}

}  // namespace lockstep::cuda
