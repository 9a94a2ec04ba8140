// The options of what users choose by name, an optimizer or a loss: each has a default or must be given, and may have a
// range. Shared by the two; what they accept is in their blocks. Any thread.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/op_def.h"
#include "core/status.h"

namespace lockstep::passes {

using OptionDef = OpDef::AttributeDef;

// `given` with the defaults filled in. Errors start with `owner`, as in "SGD: learning_rate is -1, expected …": an
// option that there is not, with those that there are; one that is missing, of another type, or out of its range. Whole
// numbers are floats where floats are due.
absl::StatusOr<AttributeMap> CompleteOptions(std::string_view owner, const std::vector<OptionDef>& options,
                                             AttributeMap given);

// The names in `texts`, for messages: "a, b, c".
std::string Joined(const std::vector<std::string>& texts);
// Whether two names are equal but for the case of letters.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

}  // namespace lockstep::passes
