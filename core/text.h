// Valid text, at every interface: UTF-8 without NUL, which all programming languages can read. Plain functions; any
// thread.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The offset of the first byte that is NUL or not part of a well-formed UTF-8 character (Unicode 15, table 3-7); npos
// if there is none.
size_t FindInvalidText(std::string_view text);

// `text` with every such byte replaced by U+FFFD.
std::string ToValidText(std::string_view text);

// The number of bytes of the first character of `text`; 1 if it is not well-formed. Requires that `text` is not empty.
size_t CharacterBytes(std::string_view text);

}  // namespace lockstep
