#include "test/fake_cuda/nccl_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <new>
#include <system_error>

#include "runtime/process/event.h"

namespace lockstep::cuda {
namespace {

constexpr size_t kShared = size_t{256} << 10;  // bytes before the inputs, which come before the messages

// The memory files of ids that this process made.
struct Files {
  std::mutex mutex;
  std::map<std::string, int> by_id;
  int made = 0;
};
Files& TheFiles() {
  static Files* const files = new Files;
  return *files;
}

// An id is the path of its memory, and then the name of that memory, because file numbers are reused:
// "/proc/<process>/fd/<file> /memfd:nccl-<number>".
std::string PathOf(const std::string& id) { return id.substr(0, id.find(' ')); }
std::string NameOf(const std::string& id) { return id.substr(id.find(' ') + 1) + " (deleted)"; }

}  // namespace

struct NcclWorld::Shared {
  struct Rank {
    std::atomic<int> gpu{0};           // 1 + the GPU's number; 0: the rank has not joined
    std::atomic<uint64_t> arrived{0};  // number of collectives that the rank has reached
    std::atomic<uint64_t> captured{0};
    std::array<Collective, 2> calls;  // for even and odd numbers, like the inputs
  };
  struct Box {  // from one rank to another
    std::atomic<uint64_t> sent{0}, taken{0};
  };
  Event changed;
  std::array<Rank, kMaxRanks> ranks;
  std::array<std::array<Box, kMaxRanks>, kMaxRanks> boxes;  // by sender, then by receiver
};

std::string NcclWorld::MakeId() {
  static_assert(sizeof(Shared) <= kShared);
  Files& files = TheFiles();
  const std::lock_guard lock(files.mutex);
  const std::string name = "nccl-" + std::to_string(++files.made);
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC);
  void* first = MAP_FAILED;
  // A sparse file: memory is used only where it is written.
  if (file >= 0 && ftruncate(file, static_cast<off_t>(kShared + 2 * kMaxRanks * kMaxBytes +
                                                      kMaxRanks * kMaxRanks * kMaxMessage)) == 0) {
    first = mmap(nullptr, kShared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (first == MAP_FAILED) {
    std::perror("fake NCCL: no memory for a communicator");
    std::abort();
  }
  new (first) Shared;
  munmap(first, kShared);
  std::string id = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file) + " /memfd:" + name;
  files.by_id[id] = file;
  return id;
}

void NcclWorld::DropId(const std::string& id) {
  Files& files = TheFiles();
  const std::lock_guard lock(files.mutex);
  const auto found = files.by_id.find(id);
  if (found == files.by_id.end()) return;
  close(found->second);
  files.by_id.erase(found);
}

std::shared_ptr<NcclWorld> NcclWorld::Open(const std::string& id, int ranks) {
  if (ranks < 1 || ranks > kMaxRanks) return nullptr;
  const int file = open(PathOf(id).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  std::error_code error;
  const auto name = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), error);
  const auto n = static_cast<size_t>(ranks);
  const size_t bytes = kShared + 2 * n * kMaxBytes + n * n * kMaxMessage;
  void* shared = MAP_FAILED;
  if (name == NameOf(id)) {
    shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  close(file);
  if (shared == MAP_FAILED) return nullptr;
  return std::shared_ptr<NcclWorld>(new NcclWorld(static_cast<Shared*>(shared), bytes, ranks));
}

NcclWorld::~NcclWorld() { munmap(shared_, bytes_); }

bool NcclWorld::Join(int rank, int gpu) {
  if (rank < 0 || rank >= ranks_) return false;
  int nobody = 0;
  return shared_->ranks[static_cast<size_t>(rank)].gpu.compare_exchange_strong(nobody, gpu + 1);
}

bool NcclWorld::complete() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (shared_->ranks[static_cast<size_t>(rank)].gpu == 0) return false;
  }
  return true;
}

bool NcclWorld::shares_a_gpu() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const int gpu = shared_->ranks[static_cast<size_t>(rank)].gpu;
    for (int other = 0; other < rank && gpu != 0; ++other) {
      if (shared_->ranks[static_cast<size_t>(other)].gpu == gpu) return true;
    }
  }
  return false;
}

// Each rank has two inputs. When a rank reaches a collective, all ranks have left the one before the previous one, so
// its place is free.
std::byte* NcclWorld::InputOf(int rank, uint64_t number) const {
  return reinterpret_cast<std::byte*>(shared_) + kShared + (2 * static_cast<size_t>(rank) + number % 2) * kMaxBytes;
}

std::byte* NcclWorld::MessageOf(int from, int to) const {
  const auto n = static_cast<size_t>(ranks_), box = static_cast<size_t>(from) * n + static_cast<size_t>(to);
  return reinterpret_cast<std::byte*>(shared_) + kShared + 2 * n * kMaxBytes + box * kMaxMessage;
}

bool NcclWorld::Send(int rank, int to, const std::byte* data, size_t bytes, const std::atomic<bool>& stop) {
  Shared::Box& box = shared_->boxes[static_cast<size_t>(rank)][static_cast<size_t>(to)];
  for (;;) {
    const uint32_t seen = shared_->changed.count();
    if (stop) return false;
    if (box.taken == box.sent) break;
    shared_->changed.Sleep(seen, absl::Seconds(1));
  }
  std::memcpy(MessageOf(rank, to), data, bytes);
  ++box.sent;
  Wake();
  return true;
}

bool NcclWorld::Receive(int rank, int from, std::byte* data, size_t bytes, const std::atomic<bool>& stop) {
  Shared::Box& box = shared_->boxes[static_cast<size_t>(from)][static_cast<size_t>(rank)];
  for (;;) {
    const uint32_t seen = shared_->changed.count();
    if (stop) return false;
    if (box.taken < box.sent) break;
    shared_->changed.Sleep(seen, absl::Seconds(1));
  }
  std::memcpy(data, MessageOf(from, rank), bytes);
  ++box.taken;
  Wake();
  return true;
}

bool NcclWorld::AllHaveCome(uint64_t number, const Collective& call) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const Shared::Rank& of = shared_->ranks[static_cast<size_t>(rank)];
    if (of.arrived <= number || !(of.calls[number % 2] == call)) return false;
  }
  return true;
}

std::vector<const std::byte*> NcclWorld::Meet(int rank, uint64_t number, const Collective& call, const std::byte* input,
                                              size_t bytes, const std::atomic<bool>& stop) {
  if (bytes > 0) std::memcpy(InputOf(rank, number), input, bytes);
  Shared::Rank& mine = shared_->ranks[static_cast<size_t>(rank)];
  mine.calls[number % 2] = call;
  mine.arrived = number + 1;
  Wake();
  for (;;) {
    const uint32_t seen = shared_->changed.count();
    if (stop) return {};
    if (AllHaveCome(number, call)) break;
    shared_->changed.Sleep(seen, absl::Seconds(1));
  }
  std::vector<const std::byte*> inputs;
  for (int each = 0; each < ranks_; ++each) inputs.push_back(InputOf(each, number));
  return inputs;
}

void NcclWorld::HaveCaptured(int rank) { ++shared_->ranks[static_cast<size_t>(rank)].captured; }

bool NcclWorld::AllHaveCaptured(int rank) const {
  const uint64_t mine = shared_->ranks[static_cast<size_t>(rank)].captured;
  for (int other = 0; other < ranks_; ++other) {
    if (shared_->ranks[static_cast<size_t>(other)].captured < mine) return false;
  }
  return true;
}

void NcclWorld::Wake() { shared_->changed.Notify(); }

}  // namespace lockstep::cuda
