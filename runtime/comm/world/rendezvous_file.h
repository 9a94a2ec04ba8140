// A file on a file system of all hosts, into which rank 0 writes where it listens, so that no port has to be chosen.

#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/world/rendezvous.h"

namespace lockstep {

// The file while it exists: the destructor removes it.
class WrittenPlace {
 public:
  // Writes the host, the port and the job of `place` into its file, which others see only whole.
  static absl::StatusOr<WrittenPlace> Write(const Rendezvous& place);

  WrittenPlace(WrittenPlace&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  WrittenPlace& operator=(WrittenPlace&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~WrittenPlace();

 private:
  explicit WrittenPlace(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Sets the host and the port to those in the place's file. Returns Unavailable if there is no such file yet, or if it
// is that of another job.
absl::Status ReadPlace(Rendezvous& place);

}  // namespace lockstep
