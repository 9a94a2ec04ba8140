// The options of optimizers and losses, which users choose by name. An option has a default, must be given, or may be
// absent, and defines the values that it accepts. The options are in the blocks of optimizers and losses. Any thread.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/attributes.h"
#include "core/op_def.h"
#include "core/status.h"

namespace lockstep::passes {

// An option: a bool, an int, a float, a text, or a list of floats, which is a tensor f64[n].
struct OptionDef {
  enum class Given { kMust, kMay, kHasDefault };  // kMay: absent from the complete options unless given

  std::string name;
  Attribute example;  // a value of the option's type; the default if it has one
  Given given = Given::kHasDefault;
  std::string doc;
  std::optional<NumberRange> range = {};  // of a number, or of each number of a list
  std::vector<std::string> choices = {};  // the allowed values of a text; empty: any
  bool may_be_operand = false;            // a number that can be a setting (OpDef::OrOperand)

  static OptionDef Of(const OpDef::AttributeDef& attribute);  // bool, int, float or text
  static OptionDef Flag(std::string name, bool default_value, std::string doc);
  static OptionDef Float(std::string name, double default_value, NumberRange range, std::string doc);
  static OptionDef Text(std::string name, std::vector<std::string> choices, std::string doc);  // default: the first
  static OptionDef MaybeText(std::string name, std::string doc);
  static OptionDef Int(std::string name, int64_t default_value, std::string doc);
  static OptionDef MaybeInt(std::string name, std::string doc);
  static OptionDef MaybeFloats(std::string name, NumberRange range, std::string doc);

  bool is_list() const { return std::holds_alternative<Tensor>(example); }
  std::string TypeName() const;  // "bool", "int", "float", "string" or "list of floats"
};

// Returns `given` with the defaults filled in. Converts ints to floats for options that are floats. Returns an error if
// an option does not exist (it lists the existing ones), is missing, has another type, or is out of its range. Errors
// start with `owner`, as in "SGD: learning_rate is -1, expected …".
absl::StatusOr<AttributeMap> CompleteOptions(std::string_view owner, const std::vector<OptionDef>& options,
                                             AttributeMap given);

// Returns the names in `texts` for messages: "a, b, c".
std::string Joined(const std::vector<std::string>& texts);
// Returns true if two names are equal, ignoring case.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

}  // namespace lockstep::passes
