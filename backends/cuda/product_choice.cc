#include "backends/cuda/product_choice.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "backends/cuda/product_cache.h"

namespace lockstep::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr int kRounds = 3, kRunsOfRound = 4;
// Another algorithm must be faster than the library's first choice by this factor; smaller differences are noise.
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

// Runs one product on its own memory, and times its algorithms.
class Timing {
 public:
  Timing(Product& product, CudaDevice& device) : product_(product), device_(device), begin_(device), end_(device) {}

  absl::StatusOr<cublasLtMatmulAlgo_t> Fastest() {
    ASSIGN_OR_RETURN(std::vector<cublasLtMatmulAlgo_t> candidates, product_.Candidates(kCandidates));
    if (candidates.size() == 1) return candidates.front();
    RETURN_IF_ERROR(Allocate());
    // An algorithm that fails when it is queued is not a candidate; one that fails on the GPU is an error.
    const auto fails = [&](const cublasLtMatmulAlgo_t& each) { return !Run(each).ok(); };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), fails), candidates.end());
    RETURN_IF_ERROR(device_.Synchronize());
    if (candidates.empty()) return Unimplemented() << "no algorithm runs for " << product_.problem().ToString();
    std::vector<float> best(candidates.size(), std::numeric_limits<float>::max());
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        ASSIGN_OR_RETURN(const float milliseconds, Measure(candidates[i]));
        best[i] = std::min(best[i], milliseconds);
      }
    }
    const auto fastest = std::min_element(best.begin(), best.end());
    if (*fastest > kGain * best.front()) return candidates.front();
    return candidates[static_cast<size_t>(fastest - best.begin())];
  }

  // Runs the chosen algorithm.
  absl::Status Once() {
    RETURN_IF_ERROR(Allocate());
    RETURN_IF_ERROR(product_.Run(*device_.stream(), operands_));
    return device_.Synchronize();
  }

 private:
  absl::Status Allocate() {
    const MatMulProblem& problem = product_.problem();
    constexpr uint64_t kAlignment = 256;
    uint64_t total = 0;
    const auto take = [&](uint64_t bytes) {
      const uint64_t at = total;
      total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      return at;
    };
    const uint64_t first = take(problem.BytesOf(problem.first)), second = take(problem.BytesOf(problem.second));
    const uint64_t bias = take(problem.BiasBytes());
    const uint64_t result = take(problem.ResultBytes()), workspace = take(product_.workspace());
    ASSIGN_OR_RETURN(memory_, device_.Allocate(total, "trying " + problem.ToString()));
    std::byte* const data = memory_->data();
    operands_ = {data + first, data + second, problem.has_bias() ? data + bias : nullptr, data + result,
                 data + workspace};
    // Fills the operands with small numbers of any float type: a GPU multiplies zeros with less power, and therefore
    // faster.
    constexpr unsigned char kByte = 0x3c;
    const DriverApi& api = device_.api();
    return device_.Check(
        api.MemsetD8Async(reinterpret_cast<CUdeviceptr>(data), kByte, total, device_.stream()->handle()),
        "cuMemsetD8Async");
  }

  absl::Status Run(const cublasLtMatmulAlgo_t& algorithm) {
    return product_.Run(*device_.stream(), operands_, algorithm);
  }

  absl::StatusOr<float> Measure(const cublasLtMatmulAlgo_t& algorithm) {
    const CUstream stream = device_.stream()->handle();
    RETURN_IF_ERROR(begin_.Record(stream));
    for (int i = 0; i < kRunsOfRound; ++i) RETURN_IF_ERROR(Run(algorithm));
    RETURN_IF_ERROR(end_.Record(stream));
    RETURN_IF_ERROR(device_.Synchronize());
    const DriverApi& api = device_.api();
    float milliseconds = 0;
    RETURN_IF_ERROR(device_.Check(api.EventElapsedTime(&milliseconds, begin_.handle(), end_.handle()),
                                  "cuEventElapsedTime of a product"));
    return milliseconds;
  }

  Product& product_;
  CudaDevice& device_;
  Event begin_, end_;
  std::unique_ptr<DeviceMemory> memory_;
  ProductOperands operands_{};
};

// Called on rank 0 only.
absl::StatusOr<ProductAlgorithms> ChooseFastest(std::span<const ProductOfOp> products, const TuneOptions& options,
                                                CudaDevice& device) {
  const ProductCache cache(options.cache, options.machine);
  const ProductAlgorithms kept = cache.Read();
  ProductAlgorithms chosen, timed, refused;
  for (const ProductOfOp& each : products) {
    const std::string key = each.product->problem().Key();
    if (chosen.count(key) > 0) continue;
    const auto found = kept.find(key);
    if (found != kept.end() && each.product->Check(found->second).ok()) {
      chosen.insert(*found);
      continue;
    }
    if (found != kept.end()) refused.insert(*found);
    const absl::StatusOr<cublasLtMatmulAlgo_t> fastest = Timing(*each.product, device).Fastest();
    if (!fastest.ok()) return Annotate(fastest.status(), each.op);
    chosen[key] = timed[key] = *fastest;
  }
  if (timed.empty()) return chosen;
  for (const auto& [key, algorithm] : cache.Add(timed, refused)) chosen[key] = algorithm;
  return chosen;
}

}  // namespace

absl::Status TakeFirstChoices(std::span<const ProductOfOp> products) {
  for (const ProductOfOp& each : products) {
    const absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> candidates = each.product->Candidates(1);
    if (!candidates.ok()) return Annotate(candidates.status(), each.op);
    each.product->Choose(candidates->front());
  }
  return absl::OkStatus();
}

absl::Status TakeFastest(std::span<const ProductOfOp> products, const TuneOptions& options, CudaDevice& device,
                         Communicator& communicator) {
  ProductAlgorithms chosen;
  if (communicator.rank() == 0) {
    ASSIGN_OR_RETURN(chosen, ChooseFastest(products, options, device));
  }
  if (communicator.size() > 1) {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     communicator.AllGatherBytes(ToText(chosen), "algorithms of products"));
    ASSIGN_OR_RETURN(chosen, ProductAlgorithmsOf(texts.front()));
  }
  for (const ProductOfOp& each : products) {
    const auto found = chosen.find(each.product->problem().Key());
    if (found == chosen.end()) {
      return Internal() << each.op << ": rank 0 has chosen no algorithm for " << each.product->problem().Key();
    }
    RETURN_IF_ERROR(Annotate(each.product->Check(found->second), each.op + ": the choice of rank 0"));
    each.product->Choose(found->second);
  }
  return absl::OkStatus();
}

absl::Status RunEachOnce(std::span<const ProductOfOp> products, CudaDevice& device) {
  std::set<std::string> done;
  for (const ProductOfOp& each : products) {
    if (!done.insert(each.product->problem().Key()).second) continue;
    RETURN_IF_ERROR(Annotate(Timing(*each.product, device).Once(), each.op));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
