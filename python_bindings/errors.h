// The one place where a status becomes an exception: lockstep.Error.

#pragma once

#include <stdexcept>
#include <string>

#include "core/status.h"

namespace lockstep::python {

// Registered with Python as lockstep.Error (module.cc).
class Error : public std::runtime_error {
 public:
  explicit Error(const absl::Status& status) : std::runtime_error(std::string(status.message())) {}
};

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw Error(status);
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

}  // namespace lockstep::python
