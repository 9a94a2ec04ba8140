#include "runtime/comm/host/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "core/status.h"

namespace lockstep {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallestStage = 64 * 1024;

size_t RoundUp(size_t bytes) { return std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment); }

ErrorStream Exhausted(size_t bytes) {
  return ErrorStream(absl::StatusCode::kResourceExhausted) << "no memory for " << bytes << " bytes of a communicator";
}

// Returns the name of a segment's file.
std::string NameOf(uint64_t nonce) { return absl::StrFormat("lockstep-%016x", nonce); }

// Returns true if a descriptor of this process belongs to the segment with this nonce.
bool IsNamed(int descriptor, uint64_t nonce) {
  char name[128];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), name, sizeof(name));
  return length > 0 && std::string(name, length).starts_with("/memfd:" + NameOf(nonce));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Segment>> Segment::CreatePrivate(size_t bytes) {
  const size_t rounded = RoundUp(bytes);
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) return Exhausted(bytes);
  std::memset(data, 0, rounded);
  return std::shared_ptr<Segment>(new Segment(static_cast<std::byte*>(data), rounded, -1, 0, false));
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::CreateShared(size_t bytes) {
  uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) return Internal() << "getrandom: " << std::strerror(errno);
  const int descriptor = memfd_create(NameOf(nonce).c_str(), MFD_CLOEXEC);
  if (descriptor < 0) return Exhausted(bytes) << ": memfd_create: " << std::strerror(errno);
  const size_t rounded = RoundUp(bytes);
  if (ftruncate(descriptor, static_cast<off_t>(rounded)) != 0) {
    const int error = errno;
    close(descriptor);
    return Exhausted(bytes) << ": " << std::strerror(error);
  }
  return Map(descriptor, rounded, nonce, true);
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Open(int process, int descriptor, uint64_t nonce) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) {
    return FailedPrecondition() << "cannot open the shared memory of process " << process << " (" << path << ": "
                                << std::strerror(errno) << ")";
  }
  struct stat facts;
  if (!IsNamed(opened, nonce) || fstat(opened, &facts) != 0) {
    close(opened);
    return FailedPrecondition() << path << " is not the shared memory of process " << process;
  }
  return Map(opened, static_cast<size_t>(facts.st_size), nonce, false);
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Map(int descriptor, size_t bytes, uint64_t nonce,
                                                      bool keep_descriptor) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  const int error = errno;
  if (!keep_descriptor || data == MAP_FAILED) close(descriptor);
  if (data == MAP_FAILED) return Exhausted(bytes) << ": mmap: " << std::strerror(error);
  return std::shared_ptr<Segment>(
      new Segment(static_cast<std::byte*>(data), bytes, keep_descriptor ? descriptor : -1, nonce, true));
}

Segment::~Segment() {
  if (mapped_) munmap(data_, bytes_);
  else std::free(data_);
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<std::shared_ptr<Segment>> CreateSharedControlBlock(int n) {
  ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, Segment::CreateShared(ControlBlock::Bytes(n)));
  ControlBlock::Initialize(segment->data(), n);
  return segment;
}

absl::StatusOr<std::shared_ptr<Segment>> PeerMemory::Allocate(size_t bytes, uint64_t id) {
  if (one_process_) return Segment::CreatePrivate(bytes);
  Prune();
  ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, Segment::CreateShared(bytes));
  own_.push_back({id, segment});
  return segment;
}

// All ranks allocate and free alike: when this rank's segment is freed, it no longer needs the peers' segments. (If a
// peer still uses its own, Resolve maps it again.)
void PeerMemory::Prune() {
  std::erase_if(own_, [this](const Own& own) {
    if (!own.segment.expired()) return false;
    std::erase_if(peers_, [&own](const auto& entry) { return entry.first.second == own.id; });
    return true;
  });
}

std::optional<PeerMemory::Located> PeerMemory::Find(const void* data, size_t bytes) {
  const Located by_address{{.segment = 0, .offset = reinterpret_cast<uintptr_t>(data)}, nullptr};
  if (one_process_ || bytes == 0) return by_address;
  const std::byte* begin = static_cast<const std::byte*>(data);
  for (const Own& own : own_) {
    std::shared_ptr<Segment> segment = own.segment.lock();
    if (segment == nullptr || begin < segment->data() || begin >= segment->data() + segment->bytes()) continue;
    const size_t offset = begin - segment->data();
    if (bytes > segment->bytes() - offset) continue;
    return Located{
        {.segment = own.id, .offset = offset, .descriptor = segment->descriptor(), .nonce = segment->nonce()}, segment};
  }
  return alone_ ? std::optional(by_address) : std::nullopt;
}

absl::StatusOr<PeerMemory::Located> PeerMemory::Stage(size_t bytes) {
  std::pair<uint64_t, std::shared_ptr<Segment>>* best = nullptr;
  for (auto& entry : staging_) {
    if (entry.second.use_count() > 1 || entry.second->bytes() < bytes) continue;
    if (best == nullptr || entry.second->bytes() < best->second->bytes()) best = &entry;
  }
  if (best == nullptr) {
    ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment,
                     Segment::CreateShared(std::bit_ceil(std::max(bytes, kSmallestStage))));
    staging_.emplace_back(next_staging_id_, std::move(segment));
    next_staging_id_ += 2;
    best = &staging_.back();
  }
  return Located{
      {.segment = best->first, .offset = 0, .descriptor = best->second->descriptor(), .nonce = best->second->nonce()},
      best->second};
}

absl::StatusOr<std::byte*> PeerMemory::Resolve(int peer, int process, const MemoryRef& ref, size_t bytes) {
  if (ref.segment == 0) return reinterpret_cast<std::byte*>(ref.offset);
  std::shared_ptr<Segment>& segment = peers_[{peer, ref.segment}];
  if (segment == nullptr) {
    absl::StatusOr<std::shared_ptr<Segment>> opened = Segment::Open(process, ref.descriptor, ref.nonce);
    if (!opened.ok()) {
      peers_.erase({peer, ref.segment});
      return opened.status();
    }
    segment = *std::move(opened);
  }
  if (ref.offset > segment->bytes() || bytes > segment->bytes() - ref.offset) {
    return Internal() << "a peer's operand of " << bytes << " bytes does not fit its segment of " << segment->bytes();
  }
  return segment->data() + ref.offset;
}

}  // namespace lockstep
