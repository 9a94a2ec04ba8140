#include "backends/cuda/tuning.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "backends/cuda/choice_cache.h"

namespace lockstep::cuda {
namespace {

constexpr int kRounds = 3, kRunsOfRound = 4;
// Smaller differences are noise.
constexpr float kGain = 0.98F;

class Event {
 public:
  explicit Event(CudaDevice& device) : device_(device) {}
  ~Event() {
    if (handle_ != nullptr) (void)device_.api().EventDestroy(handle_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  absl::Status Record(CUstream stream) {
    const DriverApi& api = device_.api();
    if (handle_ == nullptr) {
      RETURN_IF_ERROR(device_.Check(api.EventCreate(&handle_, CU_EVENT_DEFAULT), "cuEventCreate"));
    }
    return device_.Check(api.EventRecord(handle_, stream), "cuEventRecord");
  }
  CUevent handle() const { return handle_; }

 private:
  CudaDevice& device_;
  CUevent handle_ = nullptr;
};

// Called on rank 0 only.
absl::StatusOr<Choices> ChooseFastest(std::span<const TunableOfOp> problems, const TuneOptions& options,
                                      CudaDevice& device) {
  const ChoiceCache cache(options.cache, options.machine);
  const Choices kept = cache.Read();
  Choices chosen, timed, refused;
  for (const TunableOfOp& each : problems) {
    const std::string key = each.problem->Key();
    if (chosen.count(key) > 0) continue;
    const auto found = kept.find(key);
    if (found != kept.end() && each.problem->Take(found->second).ok()) {
      chosen.insert(*found);
      continue;
    }
    if (found != kept.end()) refused.insert(*found);
    const absl::StatusOr<std::string> fastest = each.problem->Fastest(device);
    if (!fastest.ok()) return Annotate(fastest.status(), each.op);
    chosen[key] = timed[key] = *fastest;
  }
  if (timed.empty()) return chosen;
  for (const auto& [key, choice] : cache.Add(timed, refused)) chosen[key] = choice;
  return chosen;
}

}  // namespace

absl::Status TakeFirstChoices(std::span<const TunableOfOp> problems) {
  for (const TunableOfOp& each : problems) RETURN_IF_ERROR(Annotate(each.problem->Take(""), each.op));
  return absl::OkStatus();
}

absl::Status TakeFastest(std::span<const TunableOfOp> problems, const TuneOptions& options, CudaDevice& device,
                         Communicator& communicator) {
  Choices chosen;
  if (communicator.rank() == 0) {
    ASSIGN_OR_RETURN(chosen, ChooseFastest(problems, options, device));
  }
  if (communicator.size() > 1) {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     communicator.AllGatherBytes(ToText(chosen), "choices of " + options.machine));
    ASSIGN_OR_RETURN(chosen, ChoicesOf(texts.front()));
  }
  for (const TunableOfOp& each : problems) {
    const auto found = chosen.find(each.problem->Key());
    if (found == chosen.end()) {
      return Internal() << each.op << ": rank 0 has chosen nothing for " << each.problem->Key();
    }
    RETURN_IF_ERROR(Annotate(each.problem->Take(found->second), each.op + ": the choice of rank 0"));
  }
  return absl::OkStatus();
}

absl::Status RunEachOnce(std::span<const TunableOfOp> problems, CudaDevice& device) {
  std::set<std::string> done;
  for (const TunableOfOp& each : problems) {
    if (done.insert(each.problem->Key()).second) RETURN_IF_ERROR(Annotate(each.problem->RunOnce(device), each.op));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> FastestOf(size_t count, const std::function<absl::Status(size_t)>& queue, CudaDevice& device) {
  if (count == 1) return 0;
  std::vector<size_t> running;
  for (size_t i = 0; i < count; ++i) {
    if (queue(i).ok()) running.push_back(i);
  }
  RETURN_IF_ERROR(device.Synchronize());
  if (running.empty()) return Unimplemented() << "no recommendation of the library runs";
  Event begin(device), end(device);
  const CUstream stream = device.stream()->handle();
  std::vector<float> best(running.size(), std::numeric_limits<float>::max());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < running.size(); ++i) {
      RETURN_IF_ERROR(begin.Record(stream));
      for (int run = 0; run < kRunsOfRound; ++run) RETURN_IF_ERROR(queue(running[i]));
      RETURN_IF_ERROR(end.Record(stream));
      RETURN_IF_ERROR(device.Synchronize());
      float milliseconds = 0;
      RETURN_IF_ERROR(device.Check(device.api().EventElapsedTime(&milliseconds, begin.handle(), end.handle()),
                                   "cuEventElapsedTime of a trial"));
      best[i] = std::min(best[i], milliseconds);
    }
  }
  const auto fastest = std::min_element(best.begin(), best.end());
  if (*fastest > kGain * best.front()) return running.front();
  return running[static_cast<size_t>(fastest - best.begin())];
}

absl::StatusOr<TrialMemory> TrialMemory::Allocate(std::span<const uint64_t> sizes, const std::string& label,
                                                  CudaDevice& device) {
  constexpr uint64_t kAlignment = 256;
  constexpr unsigned char kByte = 0x3c;
  TrialMemory trial;
  uint64_t total = 0;
  for (const uint64_t bytes : sizes) {
    trial.offsets_.push_back(total);
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  ASSIGN_OR_RETURN(trial.memory_, device.Allocate(total, label));
  RETURN_IF_ERROR(device.Check(device.api().MemsetD8Async(reinterpret_cast<CUdeviceptr>(trial.memory_->data()), kByte,
                                                          total, device.stream()->handle()),
                               "cuMemsetD8Async"));
  return trial;
}

}  // namespace lockstep::cuda
