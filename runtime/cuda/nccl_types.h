// A collective in NCCL's words and in those of the hosts' communicator. Pure functions; for nccl_communicator.cc alone.

#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/placement.h"
#include "runtime/comm/control_block.h"
#include "runtime/communicator.h"
#include "runtime/cuda/nccl.h"

namespace lockstep::cuda {

struct NcclReduction {
  ncclDataType_t type;
  ncclRedOp_t op;
};

// How NCCL does a reduction, or Unimplemented. Bools are bytes of 0 and 1.
absl::StatusOr<NcclReduction> ReductionOf(DType dtype, ReduceKind kind, std::string_view label);

OpDescription DescriptionOf(Opcode opcode, int64_t count, DType dtype, ReduceKind kind, int root,
                            const Communicator::Call& call);

// Starts the collective of the hosts that compares this one and moves nothing.
absl::StatusOr<Communicator::Ticket> StartComparison(Communicator& host, const OpDescription& description,
                                                     const Communicator::Call& call);

}  // namespace lockstep::cuda
