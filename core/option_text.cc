#include "core/option_text.h"

#include <array>
#include <cctype>
#include <charconv>
#include <set>

#include "core/attributes.h"

namespace lockstep {
namespace {

// Returns the position, from `begin` on, of the first of `marks` outside of braces and quotes, or the end of the text.
// Returns an error if a brace or a quote before that position is not closed.
absl::StatusOr<size_t> FindOutside(std::string_view text, std::string_view marks, size_t begin) {
  int depth = 0;
  bool in_quotes = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (depth == 0 && !in_quotes && marks.find(c) != marks.npos) return i;
    if (c == '"') in_quotes = !in_quotes;
    if (in_quotes && c == '\\') ++i;
    if (!in_quotes && c == '{') ++depth;
    if (!in_quotes && c == '}' && --depth < 0) return InvalidArgument() << "'" << text << "' has no opening brace";
  }
  if (in_quotes) return InvalidArgument() << "'" << text << "' has no closing quote";
  if (depth > 0) return InvalidArgument() << "'" << text << "' has no closing brace";
  return text.size();
}

std::string WithoutQuotes(std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return std::string(text);
  std::string result;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] != '\\') result += text[i];
    else if (text[++i] == 'n') result += '\n';
    else result += text[i];
  }
  return result;
}

// The edit distance: the number of letters to insert, remove or change.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

template <typename T>
absl::Status NumberFromText(std::string_view text, std::string_view what, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return absl::OkStatus();
  return InvalidArgument() << " is '" << text << "', expected " << what;
}

}  // namespace

std::string_view WithoutSpaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

absl::StatusOr<std::vector<std::string_view>> SplitText(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (WithoutSpaces(text).empty()) return parts;
  for (size_t begin = 0; begin <= text.size();) {
    ASSIGN_OR_RETURN(const size_t end, FindOutside(text, std::string_view(&separator, 1), begin));
    parts.push_back(WithoutSpaces(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

absl::StatusOr<std::vector<NamedText>> ParseNamedTexts(std::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view> parts, SplitText(text, ','));
  std::vector<NamedText> texts;
  std::set<std::string> names;
  for (const std::string_view part : parts) {
    ASSIGN_OR_RETURN(const size_t equals, FindOutside(part, "=", 0));
    const std::string name = WithoutQuotes(WithoutSpaces(part.substr(0, equals)));
    if (equals == part.size()) return InvalidArgument() << "'" << part << "' is not of the form name=value";
    if (!names.insert(name).second) return InvalidArgument() << "'" << name << "' is given twice";
    texts.emplace_back(name, WithoutSpaces(part.substr(equals + 1)));
  }
  return texts;
}

std::string PrintNamedTexts(const std::vector<NamedText>& texts) {
  std::string printed;
  for (const auto& [name, text] : texts) printed += (printed.empty() ? "" : ",") + ToText(name) + "=" + text;
  return printed;
}

absl::StatusOr<std::pair<std::string_view, std::optional<std::string_view>>> SplitBraces(std::string_view text) {
  const std::string_view given = WithoutSpaces(text);
  const size_t brace = given.find('{');
  if (brace == given.npos) return std::pair(given, std::optional<std::string_view>());
  RETURN_IF_ERROR(FindOutside(given, "", 0).status());
  if (given.back() != '}') return InvalidArgument() << "'" << given << "' has no closing brace at its end";
  return std::pair(WithoutSpaces(given.substr(0, brace)),
                   std::optional(given.substr(brace + 1, given.size() - brace - 2)));
}

std::string SuggestName(std::string_view name, const std::vector<std::string>& names) {
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return Distance(name, a) < Distance(name, b);
  });
  if (nearest == names.end()) return "; there are none";
  const bool is_near = Distance(name, *nearest) <= (name.size() < 4 ? 1 : 2);
  std::string text = is_near ? "; is " + *nearest + " meant? There are " : "; there are ";
  for (const std::string& each : names) text += (&each == names.data() ? "" : ", ") + each;
  return text;
}

absl::Status CheckOptionNames(const std::vector<NamedText>& texts, std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const auto& [name, text] : texts) {
    if (!std::binary_search(names.begin(), names.end(), name))
      return InvalidArgument() << "there is no option '" << name << "'" << SuggestName(name, names);
  }
  return absl::OkStatus();
}

std::string ToText(bool value) { return value ? "true" : "false"; }
std::string ToText(int64_t value) { return std::to_string(value); }

std::string ToText(double value) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr};
}

std::string ToText(const std::string& value) {
  const bool is_plain = !value.empty() && value.find_first_of("{}=,\"|\\ \t\n") == value.npos;
  return is_plain ? value : Quoted(value);
}

std::string ToText(const std::vector<std::string>& value) {
  std::string text;
  for (const std::string& each : value) text += (text.empty() ? "" : "|") + ToText(each);
  return text;
}

std::string ToText(const std::vector<int64_t>& value) {
  std::string text;
  for (const int64_t each : value) text += (text.empty() ? "" : "|") + ToText(each);
  return text;
}

std::string ToText(const Mesh& value) {
  Named<int64_t> axes;
  for (const MeshAxis& axis : value.axes()) axes.emplace_back(axis.name, axis.size);
  return ToText(axes);
}

absl::Status FromText(std::string_view text, bool& value) {
  if (text != "true" && text != "false") return InvalidArgument() << " is '" << text << "', expected true or false";
  value = text == "true";
  return absl::OkStatus();
}

absl::Status FromText(std::string_view text, int64_t& value) { return NumberFromText(text, "a whole number", value); }
absl::Status FromText(std::string_view text, double& value) { return NumberFromText(text, "a number", value); }

absl::Status FromText(std::string_view text, std::string& value) {
  value = WithoutQuotes(text);
  return absl::OkStatus();
}

absl::Status FromText(std::string_view text, std::vector<std::string>& value) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view> parts, SplitText(text, '|'));
  value.clear();
  for (const std::string_view part : parts) value.push_back(WithoutQuotes(part));
  return absl::OkStatus();
}

absl::Status FromText(std::string_view text, std::vector<int64_t>& value) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view> parts, SplitText(text, '|'));
  value.clear();
  for (const std::string_view part : parts) RETURN_IF_ERROR(FromText(part, value.emplace_back()));
  return absl::OkStatus();
}

absl::Status FromText(std::string_view text, Mesh& value) {
  constexpr int64_t kMaxRanks = 1 << 15;  // the limit of the verifier
  Named<int64_t> named;
  RETURN_IF_ERROR(FromText(text, named));
  std::vector<MeshAxis> axes;
  int64_t ranks = 1;
  for (const auto& [name, size] : named) {
    const bool is_word = !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
                         std::all_of(name.begin(), name.end(),
                                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
    if (!is_word)
      return InvalidArgument() << ": the name of an axis is '" << name
                               << "', expected letters, digits and _, not beginning with a digit";
    if (size < 1) return InvalidArgument() << " axis " << name << " has size " << size << ", expected at least 1";
    if (size > kMaxRanks || (ranks *= size) > kMaxRanks)
      return InvalidArgument() << ": axis " << name << " has size " << size << ", which makes too many ranks";
    axes.push_back({name, size});
  }
  value = Mesh(std::move(axes));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedText>> NamedTextsInBraces(std::string_view text) {
  const auto parts = SplitBraces(text);
  if (!parts.ok() || !parts->second || !parts->first.empty())
    return InvalidArgument() << " is '" << text << "', expected names and values in braces";
  absl::StatusOr<std::vector<NamedText>> texts = ParseNamedTexts(*parts->second);
  if (!texts.ok()) return InvalidArgument() << ": " << texts.status().message();
  return texts;
}

}  // namespace lockstep
