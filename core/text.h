// What text may leave or enter: UTF-8 without NUL, which every other language can read. Plain functions; any thread.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The offset of the first byte that is NUL or no part of a well-formed UTF-8 character (Unicode 15, table 3-7); npos if
// none is.
size_t FindInvalidText(std::string_view text);

// `text` with U+FFFD in place of every such byte.
std::string ToValidText(std::string_view text);

// How many bytes the character at the beginning of `text` has; 1 if it is no well-formed one. Requires that text is not
// empty.
size_t CharacterBytes(std::string_view text);

}  // namespace lockstep
