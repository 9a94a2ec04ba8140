// The ranks of an MPI communicator, introduced to each other by MPI.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/comm/mpi/mpi_library.h"
#include "runtime/comm/world/introduction.h"

namespace lockstep {

class MpiIntroduction final : public Introduction {
 public:
  // `comm` is borrowed. It must return errors. Each Gather waits for at most `limit`.
  MpiIntroduction(MpiComm comm, absl::Duration limit);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::StatusOr<std::vector<std::byte>> Gather(std::span<const std::byte> mine) override;

 private:
  const MpiComm comm_;
  const absl::Duration limit_;
  int rank_ = 0, size_ = 1;
};

}  // namespace lockstep
