// The states of a program that parameter servers keep and update (decisions/0047), between an executor and its client
// of the servers. An executor owns one. Only the executor's thread calls it.
//
// At load, workers create the same states, in the same order of programs: rank 0 creates the keys. Assigned values are
// sent to the servers when the next run begins, after the workers' earlier pushes. Synchronous servers wait in each
// update for rank 0, so rank 0's earlier assignments are present. With asynchronous servers, all workers meet and take
// rank 0's values. Settings are treated in the same way; those of rank 0 count.
//
// A wait for servers also ends if a rank of the world aborted or died. But not if the job tolerates this and the
// program belongs only to this rank.
//
// Errors name the state, and the server or worker (server_client.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "runtime/communicator.h"
#include "runtime/execution/executable.h"
#include "runtime/server/server_client.h"

namespace lockstep {

class ServedStates {
 public:
  // Creates the states. All workers call it. `executable`, `servers` and the program's `communicator` must outlive it.
  // States are initially zero. Returns null if the executable has no such states. Returns an error if it has some and
  // `servers` is null, or has another number of workers than the program has ranks.
  static absl::StatusOr<std::unique_ptr<ServedStates>> Create(const Executable& executable, ServerClient* servers,
                                                              Communicator& communicator);
  // Pulls in flight write nothing afterwards.
  ~ServedStates() { ForgetPulls(); }
  ServedStates(const ServedStates&) = delete;
  ServedStates& operator=(const ServedStates&) = delete;

  // --- In a run --------------------------------------------------------------------------------------------------
  // Call it before the steps. Sends assigned states and changed settings to the servers. `settings` are in the
  // executable's order; `addresses` are those of the executable's buffers.
  absl::Status Begin(std::span<const double> settings, std::span<std::byte* const> addresses);
  // For the state at this position of Executable::served. `value` is filled until Wait returns.
  absl::Status Push(int state, const std::byte* gradient);
  absl::Status StartPull(int state, std::byte* value);
  absl::Status Wait(int state);
  // Abandons the pulls of a failed run. After it returns, no value is written any more.
  void ForgetPulls();

  // --- Between runs -----------------------------------------------------------------------------------------------
  // Notes that the copy of a state has been assigned, if servers update it.
  void CopyAssigned(std::string_view state);
  // Returns true if servers update the state, or only servers have it.
  bool Has(std::string_view state) const { return Keeps(state) || FindServed(state).has_value(); }
  // Returns true if only servers have the state. Then Assign and Read of this class apply.
  bool Keeps(std::string_view state) const { return FindKept(state) != nullptr; }
  absl::Status Assign(std::string_view state, const TensorType& type, const std::byte* data);
  absl::Status Read(std::string_view state, const TensorType& type, std::byte* data);
  // If updates do not wait for each other, replaces the copy by the servers' present value.
  absl::Status Refresh(std::string_view state, std::span<std::byte* const> addresses);

  bool is_synchronous() const { return executable_.served.front().synchronous; }
  // Returns how many updates of pieces, of all programs of the job, had each staleness (ServerClient::Staleness).
  absl::StatusOr<std::map<int64_t, int64_t>> Staleness();

 private:
  class Use;
  struct Kept {
    std::string name;
    TensorType type;
    std::vector<size_t> states;     // positions of the states whose updates use it
    std::optional<Tensor> pending;  // assigned, and not yet sent to the servers
  };

  ServedStates(const Executable& executable, ServerClient& servers, Communicator& communicator);
  std::string KeyOf(size_t state) const { return prefix_ + executable_.served[state].name; }
  absl::Status MakeKeys();
  absl::Status CheckKeys();
  absl::Status SendAssigned(std::span<std::byte* const> addresses);
  absl::Status SendSettings(std::span<const double> settings);
  const Kept* FindKept(std::string_view state) const;
  std::optional<size_t> FindServed(std::string_view state) const;

  const Executable& executable_;
  ServerClient& servers_;
  Communicator& communicator_;
  const std::string prefix_;  // of the keys, because programs may have states with equal names
  std::vector<Kept> kept_;
  std::vector<bool> assigned_;               // by served state, since the last run
  std::vector<ServerClient::Ticket> pulls_;  // by served state: those in flight
  std::vector<double> settings_;             // the values on the servers
};

}  // namespace lockstep
