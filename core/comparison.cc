#include "core/comparison.h"

#include <iterator>

namespace lockstep {
namespace {

constexpr std::string_view kNames[] = {"eq", "ne", "lt", "le", "gt", "ge"};

}  // namespace

std::string_view ComparisonName(Comparison comparison) { return kNames[static_cast<size_t>(comparison)]; }

std::optional<Comparison> ComparisonFromName(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<Comparison>(i);
  }
  return std::nullopt;
}

}  // namespace lockstep
