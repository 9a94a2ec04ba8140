// Options as text: `name=value` separated by commas. A value may have braces, which may be nested, and texts may be in
// double quotes:
//
//   mesh={data=2,model=2},split={fc1.weight={model=0}},wire=bf16
//
// A struct of options has a list that binds a name to each field (Bind). OptionsToText prints a struct by the list, and
// SetOptions sets one. Strategies (backends/compile_options.h) and the passes of lockstep-opt (passes/pass_table.h) use
// this form. Any thread.

#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/placement.h"
#include "core/status.h"

namespace lockstep {

// A name, without quotes, and the text of its value, unchanged.
using NamedText = std::pair<std::string, std::string>;

std::string_view WithoutSpaces(std::string_view text);  // removes spaces around the text

// Splits the text at separators outside of braces and quotes. Returns the parts without the spaces around them; none
// for a blank text. Returns an error if a brace or a quote is not closed, or a brace is not opened.
absl::StatusOr<std::vector<std::string_view>> SplitText(std::string_view text, char separator);

// Returns the names and values of a text such as `a=1,b={c=2}`. Returns an error if a part does not have this form, or
// a name is given twice.
absl::StatusOr<std::vector<NamedText>> ParseNamedTexts(std::string_view text);

// Returns a text such as `a=1,b={c=2}`. Names are in quotes if they need them.
std::string PrintNamedTexts(const std::vector<NamedText>& texts);

// Returns the text before the first brace, and the text between the braces; the second is null if there is no brace.
absl::StatusOr<std::pair<std::string_view, std::optional<std::string_view>>> SplitBraces(std::string_view text);

// Returns the end of an error message for an unknown name: "; is wire meant? There are mesh, wire" for "wier", or
// "; there are mesh, wire" if no name is similar, or "; there are none".
std::string SuggestName(std::string_view name, const std::vector<std::string>& names);

// Returns an error, with the text of SuggestName, if the name of a text is not in `names`.
absl::Status CheckOptionNames(const std::vector<NamedText>& texts, std::vector<std::string> names);

// --- Values ----------------------------------------------------------------------------------------------------------
// FromText sets a value. The caller puts the name of the value before the message of an error: " is 'x', expected a
// number", or ": part is 'x', expected a number" for a part of the value.

std::string ToText(bool value);  // true or false
std::string ToText(int64_t value);
std::string ToText(double value);                           // the shortest text that parses to the same number
std::string ToText(const std::string& value);               // in quotes if it needs them
std::string ToText(const std::vector<std::string>& value);  // a|b
std::string ToText(const std::vector<int64_t>& value);      // 5|3
std::string ToText(const Mesh& value);                      // {data=2,model=2}

absl::Status FromText(std::string_view text, bool& value);
absl::Status FromText(std::string_view text, int64_t& value);
absl::Status FromText(std::string_view text, double& value);
absl::Status FromText(std::string_view text, std::string& value);
absl::Status FromText(std::string_view text, std::vector<std::string>& value);
absl::Status FromText(std::string_view text, std::vector<int64_t>& value);
absl::Status FromText(std::string_view text, Mesh& value);

// A type with its own text form.
template <typename T>
concept Printed = requires(const T& value) {
  { value.ToString() } -> std::same_as<std::string>;
  T::Parse(std::string_view());
};
template <Printed T>
std::string ToText(const T& value) {
  return value.ToString();
}
template <Printed T>
absl::Status FromText(std::string_view text, T& value) {
  ASSIGN_OR_RETURN(value, T::Parse(text));
  return absl::OkStatus();
}

// Returns the names and values in the braces of a value.
absl::StatusOr<std::vector<NamedText>> NamedTextsInBraces(std::string_view text);

template <typename T>
using Named = std::vector<std::pair<std::string, T>>;  // keeps the order

template <typename T>
std::string ToText(const std::map<std::string, T>& value);
template <typename T>
absl::Status FromText(std::string_view text, std::map<std::string, T>& value);

template <typename T>
std::string ToText(const Named<T>& value) {
  std::vector<NamedText> texts;
  for (const auto& [name, each] : value) texts.emplace_back(name, ToText(each));
  return "{" + PrintNamedTexts(texts) + "}";
}
template <typename T>
absl::Status FromText(std::string_view text, Named<T>& value) {
  ASSIGN_OR_RETURN(const std::vector<NamedText> texts, NamedTextsInBraces(text));
  value.clear();
  for (const auto& [name, of_name] : texts) {
    const absl::Status status = FromText(of_name, value.emplace_back(name, T()).second);
    if (!status.ok()) return InvalidArgument() << ": " << name << status.message();
  }
  return absl::OkStatus();
}

template <typename T>
std::string ToText(const std::map<std::string, T>& value) {
  return ToText(Named<T>(value.begin(), value.end()));
}
template <typename T>
absl::Status FromText(std::string_view text, std::map<std::string, T>& value) {
  Named<T> named;
  RETURN_IF_ERROR(FromText(text, named));
  value = {named.begin(), named.end()};
  return absl::OkStatus();
}

template <typename T>
std::string ToText(const std::optional<T>& value) {
  return value ? ToText(*value) : "";
}
template <typename T>
absl::Status FromText(std::string_view text, std::optional<T>& value) {
  return FromText(text, value.emplace());
}

// --- Structs of options ----------------------------------------------------------------------------------------------

template <typename S>
struct OptionOf {
  std::string name;
  std::string doc;
  std::function<std::string(const S&)> text;                   // the value; "" if none is set
  std::function<absl::Status(S&, std::string_view text)> set;  // errors are those of FromText
};

// Returns an option for the field: Bind("max_nodes", &FusionOptions::max_nodes). S is needed only if the options are a
// struct derived from the field's class.
template <typename S = void, typename C, typename T>
auto Bind(std::string name, T C::* field, std::string doc = "") {
  using Struct = std::conditional_t<std::is_void_v<S>, C, S>;
  return OptionOf<Struct>{std::move(name), std::move(doc),
                          [field](const Struct& options) { return ToText(options.*field); },
                          [field](Struct& options, std::string_view text) { return FromText(text, options.*field); }};
}

// Returns an option of S from an option of a struct that is a field of S.
template <typename S, typename Inner>
OptionOf<S> Within(Inner S::* field, OptionOf<Inner> option) {
  return {option.name, option.doc, [field, text = option.text](const S& options) { return text(options.*field); },
          [field, set = option.set](S& options, std::string_view text) { return set(options.*field, text); }};
}

// Returns `name=value` for each option whose value differs from the default.
template <typename Options, typename S>
std::string OptionsToText(const Options& options, const S& value) {
  const S defaults{};
  std::vector<NamedText> texts;
  for (const auto& option : options) {
    if (const std::string text = option.text(value); text != option.text(defaults))
      texts.emplace_back(option.name, text);
  }
  return PrintNamedTexts(texts);
}

// Returns "name=default (doc), …", for help texts.
template <typename S>
std::string DescribeOptions(const std::vector<OptionOf<S>>& options, const S& defaults = {}) {
  std::string described;
  for (const OptionOf<S>& option : options) {
    described += (described.empty() ? "" : ", ") + option.name + "=" + (option.text ? option.text(defaults) : "");
    if (!option.doc.empty()) described += " (" + option.doc + ")";
  }
  return described;
}

// Sets the options that the texts name, in the order of `options`. Errors name the option.
template <typename Options, typename S>
absl::Status SetOptions(const Options& options, const std::vector<NamedText>& texts, S& value) {
  std::vector<std::string> names;
  for (const auto& option : options) names.push_back(option.name);
  RETURN_IF_ERROR(CheckOptionNames(texts, names));
  for (auto option = options.begin(); option != options.end(); ++option) {
    const auto is_it = [&](const auto& each) { return each.name == option->name; };
    if (std::find_if(options.begin(), option, is_it) != option) continue;  // the first option of a name counts
    for (const auto& [name, text] : texts) {
      if (name != option->name) continue;
      const absl::Status status = option->set(value, text);
      if (!status.ok()) return absl::Status(status.code(), name + std::string(status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
