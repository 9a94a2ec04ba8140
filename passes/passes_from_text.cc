// PassesFromText: the passes of a list.

#include <algorithm>

#include "passes/pass_table.h"

namespace lockstep::passes {
namespace {

absl::StatusOr<Pass> PassFromText(std::string_view text) {
  ASSIGN_OR_RETURN(const auto parts, SplitBraces(text));
  const auto [name, options] = parts;
  const std::vector<PassEntry>& table = PassTable();
  const auto entry = std::find_if(table.begin(), table.end(), [name = name](const auto& e) { return e.name == name; });
  if (entry != table.end()) {
    const absl::StatusOr<std::vector<NamedText>> texts = ParseNamedTexts(options.value_or(""));
    absl::StatusOr<Pass> pass = texts.ok() ? entry->make(*texts) : absl::StatusOr<Pass>(texts.status());
    if (!pass.ok()) return Annotate(pass.status(), "pass " + entry->name);
    return pass;
  }
  std::vector<std::string> names;
  for (const PassEntry& each : table) names.push_back(each.name);
  return NotFound() << "there is no pass '" << name << "'" << SuggestName(name, names);
}

}  // namespace

absl::StatusOr<std::vector<Pass>> PassesFromText(std::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view> parts, SplitText(text, ','));
  std::vector<Pass> passes;
  for (const std::string_view part : parts) {
    ASSIGN_OR_RETURN(passes.emplace_back(), PassFromText(part));
  }
  return passes;
}

}  // namespace lockstep::passes
