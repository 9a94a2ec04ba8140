// A program's steps as one CUDA graph, so that a run is one driver call. The first successful run is step by step,
// because libraries allocate in their first calls. The second run is captured, which executes nothing. From then on the
// graph is launched. Programs that cannot be captured, for example with collectives through the host, always run step
// by step. If the capture of a step fails, the step is named on stderr, and all ranks run step by step.
//
// Before each launch of a graph, ranks compare one collective per axis. The arguments of the calls were compared in the
// first run, and their order by the certificate.

#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/cuda/graph.h"
#include "runtime/execution/executable.h"

namespace lockstep::cuda {

class CapturedSteps final : public CombinedRun {
 public:
  absl::Status Run(const StepList& steps, StepContext& context) override;

 private:
  enum class State { kFirst, kSecond, kCaptured, kStepByStep };

  static absl::Status RunEach(const StepList& steps, StepContext& context);
  bool FindAxes(const StepList& steps, const StepContext& context);
  absl::Status Capture(const StepList& steps, StepContext& context);
  absl::StatusOr<bool> OnAllRanks(bool mine, std::string_view what, StepContext& context) const;
  absl::Status BeginCapture(StepContext& context);
  // Returns `status` if it is an error; otherwise keeps the graph if `keeps`.
  absl::Status EndCapture(bool keeps, absl::Status status, StepContext& context);
  absl::Status Compare(StepContext& context) const;
  absl::Status Launch();

  State state_ = State::kFirst;
  CudaStream* stream_ = nullptr;
  std::shared_ptr<LaunchableGraph> graph_;  // communicators release it when they end
  std::vector<std::byte*> addresses_;       // the addresses that it was captured with
  std::vector<int> axes_;                   // the mesh positions of axes with collectives
  int64_t collectives_ = 0;
};

}  // namespace lockstep::cuda
