#include "runtime/buffer.h"

namespace lockstep {

std::string_view BufferKindName(BufferKind kind) {
  switch (kind) {
    case BufferKind::kInput: return "input";
    case BufferKind::kResult: return "result";
    case BufferKind::kState: return "state";
    case BufferKind::kSettings: return "settings";
    case BufferKind::kConstant: return "constant";
    case BufferKind::kArena: return "arena";
    case BufferKind::kRegistered: return "buckets";
  }
  return "?";
}

std::string Buffer::ToString() const {
  std::string text(BufferKindName(kind));
  if (part_of >= 0) text = "part of " + text;
  return name.empty() ? text : text + " " + name;
}

}  // namespace lockstep
