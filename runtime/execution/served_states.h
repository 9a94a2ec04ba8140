// The states of a program that parameter servers keep and update (decisions/0047), between an executor and its end of
// the servers. An executor owns one; the same thread as the executor's calls it.
//
// Workers make the same states, in the same order of programs, when they load: rank 0 makes the keys. What is assigned
// goes to the servers when the next run begins, where the workers' pushes before are done: synchronous servers wait in
// each update for rank 0, so that what rank 0 assigned before is there; of others all workers meet, and take rank 0's
// values. The same holds for settings, of which rank 0's count.
//
// Who waits for servers hears of the world, too: that a rank gave up, or died. But not where the job tolerates that,
// and the program is of this rank alone.
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
  // All workers call it; `executable`, `servers` and `communicator`, which the program runs with, outlive it. States
  // are zero at first. Null if the executable has no such states; an error if it has, and `servers` is null, or has
  // other workers than the program has ranks.
  static absl::StatusOr<std::unique_ptr<ServedStates>> Create(const Executable& executable, ServerClient* servers,
                                                              Communicator& communicator);
  // What was pulled and not waited for is written nowhere any more.
  ~ServedStates() { ForgetPulls(); }
  ServedStates(const ServedStates&) = delete;
  ServedStates& operator=(const ServedStates&) = delete;

  // --- In a run --------------------------------------------------------------------------------------------------
  // Before its steps: gives the servers what was assigned, and settings, by the executable's order, that have changed.
  // `addresses` are those of the executable's buffers.
  absl::Status Begin(std::span<const double> settings, std::span<std::byte* const> addresses);
  // Of the state at this position of Executable::served. `value` is filled until Wait returns.
  absl::Status Push(int state, const std::byte* gradient);
  absl::Status StartPull(int state, std::byte* value);
  absl::Status Wait(int state);
  // Returns when nobody fills a value any more, that of a run that has failed.
  void ForgetPulls();

  // --- Between runs -----------------------------------------------------------------------------------------------
  // The copy of a state has been assigned, if servers update it.
  void CopyAssigned(std::string_view state);
  // Whether servers update the state, or have it alone.
  bool Has(std::string_view state) const { return Keeps(state) || FindServed(state).has_value(); }
  // Whether servers alone have the state; then it is assigned, and read, here.
  bool Keeps(std::string_view state) const { return FindKept(state) != nullptr; }
  absl::Status Assign(std::string_view state, const TensorType& type, const std::byte* data);
  absl::Status Read(std::string_view state, const TensorType& type, std::byte* data);
  // Where updates do not wait for each other, what the servers have of a state now becomes the copy.
  absl::Status Refresh(std::string_view state, std::span<std::byte* const> addresses);

  bool is_synchronous() const { return executable_.served.front().synchronous; }
  // How many updates of pieces, of all programs of the job, had each staleness (ServerClient::Staleness).
  absl::StatusOr<std::map<int64_t, int64_t>> Staleness();

 private:
  class Use;
  struct Kept {
    std::string name;
    TensorType type;
    std::vector<size_t> states;     // in whose updates it is
    std::optional<Tensor> pending;  // assigned, and not given to the servers yet
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
  const std::string prefix_;  // of the keys: programs may have states of one name
  std::vector<Kept> kept_;
  std::vector<bool> assigned_;               // by served state, since the last run
  std::vector<ServerClient::Ticket> pulls_;  // by served state: those in flight
  std::vector<double> settings_;             // that the servers have
};

}  // namespace lockstep
