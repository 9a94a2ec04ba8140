#include "runtime/comm/mpi/mpi_introduction.h"

#include <memory>
#include <utility>

#include "core/status.h"
#include "runtime/comm/mpi/mpi_calls.h"
#include "runtime/comm/mpi/mpi_links.h"

namespace lockstep {

MpiIntroduction::MpiIntroduction(MpiComm comm, absl::Duration limit) : comm_(comm), limit_(limit) {
  Mpi().Comm_rank(comm_, &rank_);
  Mpi().Comm_size(comm_, &size_);
}

absl::StatusOr<std::vector<std::byte>> MpiIntroduction::Gather(std::span<const std::byte> mine) {
  struct Facts {
    std::vector<std::byte> mine, all;
  };
  const int bytes = static_cast<int>(mine.size());
  auto facts = std::make_shared<Facts>(
      Facts{{mine.begin(), mine.end()}, std::vector<std::byte>(mine.size() * static_cast<size_t>(size_))});
  MpiRequest request = Mpi().request_null;
  const int code =
      Mpi().Iallgather(facts->mine.data(), bytes, Mpi().byte, facts->all.data(), bytes, Mpi().byte, comm_, &request);
  RETURN_IF_ERROR(MpiStatus(code, "MPI_Iallgather"));
  RETURN_IF_ERROR(AwaitRequest(&request, facts, limit_, "MPI_Iallgather"));
  return std::move(facts->all);
}

}  // namespace lockstep
