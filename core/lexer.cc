#include "core/lexer.h"

#include <algorithm>
#include <cctype>

#include "core/text.h"

namespace lockstep {
namespace {

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool IsWordStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsWordPart(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/'; }

}  // namespace

Token Lexer::Next() {
  Token token = token_;
  Advance();
  return token;
}

absl::StatusOr<std::string> Lexer::NextName() {
  // Names may look like numbers, "12.1" or even "3e". They are therefore read from the text again, not from the token.
  if (token_.kind == Token::Kind::kString) return Next().text;
  at_ = token_.offset;
  const size_t begin = at_;
  while (at_ < text_.size() && IsWordPart(text_[at_])) ++at_;
  std::string name(text_.substr(begin, at_ - begin));
  if (name.empty()) return Error() << "expected a name, found '" << token_.text << "'";
  Advance();
  return name;
}

ErrorStream Lexer::Error(size_t offset) const {
  size_t line = 1, column = 1;
  for (char c : text_.substr(0, std::min(offset, text_.size()))) {
    const bool continues =
        (static_cast<unsigned char>(c) & 0xc0) == 0x80;  // a UTF-8 character of several bytes is one column
    column = c == '\n' ? 1 : column + !continues;
    line += c == '\n';
  }
  return std::move(InvalidArgument() << "line " << line << ", column " << column << ": ");
}

void Lexer::SkipBlanks() {
  while (at_ < text_.size()) {
    if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else {
      return;
    }
  }
}

void Lexer::Advance() {
  SkipBlanks();
  token_ = Token{Token::Kind::kEnd, "", at_};
  if (at_ >= text_.size()) return;
  const size_t begin = at_;
  const char c = text_[at_];
  const bool negative =
      c == '-' && at_ + 1 < text_.size() && (IsDigit(text_[at_ + 1]) || text_.substr(at_ + 1, 3) == "inf");
  if (IsWordStart(c)) {
    // A comment may follow a word without a space: "%x//".
    while (at_ < text_.size() && IsWordPart(text_[at_]) && text_.substr(at_, 2) != "//") ++at_;
    token_.kind = Token::Kind::kWord;
  } else if (negative || IsDigit(c)) {
    ++at_;
    while (at_ < text_.size()) {
      const bool exponent_sign =
          (text_[at_] == '-' || text_[at_] == '+') && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E');
      if (!std::isalnum(static_cast<unsigned char>(text_[at_])) && text_[at_] != '.' && !exponent_sign) break;
      ++at_;
    }
    token_.kind = Token::Kind::kNumber;
  } else if (c == '"') {
    token_.kind = Token::Kind::kString;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        token_.text += text_[at_] == 'n' ? '\n' : text_[at_];
      } else {
        token_.text += text_[at_];
      }
    }
    if (at_ < text_.size()) ++at_;  // the closing quote; a missing one shows as an unexpected end
    return;
  } else {
    at_ += text_.substr(at_, 2) == "->" ? 2 : CharacterBytes(text_.substr(at_));
    token_.kind = Token::Kind::kPunctuation;
  }
  token_.text = std::string(text_.substr(begin, at_ - begin));
}

}  // namespace lockstep
