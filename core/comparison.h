// The comparisons of the op `compare`: the enum of its attribute `direction`. Plain values; any thread.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep {

enum class Comparison : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };

// The name in the text form: "eq", "ne", "lt", "le", "gt", "ge".
std::string_view ComparisonName(Comparison comparison);
std::optional<Comparison> ComparisonFromName(std::string_view name);

}  // namespace lockstep
