// What a rank tells its peers about itself in every run, so that replicas which part are found and named: which program
// it runs, which states were assigned, the settings, and from time to time hashes of the inputs and states that must be
// equal. It travels with the collectives of the program, which the communicator compares at no extra message
// (Communicator::Evidence); along an axis without collectives, with one of no elements that is made for it. An Executor
// owns one.

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

class Witness {
 public:
  // Contents are hashed in run 0 and every `check_every`-th run after it, states also in the first run after an
  // assignment; never if it is 0. `executable` outlives the witness. `program` is the text that the ranks have agreed
  // on.
  Witness(const Executable& executable, int64_t check_every, const std::string& program);

  // Along which axes of the mesh ranks compare their evidence: of several ranks, all axes if the program has a
  // collective, else those along which it updates a replicated state. What neither communicates nor updates replicas
  // each rank may run as often as it likes, so nobody may wait for it.
  const std::vector<bool>& compared() const { return compared_; }
  // Those of them without a collective of the program.
  const std::vector<bool>& quiet() const { return quiet_; }

  // `state` is a position in the executable's states.
  void StateAssigned(size_t state);

  // `values` are those of the executable's settings. For the runs that begin from now on.
  void SettingsChanged(std::span<const double> values);

  // Gives each axis of the mesh the evidence of the run that begins now: a value counts for an axis along which it is
  // replicated. A lane has that of its axis. `addresses` are those of the executable's buffers. Zero, and free, where
  // nothing is compared. Waits for the device where contents are hashed.
  absl::Status Begin(std::span<std::byte* const> addresses, Device& device, std::span<AxisContext> axes);

 private:
  absl::StatusOr<uint64_t> HashOf(const ValueInfo& info, std::span<std::byte* const> addresses, Device& device) const;
  // Adds the hashes of `values` to the field of each axis along which they are replicated.
  absl::Status AddHashes(const std::vector<ValueInfo>& values, uint64_t Communicator::Evidence::* field,
                         std::span<std::byte* const> addresses, Device& device, std::span<AxisContext> axes) const;
  // What was assigned since the last run, of states that no rank along the axis has for itself.
  void AddAssignments(std::string_view axis, Communicator::Evidence& evidence) const;

  const Executable& executable_;
  const int64_t check_every_;
  const uint64_t program_;
  std::vector<bool> compared_, quiet_;  // by axis
  size_t axis_of_lanes_ = 0;            // if there are any
  int64_t run_ = 0;
  std::vector<int64_t> assigned_;  // by state: how often since the last run
  bool states_due_ = false;
  Communicator::Evidence settings_;  // what it says of them
};

// Which states were assigned, where `times` says how often each: "a, b (2 times)", "all", "all but c", "none". Of many
// names as many as fit into `bytes`, and the number of the others.
std::string DescribeAssigned(const std::vector<ValueInfo>& states, const std::vector<int64_t>& times, size_t bytes);

}  // namespace lockstep
