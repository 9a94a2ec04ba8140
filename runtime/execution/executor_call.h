// Code that only the sources of the executor share: a call of the executor, and the check of a tensor from the caller.

#pragma once

#include <string>

#include "runtime/execution/executor.h"

namespace lockstep {

// Holds the executor, and its communicator if it has several ranks, for one call.
class Executor::ExclusiveCall {
 public:
  explicit ExclusiveCall(Executor& executor)
      : use_(executor.in_use_),
        communicator_use_(executor.communicator_.size() > 1 ? executor.communicator_.in_use() : unshared_) {
    const std::string& name = executor.executable_.name;
    if (!use_.ok()) status_ = use_.Error("executor @" + name);
    else if (!communicator_use_.ok()) status_ = communicator_use_.Error("the communicator of executor @" + name);
  }
  const absl::Status& status() const { return status_; }

 private:
  ExclusiveUse::Flag unshared_;
  const ExclusiveUse use_, communicator_use_;
  absl::Status status_;
};

// Converts from the clock of events (runtime/record/clock.h) to seconds for counters.
inline double Seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

// Returns the names of values, for messages.
template <typename Range>
std::string NamesOf(const Range& values) {
  std::string names;
  for (const auto& value : values) names += (names.empty() ? "" : ", ") + std::string(value.name);
  return names.empty() ? "none" : names;
}

// Returns OK if the caller's tensor fits the value, which is an "input", a "result" or a "state".
absl::Status CheckTensor(const char* what, const ValueInfo& info, const TensorType& type, const void* data);

}  // namespace lockstep
