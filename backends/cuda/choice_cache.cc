#include "backends/cuda/choice_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include "runtime/cache_file.h"

namespace lockstep::cuda {
namespace {

namespace json = llvm::json;

constexpr int64_t kFormat = 2;
constexpr char kFormatName[] = "format", kMachines[] = "machines";

void Warn(const std::string& text) { std::fprintf(stderr, "lockstep: %s\n", text.c_str()); }

// Returns the file's content, for all machines, or the reason why it cannot be used.
absl::StatusOr<json::Object> ReadMachines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound() << "there is no " << path;
  std::ostringstream text;
  text << file.rdbuf();
  llvm::Expected<json::Value> value = json::parse(text.str());
  if (!value) return InvalidArgument() << "it is not JSON: " << llvm::toString(value.takeError());
  json::Object* const whole = value->getAsObject();
  if (whole == nullptr || whole->getInteger(kFormatName) != kFormat || whole->getObject(kMachines) == nullptr) {
    return InvalidArgument() << "expected an object with " << kFormatName << " " << kFormat << " and " << kMachines;
  }
  return std::move(*whole->getObject(kMachines));
}

// Returns nothing if there is no file. Warns if the file cannot be used.
json::Object MachinesIn(const std::string& path) {
  absl::StatusOr<json::Object> machines = ReadMachines(path);
  if (machines.ok()) return *std::move(machines);
  if (machines.status().code() != absl::StatusCode::kNotFound) {
    Warn("the choices in " + path + " are not used, and will be replaced: " + std::string(machines.status().message()));
  }
  return {};
}

Choices ChoicesOf(const json::Object& machines, const std::string& machine) {
  Choices choices;
  const json::Object* const found = machines.getObject(machine);
  if (found == nullptr) return choices;
  for (const auto& [key, value] : *found) {
    const std::optional<llvm::StringRef> choice = value.getAsString();
    if (choice) choices.emplace(llvm::StringRef(key).str(), choice->str());
  }
  return choices;
}

// A lock that one process at a time holds. Without it, a writer may lose the entries of a concurrent writer, but
// nothing else.
class Lock {
 public:
  explicit Lock(const std::string& path) : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    constexpr int kTries = 500;
    for (int i = 0; file_ >= 0 && i < kTries && flock(file_, LOCK_EX | LOCK_NB) != 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ~Lock() {
    if (file_ >= 0) close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  const int file_;
};

}  // namespace

std::string ChoiceCachePath() {
  const std::string folder = CacheFolder();
  return folder.empty() ? "" : folder + "/choices.json";
}

Choices ChoiceCache::Read() const { return path_.empty() ? Choices() : ChoicesOf(MachinesIn(path_), machine_); }

Choices ChoiceCache::Add(const Choices& timed, const Choices& refused) const {
  if (path_.empty()) return timed;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  const Lock lock(path_ + ".lock");
  absl::StatusOr<json::Object> read = ReadMachines(path_);  // Read has already warned
  json::Object machines = read.ok() ? *std::move(read) : json::Object();
  const Choices kept = ChoicesOf(machines, machine_);
  if (machines.getObject(machine_) == nullptr) machines[machine_] = json::Object();
  json::Object& own = *machines.getObject(machine_);
  Choices taken;
  for (const auto& [key, choice] : timed) {
    const auto other = kept.find(key), bad = refused.find(key);
    const bool is_bad = other != kept.end() && bad != refused.end() && bad->second == other->second;
    taken[key] = other == kept.end() || is_bad ? choice : other->second;
    own[key] = taken[key];
  }
  std::string text;
  llvm::raw_string_ostream out(text);
  out << llvm::formatv("{0:2}\n", json::Value(json::Object{{kFormatName, kFormat}, {kMachines, std::move(machines)}}));
  out.flush();
  const absl::Status status = ReplaceFile(path_, text);
  if (!status.ok()) Warn("choices by time are not kept: " + std::string(status.message()));
  return taken;
}

std::string ToText(const Choices& choices) {
  std::string text;
  for (const auto& [key, choice] : choices) text += key + "\t" + choice + "\n";
  return text;
}

absl::StatusOr<Choices> ChoicesOf(std::string_view text) {
  Choices choices;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin), tab = text.find('\t', begin);
    if (end == std::string_view::npos || tab > end) return Internal() << "a rank's choices cannot be read";
    choices.emplace(text.substr(begin, tab - begin), text.substr(tab + 1, end - tab - 1));
    begin = end + 1;
  }
  return choices;
}

}  // namespace lockstep::cuda
