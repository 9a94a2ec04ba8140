#include "runtime/record/job_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/status.h"
#include "runtime/process/process.h"
#include "runtime/record/record_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDeadJobsKept = 3;

struct GivenName {
  std::mutex mutex;
  std::string name;
};
GivenName& Given() {
  static GivenName* const given = new GivenName;  // also for threads that are alive when the process ends
  return *given;
}

}  // namespace

std::string RootOfJobs() {
  const char* given = std::getenv("LOCKSTEP_RECORD");
  if (given != nullptr && *given != '\0') return given;
  return "/dev/shm/lockstep-" + std::to_string(geteuid());
}

std::string ThisJob() {
  const char* const job = std::getenv("PMIX_NAMESPACE");
  std::string name = job == nullptr ? "" : job;
  if (name.empty()) {
    const std::lock_guard lock(Given().mutex);
    name = Given().name;
  }
  if (name.empty()) name = "process-" + std::to_string(getpid());
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

void NameThisJob(const std::string& name) {
  const std::lock_guard lock(Given().mutex);
  if (Given().name.empty()) Given().name = name;
}

std::vector<std::string> FilesIn(const std::string& folder, const std::string& suffix) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string path = it->path().string();
    if (path.size() > suffix.size() && path.ends_with(suffix)) files.push_back(std::move(path));
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool IsAlive(const std::string& folder) {
  for (const std::string& file : FilesIn(folder, kRecordSuffix)) {
    const absl::StatusOr<RecordedRank> rank = ReadRank(file);
    if (rank.ok() && !HasEnded(rank->process, rank->process_start)) return true;
  }
  return false;
}

std::vector<std::string> Jobs(const std::string& root) {
  std::vector<std::pair<fs::file_time_type, std::string>> jobs;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const fs::file_time_type time = fs::last_write_time(it->path(), gone);
    if (!gone && fs::is_directory(it->path(), gone)) jobs.emplace_back(time, it->path().filename().string());
  }
  std::sort(jobs.rbegin(), jobs.rend());
  std::vector<std::string> names;
  for (auto& [time, name] : jobs) names.push_back(std::move(name));
  return names;
}

absl::Status MakeJobFolder(const std::string& root, const std::string& job) {
  std::error_code error;
  if (fs::create_directories(root, error)) fs::permissions(root, fs::perms::owner_all, error);
  const bool is_new = !error && fs::create_directory(root + "/" + job, error);
  if (error)
    return FailedPrecondition() << "cannot create the folder " << root << "/" << job << ": " << error.message();
  if (!is_new) return absl::OkStatus();
  size_t dead = 0;
  for (const std::string& other : Jobs(root)) {
    if (other == job || IsAlive(root + "/" + other)) continue;
    // A folder that is just being created has no files yet, and is the newest.
    if (++dead > kDeadJobsKept) fs::remove_all(root + "/" + other, error);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
