#include "runtime/process/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <sstream>

namespace lockstep {
namespace {

// A state of the process.
std::atomic<uint32_t>& Forks() {
  static std::atomic<uint32_t> forks{0};
  return forks;
}

}  // namespace

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

std::optional<ProcessFacts> FactsOfProcess(int id) {
  // Not with a stream, which throws if the process ends between opening and reading.
  const int file = open(("/proc/" + std::to_string(id) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT || errno == ESRCH ? std::optional(ProcessFacts{}) : std::nullopt;
  char line[1024];  // enough for the 52 fields
  const ssize_t length = read(file, line, sizeof(line));
  const int error = errno;
  close(file);
  if (length < 0 && error != ESRCH) return std::nullopt;
  if (length <= 0) return ProcessFacts{};
  const std::string text(line, static_cast<size_t>(length));
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  if (state == "Z" || state == "X") return ProcessFacts{};
  for (int field = 4; field < 22; ++field) fields >> skipped;
  ProcessFacts facts{.start = 0, .stopped = state == "T" || state == "t"};
  fields >> facts.start;
  return facts;
}

bool HasEnded(int id, uint64_t start) {
  const std::optional<ProcessFacts> facts = FactsOfProcess(id);
  if (!facts.has_value()) return kill(id, 0) != 0 && errno == ESRCH;  // needs no descriptor
  return facts->start == 0 || (start != 0 && facts->start != start);
}

uint32_t ForkGeneration() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { Forks().fetch_add(1); });
  (void)registered;
  return Forks().load(std::memory_order_relaxed);
}

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

}  // namespace lockstep
