#include "core/text.h"

#include <cstdint>

namespace lockstep {
namespace {

// The number of bytes of the first character of `text`; 0 if it is not well-formed. Requires that `text` is not empty.
size_t WellFormedBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto in = [](uint8_t value, uint8_t low, uint8_t high) { return low <= value && value <= high; };
  const uint8_t first = byte(0);
  if (in(first, 0x01, 0x7f)) return 1;
  if (in(first, 0xc2, 0xdf)) return in(byte(1), 0x80, 0xbf) ? 2 : 0;
  // The range of the second byte excludes overlong forms, surrogates, and code points after U+10FFFF.
  if (in(first, 0xe0, 0xef)) {
    const uint8_t low = first == 0xe0 ? 0xa0 : 0x80, high = first == 0xed ? 0x9f : 0xbf;
    return in(byte(1), low, high) && in(byte(2), 0x80, 0xbf) ? 3 : 0;
  }
  if (in(first, 0xf0, 0xf4)) {
    const uint8_t low = first == 0xf0 ? 0x90 : 0x80, high = first == 0xf4 ? 0x8f : 0xbf;
    return in(byte(1), low, high) && in(byte(2), 0x80, 0xbf) && in(byte(3), 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

}  // namespace

size_t FindInvalidText(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = WellFormedBytes(text.substr(at));
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::string_view::npos;
}

std::string ToValidText(std::string_view text) {
  std::string valid;
  for (size_t bad = FindInvalidText(text); bad != std::string_view::npos; bad = FindInvalidText(text)) {
    valid.append(text.substr(0, bad)).append("\xef\xbf\xbd");
    text.remove_prefix(bad + 1);
  }
  return valid.append(text);
}

size_t CharacterBytes(std::string_view text) {
  const size_t bytes = WellFormedBytes(text);
  return bytes == 0 ? 1 : bytes;
}

}  // namespace lockstep
