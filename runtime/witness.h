// What a rank tells its peers about itself with every collective, so that replicas which part are found and named:
// which program it runs, how often a state was assigned, and from time to time hashes of the inputs and states that
// must be equal. The communicator compares it at no extra message (Communicator::Evidence). An Executor owns one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/device.h"
#include "runtime/executable.h"

namespace lockstep {

class Witness {
 public:
  // Contents are hashed in run 0 and every `check_every`-th run after it, states also in the first run after an
  // assignment; never if it is 0. `executable` outlives the witness. `program` is the text that the ranks have agreed
  // on.
  Witness(const Executable& executable, int64_t check_every, const std::string& program);

  void StateAssigned();

  // The evidence of the run that begins now, for each axis of the mesh: a value counts for an axis along which it is
  // replicated. `addresses` are those of the executable's buffers. Zero, and free, for an axis without collectives.
  absl::StatusOr<std::vector<Communicator::Evidence>> Begin(std::span<std::byte* const> addresses, Device& device);

 private:
  absl::StatusOr<uint64_t> HashOf(const ValueInfo& info, std::span<std::byte* const> addresses, Device& device) const;
  // Adds the hashes of `values` to the field of each axis along which they are replicated.
  absl::Status AddHashes(const std::vector<ValueInfo>& values, uint64_t Communicator::Evidence::* field,
                         std::span<std::byte* const> addresses, Device& device,
                         std::vector<Communicator::Evidence>& evidence) const;

  const Executable& executable_;
  const int64_t check_every_;
  const uint64_t program_;
  std::vector<bool> has_collectives_;  // by axis
  int64_t run_ = 0;
  uint64_t assignments_ = 0;
  bool states_due_ = false;
};

}  // namespace lockstep
