// A rank's GPU and how it reaches those of its peers: by NCCL, or by way of the host where NCCL is missing on a rank or
// two ranks share a GPU: NCCL then has to take them, which is tried where NCCL_MULTI_RANK_GPU_ENABLE=1 asks for it. All
// ranks choose alike, and the first says so on stderr if it is by way of the host.

#pragma once

#include "absl/status/statusor.h"
#include "backends/backend.h"
#include "runtime/communicator.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/kept_contexts.h"

namespace lockstep::cuda {

// cuInit has been called. All ranks of `world` call it, which outlives the result. If `contexts` is not null, it keeps
// the context of the GPU, so that the next device of it opens without delay.
absl::StatusOr<RankDevice> OpenRankDevice(const DriverApi& driver, Communicator& world, KeptContexts* contexts);

}  // namespace lockstep::cuda
