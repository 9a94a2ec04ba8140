// NCCL's types for a collective. Pure functions; only for nccl_communicator.cc.

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

// Returns NCCL's types for a reduction, or Unimplemented. Bools are bytes of 0 and 1.
absl::StatusOr<NcclReduction> ReductionOf(DType dtype, ReduceKind kind, std::string_view label);

}  // namespace lockstep::cuda
