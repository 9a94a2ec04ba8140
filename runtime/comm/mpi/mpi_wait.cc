#include "runtime/comm/mpi/mpi_wait.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/process/process.h"

namespace lockstep {
namespace {

constexpr int kMostNames = 8;

// Returns the number in the first of two variables that is set, Open MPI's and MPICH's; otherwise -1.
int Number(const char* of_open_mpi, const char* of_mpich) {
  for (const char* variable : {of_open_mpi, of_mpich}) {
    if (const char* text = std::getenv(variable)) return std::atoi(text);
  }
  return -1;
}

// Calls `use` (bind or connect) with the socket and the address of a rank that is in a call.
template <typename Use>
bool WithAddress(Use use, int socket, const std::string& job, const std::string& call, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "lockstep " + job + " " + call + " " + std::to_string(rank);
  if (name.size() + 1 > sizeof(address.sun_path)) return false;
  name.copy(address.sun_path + 1, name.size());  // after a 0: in the abstract namespace
  const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return use(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0;
}

int NewSocket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

}  // namespace

MpiWait::MpiWait(const char* call, std::chrono::seconds patience)
    : call_(call),
      patience_(patience),
      rank_(Number("OMPI_COMM_WORLD_RANK", "PMI_RANK")),
      size_(Number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")),
      local_size_(Number("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")) {
  if (rank_ < 0 || size_ < 2) return;
  const char* job = std::getenv("PMIX_NAMESPACE");  // MPICH's mpirun has no name for a job
  job_ = job == nullptr ? "" : job;
  socket_ = NewSocket();
  const bool shown =
      socket_ >= 0 && job != nullptr && WithAddress(::bind, socket_, job_, call_, rank_) && listen(socket_, size_) == 0;
  if (!shown) local_size_ = -1;  // then the state of the other ranks is unknown, too
  thread_ = std::thread([this] { Watch(); });
}

MpiWait::~MpiWait() {
  if (thread_.joinable()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  if (socket_ >= 0) close(socket_);
}

void MpiWait::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (changed_.wait_for(lock, patience_, [this] { return done_; })) return;
  std::fprintf(stderr, "lockstep: rank %d on host %s has waited %d s in %s for %s\n", rank_, HostName().c_str(),
               static_cast<int>(patience_.count()), call_.c_str(), Missing().c_str());
}

std::string MpiWait::Missing() const {
  std::vector<int> absent;
  for (int r = 0; r < size_ && local_size_ > 0; ++r) {
    const int probe = NewSocket();
    if (probe < 0 || !WithAddress(::connect, probe, job_, call_, r)) absent.push_back(r);
    if (probe >= 0) close(probe);
  }
  const int come = size_ - static_cast<int>(absent.size());
  if (local_size_ < 1) return "other ranks";
  if (local_size_ < size_) {
    return come < local_size_ ? std::to_string(local_size_ - come) + " of " + std::to_string(local_size_) +
                                    " ranks on this host, and perhaps ranks on others"
                              : "ranks on other hosts";
  }
  std::string names;
  for (size_t i = 0; i < absent.size() && i < kMostNames; ++i) {
    names += (i == 0 ? "rank " : ", rank ") + std::to_string(absent[i]);
  }
  if (absent.size() > kMostNames) names += " and " + std::to_string(absent.size() - kMostNames) + " others";
  return names.empty() ? "MPI itself; all ranks have arrived" : names;
}

}  // namespace lockstep
