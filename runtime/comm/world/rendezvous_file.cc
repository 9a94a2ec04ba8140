#include "runtime/comm/world/rendezvous_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "core/status.h"
#include "runtime/comm/network/sockets.h"
#include "runtime/process/process.h"

namespace lockstep {

absl::StatusOr<WrittenPlace> WrittenPlace::Write(const Rendezvous& place) {
  const std::string part = place.file + "." + HostName() + "." + std::to_string(getpid());
  const std::string text = place.host + ":" + std::to_string(place.port) + "\n" + place.job + "\n";
  const Descriptor file(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const bool is_written = file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  // Not only in the cache of this host: others read it through a network.
  if (!is_written || fsync(file.get()) != 0 || std::rename(part.c_str(), place.file.c_str()) != 0) {
    const int error = errno;
    (void)unlink(part.c_str());
    return FailedPrecondition() << "rank 0 cannot write where it listens into " << place.file
                                << " (LOCKSTEP_RENDEZVOUS_FILE): " << std::strerror(error);
  }
  return WrittenPlace(place.file);
}

WrittenPlace::~WrittenPlace() {
  if (!path_.empty()) (void)unlink(path_.c_str());
}

absl::Status ReadPlace(Rendezvous& place) {
  place.port = 0;
  std::ifstream file(place.file);
  std::string where, job;
  if (!std::getline(file, where) || !(std::getline(file, job)))
    return ErrorStream(absl::StatusCode::kUnavailable) << "the file " << place.file << " is not there";
  if (job != place.job) {
    return ErrorStream(absl::StatusCode::kUnavailable)
           << "the file " << place.file << " is of job '" << job << "', not of '" << place.job << "'";
  }
  const size_t colon = std::min(where.rfind(':'), where.size());
  const std::string_view port = std::string_view(where).substr(std::min(colon + 1, where.size()));
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), place.port);
  if (error != std::errc() || end != port.data() + port.size() || place.port == 0) {
    place.port = 0;
    return ErrorStream(absl::StatusCode::kUnavailable)
           << "the file " << place.file << " begins with '" << where << "', not with HOST:PORT";
  }
  place.host = where.substr(0, colon);
  return absl::OkStatus();
}

}  // namespace lockstep
