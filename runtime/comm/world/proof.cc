#include "runtime/comm/world/proof.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/status.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/SHA256.h"
#include "runtime/comm/network/sockets.h"

namespace lockstep {
namespace {

constexpr size_t kBlockBytes = 64;  // of SHA-256
constexpr size_t kMostSecretBytes = 4096;
constexpr char kSecret[] = "LOCKSTEP_SECRET", kSecretFile[] = "LOCKSTEP_SECRET_FILE";

Proof Sha256(std::string_view first, std::string_view second) {
  llvm::SHA256 hash;
  hash.update(llvm::StringRef(first.data(), first.size()));
  hash.update(llvm::StringRef(second.data(), second.size()));
  return hash.final();
}

std::string_view BytesOf(const Proof& proof) { return {reinterpret_cast<const char*>(proof.data()), proof.size()}; }

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  const std::string file = std::string(kSecretFile) + ": the file " + path;
  // Opening a pipe must not wait.
  const Descriptor descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts{};
  if (!descriptor || fstat(descriptor.get(), &facts) != 0)
    return FailedPrecondition() << file << " cannot be read: " << std::strerror(errno);
  if (!S_ISREG(facts.st_mode)) return FailedPrecondition() << file << " is no regular file";
  if (facts.st_uid != geteuid())
    return FailedPrecondition() << file << " belongs to user " << facts.st_uid << ", not to this user, " << geteuid();
  if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return FailedPrecondition() << file << " is open to other users: chmod 600 " << path;
  std::string text(kMostSecretBytes + 2, '\0');
  const ssize_t got = read(descriptor.get(), text.data(), text.size());
  if (got < 0) return FailedPrecondition() << file << " cannot be read: " << std::strerror(errno);
  text.resize(static_cast<size_t>(got));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

absl::StatusOr<std::string> SecretOfEnvironment() {
  const char* const secret = std::getenv(kSecret);
  const char* const path = std::getenv(kSecretFile);
  if (secret == nullptr && path == nullptr) return "";
  if (secret != nullptr && path != nullptr)
    return InvalidArgument() << kSecret << " and " << kSecretFile << " are both set: leave out one";
  std::string text = secret == nullptr ? "" : secret;
  if (path != nullptr) {
    ASSIGN_OR_RETURN(text, ReadSecret(path));
  }
  const char* const name = path != nullptr ? kSecretFile : kSecret;
  if (text.empty()) return InvalidArgument() << name << " is set, but its secret is empty";
  if (text.size() > kMostSecretBytes)
    return InvalidArgument() << name << ": the secret is longer than " << kMostSecretBytes << " bytes";
  return text;
}

absl::StatusOr<Nonce> FreshNonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    return ErrorStream(absl::StatusCode::kUnavailable) << "getrandom: " << std::strerror(errno);
  return nonce;
}

Proof HmacSha256(std::string_view key, std::string_view message) {
  const Proof of_key = key.size() > kBlockBytes ? Sha256(key, {}) : Proof{};
  if (key.size() > kBlockBytes) key = BytesOf(of_key);
  std::string inner(kBlockBytes, '\x36'), outer(kBlockBytes, '\x5c');
  for (size_t i = 0; i < key.size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ key[i]);
    outer[i] = static_cast<char>(outer[i] ^ key[i]);
  }
  const Proof of_message = Sha256(inner, message);
  return Sha256(outer, BytesOf(of_message));
}

bool ProofsMatch(const Proof& a, const Proof& b) {
  volatile uint8_t difference = 0;  // volatile: the compiler must not leave the loop early
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace lockstep
