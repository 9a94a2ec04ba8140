// The secret of a job, and the proof that a process knows it: HMAC-SHA256 (RFC 2104, FIPS 180-4) over what both sides
// have said. Any thread.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lockstep {

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;

// Returns the secret of the environment: the value of LOCKSTEP_SECRET, or the content of the file that
// LOCKSTEP_SECRET_FILE names, without a newline at its end. Returns "" if neither is set. Errors: both are set; the
// secret is empty, or longer than 4096 bytes; the file is no regular file of this user that no one else may read or
// write.
absl::StatusOr<std::string> SecretOfEnvironment();

// Returns 32 random bytes of the kernel.
absl::StatusOr<Nonce> FreshNonce();

// Returns HMAC-SHA256 of the message.
Proof HmacSha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on the bytes.
bool ProofsMatch(const Proof& a, const Proof& b);

}  // namespace lockstep
