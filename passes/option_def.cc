#include "passes/option_def.h"

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

absl::Status CheckNumber(std::string_view owner, const OptionDef& option, double value, const std::string& name) {
  if (!option.range || option.range->Contains(value)) return absl::OkStatus();
  return InvalidArgument() << owner << ": " << name << " is " << value << ", expected " << option.range->ToString();
}

absl::Status CheckList(std::string_view owner, const OptionDef& option, const Tensor& list) {
  if (list.dtype() != DType::kF64 || list.shape().rank() != 1) {
    return InvalidArgument() << owner << ": " << option.name << " is " << list.type() << ", expected a "
                             << option.TypeName();
  }
  for (int64_t i = 0; i < list.num_elements(); ++i)
    RETURN_IF_ERROR(CheckNumber(owner, option, list.At(i), option.name + "[" + std::to_string(i) + "]"));
  return absl::OkStatus();
}

absl::Status CheckValue(std::string_view owner, const OptionDef& option, const Attribute& value) {
  if (value.index() != option.example.index()) {
    return InvalidArgument() << owner << ": " << option.name << " is " << AttributeToString(value) << ", expected a"
                             << (option.TypeName() == "int" ? "n " : " ") << option.TypeName();
  }
  if (const Tensor* list = std::get_if<Tensor>(&value)) return CheckList(owner, option, *list);
  if (const double* number = std::get_if<double>(&value)) return CheckNumber(owner, option, *number, option.name);
  if (const int64_t* number = std::get_if<int64_t>(&value))
    return CheckNumber(owner, option, static_cast<double>(*number), option.name);
  const std::string* const text = std::get_if<std::string>(&value);
  const std::vector<std::string>& choices = option.choices;
  if (!text || choices.empty() || std::find(choices.begin(), choices.end(), *text) != choices.end())
    return absl::OkStatus();
  return InvalidArgument() << owner << ": " << option.name << " is '" << *text << "', expected one of "
                           << Joined(choices);
}

}  // namespace

OptionDef OptionDef::Of(const OpDef::AttributeDef& attribute) {
  const Given given = attribute.required ? Given::kMust : Given::kHasDefault;
  OptionDef option{attribute.name, attribute.example, given, attribute.doc, attribute.range, attribute.choices};
  option.may_be_operand = attribute.may_be_operand;
  return option;
}

OptionDef OptionDef::Flag(std::string name, bool default_value, std::string doc) {
  return {std::move(name), default_value, Given::kHasDefault, std::move(doc)};
}

OptionDef OptionDef::Float(std::string name, double default_value, NumberRange range, std::string doc) {
  return {std::move(name), default_value, Given::kHasDefault, std::move(doc), range};
}

OptionDef OptionDef::Text(std::string name, std::vector<std::string> choices, std::string doc) {
  Attribute first = choices.front();
  return {std::move(name), std::move(first), Given::kHasDefault, std::move(doc), {}, std::move(choices)};
}

OptionDef OptionDef::MaybeText(std::string name, std::string doc) {
  return {std::move(name), std::string(), Given::kMay, std::move(doc)};
}

OptionDef OptionDef::Int(std::string name, int64_t default_value, std::string doc) {
  return {std::move(name), default_value, Given::kHasDefault, std::move(doc)};
}

OptionDef OptionDef::MaybeInt(std::string name, std::string doc) {
  return {std::move(name), int64_t{0}, Given::kMay, std::move(doc)};
}

OptionDef OptionDef::MaybeFloats(std::string name, NumberRange range, std::string doc) {
  return {std::move(name), Tensor(TensorType{DType::kF64, Shape({0})}), Given::kMay, std::move(doc), range};
}

std::string OptionDef::TypeName() const {
  return is_list() ? "list of floats" : std::string(AttributeTypeName(example));
}

absl::StatusOr<AttributeMap> CompleteOptions(std::string_view owner, const std::vector<OptionDef>& options,
                                             AttributeMap given) {
  RETURN_IF_ERROR(CheckNames(owner, options, given));
  for (const OptionDef& option : options) {
    if (!given.contains(option.name)) {
      if (option.given == OptionDef::Given::kMay) continue;
      if (option.given == OptionDef::Given::kMust)
        return InvalidArgument() << owner << ": " << option.name << " is missing";
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
