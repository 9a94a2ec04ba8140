// Stores in a file the ways of solving problems that were chosen by timing (tuning.h), so that later programs on the
// machine compute the same bits and load faster:
//
//   {"format": 2, "machines": {"NVIDIA H200, ..., cuBLASLt 13.1.0": {"1x[64,128]x[128,32] f32, aligned to 64":
//   "6c6f..."}}}
//
// After reading a choice, the caller must let the library check it. A file that is damaged or has another format is
// ignored, with a warning, and replaced. Several processes may write at once: each adds to the entries of the others,
// and the file is complete at all times. If there is no file or it cannot be written, only the stored choices are lost.
// Any thread may call it.

#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/status.h"

namespace lockstep::cuda {

using Choices = std::map<std::string, std::string>;  // by Tunable::Key(); without line breaks and tabs

// Returns ${XDG_CACHE_HOME:-~/.cache}/lockstep/choices.json; empty if neither XDG_CACHE_HOME nor HOME is set.
std::string ChoiceCachePath();

class ChoiceCache {
 public:
  // The entries of one machine. With an empty path nothing is stored.
  ChoiceCache(std::string path, std::string machine) : path_(std::move(path)), machine_(std::move(machine)) {}

  Choices Read() const;

  // Adds `timed`, and returns the file's entries for these problems. An entry that another process has added meanwhile
  // stays, unless it equals the one in `refused`.
  Choices Add(const Choices& timed, const Choices& refused) const;

 private:
  const std::string path_, machine_;
};

// The text form for other ranks: one line per problem.
std::string ToText(const Choices& choices);
absl::StatusOr<Choices> ChoicesOf(std::string_view text);

}  // namespace lockstep::cuda
