#include "backends/cuda/product_cache.h"

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

constexpr int64_t kFormat = 1;
constexpr char kFormatName[] = "format", kMachines[] = "machines";
constexpr size_t kWordDigits = 16;

void Warn(const std::string& text) { std::fprintf(stderr, "lockstep: %s\n", text.c_str()); }

std::string ToHex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (uint64_t word : algorithm.data) {
    std::array<char, kWordDigits + 1> digits;
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(word));
    text += digits.data();
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> OfHex(std::string_view text) {
  cublasLtMatmulAlgo_t algorithm;
  if (text.size() != algorithm.data.size() * kWordDigits) return std::nullopt;
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  for (size_t i = 0; i < algorithm.data.size(); ++i) {
    const std::string digits(text.substr(i * kWordDigits, kWordDigits));
    algorithm.data[i] = std::strtoull(digits.c_str(), nullptr, 16);
  }
  return algorithm;
}

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
    Warn("algorithms of products in " + path +
         " are not used, and will be replaced: " + std::string(machines.status().message()));
  }
  return {};
}

ProductAlgorithms AlgorithmsOf(const json::Object& machines, const std::string& machine) {
  ProductAlgorithms algorithms;
  const json::Object* const found = machines.getObject(machine);
  if (found == nullptr) return algorithms;
  for (const auto& [key, value] : *found) {
    const std::optional<llvm::StringRef> text = value.getAsString();
    const auto algorithm = OfHex(text ? std::string_view(text->data(), text->size()) : std::string_view());
    if (algorithm) algorithms.emplace(llvm::StringRef(key).str(), *algorithm);
  }
  return algorithms;
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

std::string ProductCachePath() {
  const std::string folder = CacheFolder();
  return folder.empty() ? "" : folder + "/products.json";
}

ProductAlgorithms ProductCache::Read() const {
  return path_.empty() ? ProductAlgorithms() : AlgorithmsOf(MachinesIn(path_), machine_);
}

ProductAlgorithms ProductCache::Add(const ProductAlgorithms& timed, const ProductAlgorithms& refused) const {
  if (path_.empty()) return timed;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  const Lock lock(path_ + ".lock");
  absl::StatusOr<json::Object> read = ReadMachines(path_);  // Read has already warned
  json::Object machines = read.ok() ? *std::move(read) : json::Object();
  const ProductAlgorithms kept = AlgorithmsOf(machines, machine_);
  if (machines.getObject(machine_) == nullptr) machines[machine_] = json::Object();
  json::Object& own = *machines.getObject(machine_);
  ProductAlgorithms taken;
  for (const auto& [key, algorithm] : timed) {
    const auto other = kept.find(key), bad = refused.find(key);
    const bool is_bad = other != kept.end() && bad != refused.end() && bad->second.data == other->second.data;
    taken[key] = other == kept.end() || is_bad ? algorithm : other->second;
    own[key] = ToHex(taken[key]);
  }
  std::string text;
  llvm::raw_string_ostream out(text);
  out << llvm::formatv("{0:2}\n", json::Value(json::Object{{kFormatName, kFormat}, {kMachines, std::move(machines)}}));
  out.flush();
  const absl::Status status = ReplaceFile(path_, text);
  if (!status.ok()) Warn("algorithms of products are not kept: " + std::string(status.message()));
  return taken;
}

std::string ToText(const ProductAlgorithms& algorithms) {
  std::string text;
  for (const auto& [key, algorithm] : algorithms) text += ToHex(algorithm) + " " + key + "\n";
  return text;
}

absl::StatusOr<ProductAlgorithms> ProductAlgorithmsOf(std::string_view text) {
  ProductAlgorithms algorithms;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin), space = text.find(' ', begin);
    if (end == std::string_view::npos || space > end) return Internal() << "a rank's algorithms cannot be read";
    const auto algorithm = OfHex(text.substr(begin, space - begin));
    if (!algorithm) return Internal() << "a rank's algorithms cannot be read";
    algorithms.emplace(std::string(text.substr(space + 1, end - space - 1)), *algorithm);
    begin = end + 1;
  }
  return algorithms;
}

}  // namespace lockstep::cuda
