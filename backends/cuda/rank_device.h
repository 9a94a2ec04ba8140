// A rank's GPU and how it communicates with those of its peers: with NCCL, or through the host if a rank has no NCCL or
// two ranks share a GPU. With NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL is tried for ranks that share a GPU. All ranks make
// the same choice, and the first rank reports it on stderr if it is the host.

#pragma once

#include "absl/status/statusor.h"
#include "backends/backend.h"
#include "runtime/communicator.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/kept_contexts.h"

namespace lockstep::cuda {

// Requires that cuInit was called. All ranks of `world` must call it; `world` must outlive the result. If `contexts` is
// not null, it keeps the GPU's context, so that its next device opens without delay.
absl::StatusOr<RankDevice> OpenRankDevice(const DriverApi& driver, Communicator& world, KeptContexts* contexts);

}  // namespace lockstep::cuda
