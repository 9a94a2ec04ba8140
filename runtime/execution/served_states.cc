#include "runtime/execution/served_states.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"

namespace lockstep {

// One call: only this thread uses the client, which other stores of the process share, and waits also check the world.
class ServedStates::Use {
 public:
  explicit Use(const ServedStates& states) : use_(states.servers_.in_use()) {
    if (!use_.ok() || (states.servers_.tolerates_loss() && states.communicator_.size() == 1)) return;
    watch_.emplace(states.servers_, [&world = states.communicator_] { return world.CheckPeers(); });
  }
  absl::Status status() const { return use_.ok() ? absl::OkStatus() : use_.Error("the parameter servers"); }

 private:
  const ExclusiveUse use_;
  std::optional<ServerClient::ScopedCheck> watch_;
};

absl::StatusOr<std::unique_ptr<ServedStates>> ServedStates::Create(const Executable& executable, ServerClient* servers,
                                                                   Communicator& communicator) {
  if (executable.served.empty()) return std::unique_ptr<ServedStates>();
  if (servers == nullptr) {
    return FailedPrecondition() << "@" << executable.name
                                << " is compiled for parameter servers, but loaded without them";
  }
  const int64_t ranks = executable.mesh.num_ranks();
  if (executable.served.front().synchronous && ranks != servers->workers()) {
    return InvalidArgument() << "@" << executable.name << " is compiled for " << ranks
                             << " ranks, and the parameter servers have " << servers->workers() << " workers";
  }
  std::unique_ptr<ServedStates> states(new ServedStates(executable, *servers, communicator));
  const Use use(*states);
  RETURN_IF_ERROR(use.status());
  // Workers that wait for the keys of rank 0 continue in any case, and detect keys that it could not create.
  const absl::Status made = servers->rank() == 0 ? states->MakeKeys() : absl::OkStatus();
  const absl::Status met = servers->Barrier();
  RETURN_IF_ERROR(made);
  RETURN_IF_ERROR(met);
  RETURN_IF_ERROR(states->CheckKeys());
  return states;
}

ServedStates::ServedStates(const Executable& executable, ServerClient& servers, Communicator& communicator)
    : executable_(executable),
      servers_(servers),
      communicator_(communicator),
      prefix_(std::string(kProgramKeys) + executable.name + "." + std::to_string(servers.NextProgram()) + "/"),
      assigned_(executable.served.size(), false),
      pulls_(executable.served.size()) {
  for (const SettingInfo& info : executable.settings) settings_.push_back(info.setting.value);
  for (size_t state = 0; state < executable.served.size(); ++state) {
    for (const auto& [name, type] : executable.served[state].kept) {
      const auto is_it = [&name = name](const Kept& kept) { return kept.name == name; };
      auto kept = std::find_if(kept_.begin(), kept_.end(), is_it);
      if (kept == kept_.end()) kept = kept_.insert(kept_.end(), {name, type, {}, std::nullopt});
      kept->states.push_back(state);
    }
  }
}

// --- Load -----------------------------------------------------------------------------------------------------------

absl::Status ServedStates::MakeKeys() {
  for (size_t i = 0; i < executable_.served.size(); ++i) {
    const ServedState& state = executable_.served[i];
    const ServerClient::ArrayOptions options{state.synchronous, state.max_staleness, state.bigarray_bound};
    const Tensor zeros(state.type);
    RETURN_IF_ERROR(servers_.Init(KeyOf(i), state.type, zeros.bytes(), options));
    RETURN_IF_ERROR(servers_.SetUpdate(KeyOf(i), state.update));
  }
  return absl::OkStatus();
}

absl::Status ServedStates::CheckKeys() {
  for (size_t i = 0; i < executable_.served.size(); ++i) {
    ASSIGN_OR_RETURN(const TensorType type, servers_.TypeOf(KeyOf(i)));
    if (type == executable_.served[i].type) continue;
    return InvalidArgument() << "state " << executable_.served[i].name << " is " << executable_.served[i].type
                             << ", but worker 0 created it as " << type << " on the servers";
  }
  return absl::OkStatus();
}

// --- Runs -----------------------------------------------------------------------------------------------------------

absl::Status ServedStates::Begin(std::span<const double> settings, std::span<std::byte* const> addresses) {
  const Use use(*this);
  RETURN_IF_ERROR(use.status());
  RETURN_IF_ERROR(SendAssigned(addresses));
  return servers_.rank() == 0 ? SendSettings(settings) : absl::OkStatus();
}

// All workers meet before, because one may still wait for a state of the previous run, and after, so that no worker
// pushes to a state that is not yet assigned.
absl::Status ServedStates::SendAssigned(std::span<std::byte* const> addresses) {
  const bool any = std::find(assigned_.begin(), assigned_.end(), true) != assigned_.end() ||
                   std::any_of(kept_.begin(), kept_.end(), [](const Kept& kept) { return kept.pending.has_value(); });
  if (!any) return absl::OkStatus();
  RETURN_IF_ERROR(Annotate(servers_.Barrier(), "states that were assigned"));
  if (servers_.rank() == 0) {
    for (size_t i = 0; i < assigned_.size(); ++i) {
      if (!assigned_[i]) continue;
      RETURN_IF_ERROR(servers_.Assign(KeyOf(i), addresses[static_cast<size_t>(executable_.served[i].buffer)]));
    }
    for (const Kept& kept : kept_) {
      if (!kept.pending) continue;
      for (const size_t state : kept.states)
        RETURN_IF_ERROR(servers_.WriteState(KeyOf(state), kept.name, *kept.pending));
    }
  }
  RETURN_IF_ERROR(Annotate(servers_.Barrier(), "states that were assigned"));
  for (Kept& kept : kept_) kept.pending.reset();
  for (size_t i = 0; i < assigned_.size(); ++i) {
    if (!assigned_[i]) continue;
    assigned_[i] = false;
    if (is_synchronous()) continue;  // ranks compare their assignments
    RETURN_IF_ERROR(servers_.Pull(KeyOf(i), addresses[static_cast<size_t>(executable_.served[i].buffer)]));
  }
  return absl::OkStatus();
}

absl::Status ServedStates::SendSettings(std::span<const double> settings) {
  for (size_t i = 0; i < settings.size(); ++i) {
    if (settings[i] == settings_[i]) continue;
    const std::string& name = executable_.settings[i].name;
    const bool is_theirs =
        std::any_of(executable_.served.begin(), executable_.served.end(), [&](const ServedState& state) {
          return std::find(state.settings.begin(), state.settings.end(), name) != state.settings.end();
        });
    if (is_theirs) RETURN_IF_ERROR(servers_.Set(name, settings[i], prefix_).status());
    settings_[i] = settings[i];
  }
  return absl::OkStatus();
}

absl::Status ServedStates::Push(int state, const std::byte* gradient) {
  const Use use(*this);
  RETURN_IF_ERROR(use.status());
  return servers_.Push(KeyOf(static_cast<size_t>(state)), gradient);
}

absl::Status ServedStates::StartPull(int state, std::byte* value) {
  const Use use(*this);
  RETURN_IF_ERROR(use.status());
  const auto position = static_cast<size_t>(state);
  ASSIGN_OR_RETURN(pulls_[position], servers_.StartPull(KeyOf(position), value));
  return absl::OkStatus();
}

absl::Status ServedStates::Wait(int state) {
  const Use use(*this);
  RETURN_IF_ERROR(use.status());
  return servers_.Wait(std::exchange(pulls_[static_cast<size_t>(state)], {}));
}

void ServedStates::ForgetPulls() {
  const auto is_under_way = [](const ServerClient::Ticket& pull) { return !pull.requests.empty(); };
  if (std::none_of(pulls_.begin(), pulls_.end(), is_under_way)) return;
  for (;; absl::SleepFor(absl::Milliseconds(1))) {
    const Use use(*this);
    if (!use.status().ok()) continue;  // another thread is in a call of the client, which may fill them
    for (ServerClient::Ticket& pull : pulls_) servers_.Forget(std::exchange(pull, {}));
    return;
  }
}

// --- Between runs ---------------------------------------------------------------------------------------------------

const ServedStates::Kept* ServedStates::FindKept(std::string_view state) const {
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) { return each.name == state; });
  return kept == kept_.end() ? nullptr : &*kept;
}

std::optional<size_t> ServedStates::FindServed(std::string_view state) const {
  for (size_t i = 0; i < executable_.served.size(); ++i) {
    if (executable_.served[i].name == state) return i;
  }
  return std::nullopt;
}

void ServedStates::CopyAssigned(std::string_view state) {
  if (const std::optional<size_t> served = FindServed(state)) assigned_[*served] = true;
}

absl::Status ServedStates::Assign(std::string_view state, const TensorType& type, const std::byte* data) {
  const Kept* const found = FindKept(state);
  LOCKSTEP_CHECK(found != nullptr && found->type == type) << state;
  std::optional<Tensor>& pending = kept_[static_cast<size_t>(found - kept_.data())].pending;
  pending.emplace(type);
  if (type.num_bytes() > 0) std::memcpy(pending->mutable_bytes(), data, type.num_bytes());
  return absl::OkStatus();
}

absl::Status ServedStates::Read(std::string_view state, const TensorType& type, std::byte* data) {
  const Kept* const kept = FindKept(state);
  LOCKSTEP_CHECK(kept != nullptr && kept->type == type) << state;
  Tensor value;
  if (kept->pending) {
    value = *kept->pending;
  } else {
    const Use use(*this);
    RETURN_IF_ERROR(use.status());
    ASSIGN_OR_RETURN(value, servers_.ReadState(KeyOf(kept->states.front()), kept->name));
  }
  if (type.num_bytes() > 0) std::memcpy(data, value.bytes(), type.num_bytes());
  return absl::OkStatus();
}

absl::Status ServedStates::Refresh(std::string_view state, std::span<std::byte* const> addresses) {
  const std::optional<size_t> served = FindServed(state);
  if (!served || is_synchronous() || assigned_[*served]) return absl::OkStatus();
  const Use use(*this);
  RETURN_IF_ERROR(use.status());
  return servers_.Pull(KeyOf(*served), addresses[static_cast<size_t>(executable_.served[*served].buffer)]);
}

absl::StatusOr<std::map<int64_t, int64_t>> ServedStates::Staleness() {
  const Use use(*this);
  RETURN_IF_ERROR(use.status());
  return servers_.Staleness();
}

}  // namespace lockstep
