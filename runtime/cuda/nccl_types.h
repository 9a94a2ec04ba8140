// A collective in NCCL's words. Pure functions; for nccl_communicator.cc alone.

#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/placement.h"
#include "runtime/cuda/nccl.h"

namespace lockstep::cuda {

struct NcclReduction {
  ncclDataType_t type;
  ncclRedOp_t op;
};

// How NCCL does a reduction, or Unimplemented. Bools are bytes of 0 and 1.
absl::StatusOr<NcclReduction> ReductionOf(DType dtype, ReduceKind kind, std::string_view label);

}  // namespace lockstep::cuda
