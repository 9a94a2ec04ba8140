// Options as text: `name=value` separated by commas, with braces that nest, and texts in double quotes, such as
//
//   mesh={data=2,model=2},split={fc1.weight={model=0}},wire=bf16
//
// A struct of options has a list that binds each of its fields to a name (Bind); from the list follow its text form
// (OptionsToText) and the parser of it (SetOptions). Strategies (backends/compile_options.h) and the passes of
// lockstep-opt (passes/pass_table.h) are written so. Any thread.

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

// A name, without quotes, and its value as it is written.
using NamedText = std::pair<std::string, std::string>;

std::string_view WithoutSpaces(std::string_view text);  // around it

// The parts between separators that stand outside of braces and quotes, without the spaces around them; none of a blank
// text. An error if a brace or a quote is not closed.
absl::StatusOr<std::vector<std::string_view>> SplitText(std::string_view text, char separator);

// The names and values of `a=1,b={c=2}`. An error if a part is not of this form, or a name is given twice.
absl::StatusOr<std::vector<NamedText>> ParseNamedTexts(std::string_view text);

// `a=1,b={c=2}`, with names in quotes where they need them.
std::string PrintNamedTexts(const std::vector<NamedText>& texts);

// What stands before the brace, and between it and its end; the second is absent where there is no brace.
absl::StatusOr<std::pair<std::string_view, std::optional<std::string_view>>> SplitBraces(std::string_view text);

// What goes on a message that there is no such name: "; is wire meant? There are mesh, wire" of "wier"; "; there are
// mesh, wire" if no name is near.
std::string Meant(std::string_view name, const std::vector<std::string>& names);

// An error that goes on so if a text has a name that is none of `names`.
absl::Status CheckOptionNames(const std::vector<NamedText>& texts, std::vector<std::string> names);

// --- Values ----------------------------------------------------------------------------------------------------------
// FromText sets a value. The message of its error goes on after the name of what is read: " is 'x', expected a number",
// or, of a part, ": part is 'x', expected a number".

std::string ToText(bool value);  // true or false
std::string ToText(int64_t value);
std::string ToText(double value);                           // the shortest that reads as the same number
std::string ToText(const std::string& value);               // in quotes where it needs them
std::string ToText(const std::vector<std::string>& value);  // a|b
std::string ToText(const Mesh& value);                      // {data=2,model=2}

absl::Status FromText(std::string_view text, bool& value);
absl::Status FromText(std::string_view text, int64_t& value);
absl::Status FromText(std::string_view text, double& value);
absl::Status FromText(std::string_view text, std::string& value);
absl::Status FromText(std::string_view text, std::vector<std::string>& value);
absl::Status FromText(std::string_view text, Mesh& value);

// A type with a text form of its own.
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

// The names and values within the braces of a value.
absl::StatusOr<std::vector<NamedText>> NamedTextsInBraces(std::string_view text);

template <typename T>
using Named = std::vector<std::pair<std::string, T>>;  // in order

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
  std::function<std::string(const S&)> text;                   // "" if it has none
  std::function<absl::Status(S&, std::string_view text)> set;  // errors as those of FromText
};

// The option that is the field: Bind("max_nodes", &FusionOptions::max_nodes). S is the struct, if it only derives from
// that of the field.
template <typename S = void, typename C, typename T>
auto Bind(std::string name, T C::* field, std::string doc = "") {
  using Struct = std::conditional_t<std::is_void_v<S>, C, S>;
  return OptionOf<Struct>{std::move(name), std::move(doc),
                          [field](const Struct& options) { return ToText(options.*field); },
                          [field](Struct& options, std::string_view text) { return FromText(text, options.*field); }};
}

// The option of a struct that is a field of another one.
template <typename S, typename Inner>
OptionOf<S> Within(Inner S::* field, OptionOf<Inner> option) {
  return {option.name, option.doc, [field, text = option.text](const S& options) { return text(options.*field); },
          [field, set = option.set](S& options, std::string_view text) { return set(options.*field, text); }};
}

// `name=value` of each option whose text is not that of a default S.
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

// "name=default (doc), …", for people.
template <typename S>
std::string DescribeOptions(const std::vector<OptionOf<S>>& options, const S& defaults = {}) {
  std::string described;
  for (const OptionOf<S>& option : options) {
    described += (described.empty() ? "" : ", ") + option.name + "=" + (option.text ? option.text(defaults) : "");
    if (!option.doc.empty()) described += " (" + option.doc + ")";
  }
  return described;
}

// Sets what the texts say, in the order of the options. Errors name the option.
template <typename Options, typename S>
absl::Status SetOptions(const Options& options, const std::vector<NamedText>& texts, S& value) {
  std::vector<std::string> names;
  for (const auto& option : options) names.push_back(option.name);
  RETURN_IF_ERROR(CheckOptionNames(texts, names));
  for (auto option = options.begin(); option != options.end(); ++option) {
    const auto is_it = [&](const auto& each) { return each.name == option->name; };
    if (std::find_if(options.begin(), option, is_it) != option) continue;  // of two of one name the first counts
    for (const auto& [name, text] : texts) {
      if (name != option->name) continue;
      const absl::Status status = option->set(value, text);
      if (!status.ok()) return absl::Status(status.code(), name + std::string(status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
