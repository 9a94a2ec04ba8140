#include "runtime/execution/agreement.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/local_part.h"
#include "core/tensor.h"
#include "runtime/execution/whole_state.h"
#include "runtime/hash.h"

namespace lockstep {
namespace {

std::string Bytes(uint64_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof(value)); }

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Returns the line, or the part of a long line around `place`.
std::string Excerpt(std::string_view line, size_t place) {
  constexpr size_t kWhole = 240, kBefore = 80;
  if (line.size() <= kWhole) return std::string(line);
  const auto is_within_character = [&](size_t i) { return i < line.size() && (line[i] & 0xC0) == 0x80; };  // of UTF-8
  size_t begin = place > kBefore ? place - kBefore : 0, end = std::min(begin + kWhole, line.size());
  while (begin > 0 && is_within_character(begin)) --begin;
  while (is_within_character(end)) ++end;
  const std::string part(line.substr(begin, end - begin));
  return (begin > 0 ? "…" : "") + part + (end < line.size() ? "…" : "");
}

}  // namespace

absl::Status AgreeOnSuccess(Communicator& communicator, std::string_view what, const absl::Status& own) {
  if (communicator.size() == 1) return own;
  // Sends only the code if the rank succeeded, so that this is one small message.
  const std::string said = Bytes(static_cast<uint64_t>(own.code())) + std::string(own.message());
  const absl::StatusOr<std::vector<std::string>> told = communicator.AllGatherBytes(said, what);
  RETURN_IF_ERROR(own);
  RETURN_IF_ERROR(told.status());
  for (size_t rank = 0; rank < told->size(); ++rank) {
    const std::string& each = (*told)[rank];
    uint64_t code = 0;
    if (each.size() < sizeof(code)) return Internal() << "rank " << rank << " says in " << what << ": " << each;
    std::memcpy(&code, each.data(), sizeof(code));
    if (code == 0) continue;
    return ErrorStream(static_cast<absl::StatusCode>(code))
           << "rank " << rank << " on host " << communicator.host(static_cast<int>(rank))
           << " gave up: " << std::string_view(each).substr(sizeof(code));
  }
  return absl::OkStatus();
}

absl::Status AgreeOnText(Communicator& communicator, std::string_view what, const std::string& text,
                         std::string_view advice) {
  if (communicator.size() == 1) return absl::OkStatus();
  const std::string label(what);
  const uint64_t hash = HashText(text);
  ASSIGN_OR_RETURN(const std::vector<std::string> hashes, communicator.AllGatherBytes(Bytes(hash), label));
  const auto other =
      std::find_if(hashes.begin(), hashes.end(), [&](const std::string& each) { return each != hashes[0]; });
  if (other == hashes.end()) return absl::OkStatus();

  const auto rank = static_cast<size_t>(other - hashes.begin());
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, communicator.AllGatherBytes(text, label));
  const std::vector<std::string_view> mine = Lines(texts[0]), others = Lines(texts[rank]);
  size_t i = 0;
  while (i < mine.size() && i < others.size() && mine[i] == others[i]) ++i;
  const auto line_of = [i](const std::vector<std::string_view>& lines) {
    return i < lines.size() ? lines[i] : "(nothing)";
  };
  const std::string_view my_line = line_of(mine), other_line = line_of(others);
  const auto place = static_cast<size_t>(
      std::mismatch(my_line.begin(), my_line.end(), other_line.begin(), other_line.end()).first - my_line.begin());
  return FailedPrecondition() << "ranks have different versions of the " << what << "; the first difference is in line "
                              << i + 1 << ":\n  on rank 0: " << Excerpt(my_line, place) << "\n  on rank " << rank
                              << ": " << Excerpt(other_line, place) << (advice.empty() ? "" : "\n") << advice;
}

absl::Status CheckReplicas(Executor& executor, Communicator& communicator) {
  if (communicator.size() == 1) return absl::OkStatus();
  const ExclusiveUse use(communicator.in_use());
  if (!use.ok()) return use.Error("the communicator of executor @" + executor.executable().name);
  const Mesh& mesh = executor.executable().mesh;
  std::vector<const ValueInfo*> replicas;
  std::string hashes;
  for (const ValueInfo& state : executor.executable().states) {
    const bool has_parts = std::all_of(state.placements.begin(), state.placements.end(), [](const auto& placed) {
      return placed.second.is_replicated() || placed.second.is_split() || placed.second.is_at();
    });
    if (!has_parts) continue;
    Tensor value(state.local_type);
    if (!state.is_here()) {
      // Other ranks have it.
    } else if (const absl::Status read = executor.ReadState(state.name, {state.local_type, value.mutable_bytes()});
               !read.ok()) {
      communicator.Abort(read);  // the others wait for this rank
      return read;
    }
    replicas.push_back(&state);
    hashes += Bytes(HashBytes(value.bytes(), value.num_bytes()));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, communicator.AllGatherBytes(hashes, "replicas of the states"));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      const auto first = static_cast<size_t>(FirstReplica(replicas[i]->placements, mesh, static_cast<int64_t>(rank)));
      if (!HasPart(replicas[i]->placements, mesh, static_cast<int64_t>(rank))) continue;
      if (all[rank].compare(8 * i, 8, all[first], 8 * i, 8) == 0) continue;
      return FailedPrecondition() << "state " << replicas[i]->name << " (" << replicas[i]->local_type
                                  << ") differs between rank " << first << " and rank " << rank;
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
