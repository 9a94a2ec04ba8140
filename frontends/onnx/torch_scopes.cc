#include "frontends/onnx/torch_scopes.h"

#include <optional>
#include <vector>

namespace lockstep {
namespace {

// Removes a string in quotes, as Python's repr() writes it, from the front of `text`. Knows only the escapes of quotes
// and of the backslash; others stand for characters that cannot be printed.
std::optional<std::string> TakeString(std::string_view& text) {
  if (text.empty() || (text[0] != '\'' && text[0] != '"')) return std::nullopt;
  const char quote = text[0];
  std::string taken;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      text.remove_prefix(i + 1);
      return taken;
    }
    if (text[i] == '\\') {
      ++i;
      if (i == text.size() || (text[i] != '\\' && text[i] != '\'' && text[i] != '"')) return std::nullopt;
    }
    taken += text[i];
  }
  return std::nullopt;
}

bool Take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// The strings of a list, as Python's repr() writes it; empty if `text` is not such a list.
std::vector<std::string> StringsOf(std::string_view text) {
  std::vector<std::string> strings;
  if (!Take(text, "[")) return {};
  do {
    std::optional<std::string> string = TakeString(text);
    if (!string) return {};
    strings.push_back(*std::move(string));
  } while (Take(text, ", "));
  return text == "]" ? strings : std::vector<std::string>();
}

}  // namespace

std::string TorchSource(std::string_view scopes, const std::string& name) {
  const std::vector<std::string> strings = StringsOf(scopes);
  if (strings.empty()) return "";
  const std::string module = strings.size() > 1 ? strings[strings.size() - 2] : "";
  return "torch:" + (module.empty() ? strings.back() + "()" : module) + "/" + name;
}

}  // namespace lockstep
