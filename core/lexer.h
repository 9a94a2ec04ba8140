// The tokens of the text form, for core/parser.cc alone.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace lockstep {

struct Token {
  enum class Kind { kWord, kNumber, kString, kPunctuation, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // a string's contents without quotes; punctuation is one character, or "->"
  size_t offset = 0;

  bool Is(std::string_view punctuation_or_word) const { return kind != Kind::kString && text == punctuation_or_word; }
};

// Words are [A-Za-z_][A-Za-z0-9_./]*, numbers start with a digit or with '-' and a digit; `//` starts a comment.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { Advance(); }

  const Token& peek() const { return token_; }
  Token Next();

  // Reads a name after '%'. It may start with digits, or be all digits.
  absl::StatusOr<std::string> NextName();

  // Returns InvalidArgument that starts with the position of the current token: "line 3, column 7: ".
  ErrorStream Error() const { return Error(token_.offset); }
  ErrorStream Error(size_t offset) const;  // the same for the position `offset`

 private:
  void Advance();
  void SkipBlanks();

  std::string_view text_;
  size_t at_ = 0;
  Token token_;
};

}  // namespace lockstep
