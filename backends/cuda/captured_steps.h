// A program's steps as one CUDA graph, so that a run is one call of the driver. The first run that succeeds is step
// by step, as libraries allocate in their first calls; the second is captured, which runs nothing, and from then on the
// graph is launched. What cannot be captured, such as collectives by way of the host, runs step by step for ever; a
// step that fails to be captured is named on stderr, and all ranks then go that way.
//
// Of a graph the ranks compare one collective a run and axis, before it is launched: what its calls say was compared in
// the first run, and the order of them by the certificate.

#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/cuda/graph.h"
#include "runtime/execution/executable.h"

namespace lockstep::cuda {

class CapturedSteps final : public WholeRun {
 public:
  absl::Status Run(const StepList& steps, StepContext& context) override;

 private:
  enum class State { kFirst, kSecond, kCaptured, kStepByStep };

  static absl::Status RunEach(const StepList& steps, StepContext& context);
  bool FindAxes(const StepList& steps, const StepContext& context);
  absl::Status Capture(const StepList& steps, StepContext& context);
  absl::StatusOr<bool> OnAllRanks(bool mine, std::string_view what, StepContext& context) const;
  absl::Status BeginCapture(StepContext& context);
  // Of `status`, if that is an error already, or the graph if it `keeps` one.
  absl::Status EndCapture(bool keeps, absl::Status status, StepContext& context);
  absl::Status Compare(StepContext& context) const;
  absl::Status Launch();

  State state_ = State::kFirst;
  CudaStream* stream_ = nullptr;
  std::shared_ptr<LaunchableGraph> graph_;  // communicators drop it when they end
  std::vector<std::byte*> addresses_;       // that it was captured with
  std::vector<int> axes_;                   // positions in the mesh of those with collectives
  int64_t collectives_ = 0;
};

}  // namespace lockstep::cuda
