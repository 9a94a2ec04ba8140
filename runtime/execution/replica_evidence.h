// The evidence that a rank shows to its peers in every run, so that differing replicas are detected and named: the
// program, the assigned states, the settings, and from time to time hashes of the inputs and states that must be equal.
// It travels with the collectives of the program, which the communicator compares without extra messages
// (Communicator::Evidence). An axis without collectives gets one without elements for this. An Executor owns one
// object.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/device.h"
#include "runtime/execution/executable.h"

namespace lockstep {

class ReplicaEvidence {
 public:
  // Contents are hashed in run 0 and every `check_every`-th run after it, states also in the first run after an
  // assignment; never if it is 0. `executable` must outlive this object. `program` is the text on which the ranks have
  // agreed.
  ReplicaEvidence(const Executable& executable, int64_t check_every, const std::string& program);

  // The axes of the mesh along which ranks compare their evidence: of those with several ranks, all axes if the program
  // has a collective, otherwise the axes along which it updates a replicated state. A program that neither communicates
  // nor updates replicas may be run by each rank as often as it likes, so it must not wait for others.
  const std::vector<bool>& compared() const { return compared_; }
  // The compared axes without a collective of the program.
  const std::vector<bool>& without_collectives() const { return without_collectives_; }

  // `state` is a position in the executable's states.
  void StateAssigned(size_t state);

  // `values` are those of the executable's settings, for later runs.
  void SettingsChanged(std::span<const double> values);

  // Sets the evidence of each axis of the mesh for the run that begins now: a value counts for the axes along which it
  // is replicated. A lane has the evidence of its axis. `addresses` are those of the executable's buffers. If nothing
  // is compared, the evidence is zero and costs nothing. Waits for the device if contents are hashed.
  absl::Status Begin(std::span<std::byte* const> addresses, Device& device, std::span<AxisContext> axes);

 private:
  absl::StatusOr<uint64_t> HashOf(const ValueInfo& info, std::span<std::byte* const> addresses, Device& device) const;
  // Adds the hashes of `values` to the field of each axis along which they are replicated.
  absl::Status AddHashes(const std::vector<ValueInfo>& values, uint64_t Communicator::Evidence::* field,
                         std::span<std::byte* const> addresses, Device& device, std::span<AxisContext> axes) const;
  // Adds the assignments since the last run of states that the ranks along the axis have in common.
  void AddAssignments(std::string_view axis, Communicator::Evidence& evidence) const;

  const Executable& executable_;
  const int64_t check_every_;
  const uint64_t program_;
  std::vector<bool> compared_, without_collectives_;  // by axis
  size_t axis_of_lanes_ = 0;                          // if there are lanes
  int64_t run_ = 0;
  std::vector<int64_t> assigned_;  // by state: the number of assignments since the last run
  bool states_due_ = false;
  Communicator::Evidence settings_;  // the evidence of the settings
};

// Returns a text of the assigned states, where `times` is the number of assignments of each: "a, b (2 times)", "all",
// "all but c", "none". If there are too many names for `bytes`, it ends with the number of omitted ones.
std::string DescribeAssigned(const std::vector<ValueInfo>& states, const std::vector<int64_t>& times, size_t bytes);

}  // namespace lockstep
