// Errors whose cause is outside the code: absl::Status, with messages streamed into an ErrorStream, and two macros that
// propagate errors. A message names the op, its source in the model, what was expected and what was found.

#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// Collects a message and converts to an absl::Status or an absl::StatusOr<T>:
//   return InvalidArgument() << "dim " << dim;
class ErrorStream {
 public:
  explicit ErrorStream(absl::StatusCode code) : code_(code) {}

  template <typename T>
  ErrorStream&& operator<<(const T& part) && {
    message_ << part;
    return std::move(*this);
  }
  template <typename T>
  ErrorStream& operator<<(const T& part) & {
    message_ << part;
    return *this;
  }

  operator absl::Status() const { return absl::Status(code_, message_.str()); }  // NOLINT: implicit by intent
  template <typename T>
  operator absl::StatusOr<T>() const {  // NOLINT: implicit by intent
    return absl::Status(code_, message_.str());
  }

 private:
  absl::StatusCode code_;
  std::ostringstream message_;
};

inline ErrorStream InvalidArgument() { return ErrorStream(absl::StatusCode::kInvalidArgument); }
inline ErrorStream NotFound() { return ErrorStream(absl::StatusCode::kNotFound); }
inline ErrorStream Unimplemented() { return ErrorStream(absl::StatusCode::kUnimplemented); }
inline ErrorStream FailedPrecondition() { return ErrorStream(absl::StatusCode::kFailedPrecondition); }
inline ErrorStream Internal() { return ErrorStream(absl::StatusCode::kInternal); }

// Returns `status` with `context` and ": " before its message. An OK status is returned unchanged.
inline absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), context + ": " + std::string(status.message()));
}

}  // namespace lockstep

#define RETURN_IF_ERROR(expression)                    \
  do {                                                 \
    absl::Status lockstep_status = (expression);       \
    if (!lockstep_status.ok()) return lockstep_status; \
  } while (false)

#define LOCKSTEP_CONCAT_INNER(a, b) a##b
#define LOCKSTEP_CONCAT(a, b) LOCKSTEP_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(lhs, expression) \
  LOCKSTEP_ASSIGN_OR_RETURN(LOCKSTEP_CONCAT(lockstep_or_, __LINE__), lhs, expression)
#define LOCKSTEP_ASSIGN_OR_RETURN(or_value, lhs, expression) \
  auto or_value = (expression);                              \
  if (!or_value.ok()) return or_value.status();              \
  lhs = std::move(or_value).value()
