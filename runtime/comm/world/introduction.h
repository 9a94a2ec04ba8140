// The ranks of a job before they form a world: each knows its number and how many there are, and they exchange facts,
// such as where each of them listens. Implementations: MPI (mpi_introduction.h) and TCP (rendezvous.h).

#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "core/status.h"

namespace lockstep {

class Introduction {
 public:
  virtual ~Introduction() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns the bytes of all ranks, one after the other by rank. Collective: all ranks make the same calls, with as
  // many bytes. Returns DeadlineExceeded if a rank does not call it in time.
  virtual absl::StatusOr<std::vector<std::byte>> Gather(std::span<const std::byte> mine) = 0;
};

// Returns the T of all ranks, by rank. T is plain data, sent as bytes.
template <typename T>
absl::StatusOr<std::vector<T>> GatherFacts(Introduction& introduction, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, introduction.Gather(std::as_bytes(std::span(&mine, 1))));
  std::vector<T> all(static_cast<size_t>(introduction.size()));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

}  // namespace lockstep
