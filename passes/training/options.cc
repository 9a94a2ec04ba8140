#include "passes/training/options.h"

#include <algorithm>
#include <cctype>

namespace lockstep::passes {
namespace {

absl::Status CheckNames(std::string_view owner, const std::vector<OptionDef>& options, const AttributeMap& given) {
  for (const auto& [name, value] : given) {
    const auto is_it = [&](const OptionDef& option) { return option.name == name; };
    if (std::any_of(options.begin(), options.end(), is_it)) continue;
    std::vector<std::string> names;
    for (const OptionDef& option : options) names.push_back(option.name);
    return InvalidArgument() << owner << " has no option " << name << "; it has "
                             << (names.empty() ? "none" : Joined(names));
  }
  return absl::OkStatus();
}

absl::Status CheckValue(std::string_view owner, const OptionDef& option, const Attribute& value) {
  if (value.index() != option.example.index()) {
    return InvalidArgument() << owner << ": " << option.name << " is " << AttributeToString(value) << ", expected a "
                             << AttributeTypeName(option.example);
  }
  if (!option.range || option.range->Contains(std::get<double>(value))) return absl::OkStatus();
  return InvalidArgument() << owner << ": " << option.name << " is " << std::get<double>(value) << ", expected "
                           << option.range->ToString();
}

}  // namespace

absl::StatusOr<AttributeMap> CompleteOptions(std::string_view owner, const std::vector<OptionDef>& options,
                                             AttributeMap given) {
  RETURN_IF_ERROR(CheckNames(owner, options, given));
  for (const OptionDef& option : options) {
    if (!given.contains(option.name)) {
      if (option.required) return InvalidArgument() << owner << ": " << option.name << " is missing";
      given.emplace(option.name, option.example);
    }
    Attribute& value = given.find(option.name)->second;
    if (std::holds_alternative<double>(option.example) && std::holds_alternative<int64_t>(value))
      value = static_cast<double>(std::get<int64_t>(value));
    RETURN_IF_ERROR(CheckValue(owner, option, value));
  }
  return given;
}

std::string Joined(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : ", ") + text;
  return joined;
}

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

}  // namespace lockstep::passes
