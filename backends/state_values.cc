#include "backends/state_values.h"

#include <algorithm>

namespace lockstep {

absl::Status ReadStates(Executor& executor, std::span<const std::string> names, StateValues& values) {
  size_t count = 0;
  for (const ValueInfo& state : executor.executable().states) {
    if (!state.is_here() || std::find(names.begin(), names.end(), state.name) == names.end()) continue;
    if (count == values.size()) values.emplace_back(state.name, Tensor(state.local_type));
    Tensor& value = values[count++].second;
    RETURN_IF_ERROR(executor.ReadState(state.name, {value.type(), value.mutable_bytes()}));
  }
  return absl::OkStatus();
}

absl::Status WriteStates(Executor& executor, const StateValues& values) {
  for (const auto& [name, value] : values) RETURN_IF_ERROR(executor.AssignState(name, {value.type(), value.bytes()}));
  return absl::OkStatus();
}

absl::Status CopyStates(Executor& from, Executor& to) {
  for (const ValueInfo& state : from.executable().states) {
    const auto& states = to.executable().states;
    const auto same = std::find_if(states.begin(), states.end(), [&](const ValueInfo& each) {
      return each.name == state.name && each.local_type == state.local_type;
    });
    if (same == states.end()) continue;
    Tensor value(state.local_type);
    RETURN_IF_ERROR(from.ReadState(state.name, {value.type(), value.mutable_bytes()}));
    RETURN_IF_ERROR(to.AssignState(state.name, {value.type(), value.bytes()}));
  }
  return CopySettings(from, to);
}

absl::Status CopySettings(Executor& from, Executor& to) {
  for (const SettingInfo& setting : to.executable().settings) {
    ASSIGN_OR_RETURN(const double value, from.ReadSetting(setting.name));
    RETURN_IF_ERROR(to.Set(setting.name, value));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
