// The only conversion of a status to an exception, lockstep.Error. The message is valid text for Python, whatever bytes
// a file or a name contains.

#pragma once

#include <stdexcept>
#include <string>

#include "core/status.h"
#include "core/text.h"

namespace lockstep::python {

// Becomes lockstep.Error of lockstep/_base/errors.py in Python (module.cc).
class Error : public std::runtime_error {
 public:
  explicit Error(const absl::Status& status) : std::runtime_error(ToValidText(std::string(status.message()))) {}
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
