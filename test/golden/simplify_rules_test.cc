// Every rule of `simplify` is applied in the golden case of its name, and not in the case <name>_stays. A rule that
// holds only in global types is not applied in the case <name>_of_a_rank, but would be if the types there were global.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "core/printer.h"
#include "passes/simplify/simplify.h"
#include "test/golden/golden_file.h"

namespace lockstep {
namespace {

std::map<std::string, std::string> InputsByName() {
  std::map<std::string, std::string> inputs;
  for (const auto& entry : std::filesystem::directory_iterator("test/golden")) {
    if (!entry.path().filename().string().starts_with("simplify_")) continue;
    std::ifstream file(entry.path());
    std::ostringstream text;
    text << file.rdbuf();
    for (GoldenCase& golden_case : ParseGoldenFile(text.str())) {
      const bool is_new = inputs.emplace(golden_case.name, golden_case.input).second;
      EXPECT_TRUE(is_new) << "two cases are named " << golden_case.name;
    }
  }
  return inputs;
}

std::set<std::string> AppliedRules(const std::string& input, bool in_global_types = false) {
  absl::StatusOr<Graph> graph = ParseGraph(input);
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (in_global_types) graph->set_mesh(Mesh());
  std::set<std::string> applied;
  const auto changed =
      passes::SimplifyGraph(*graph, [&](const passes::SimplifyRule& rule) { applied.emplace(rule.name); });
  EXPECT_TRUE(changed.ok()) << changed.status();
  return applied;
}

TEST(SimplifyRulesTest, EachHasItsCases) {
  const std::map<std::string, std::string> inputs = InputsByName();
  ASSERT_FALSE(passes::SimplifyRules().empty());
  for (const passes::SimplifyRule& rule : passes::SimplifyRules()) {
    const std::string& name = rule.name;
    ASSERT_TRUE(inputs.contains(name)) << "there is no golden case @" << name;
    ASSERT_TRUE(inputs.contains(name + "_stays")) << "there is no golden case @" << name << "_stays";
    EXPECT_TRUE(AppliedRules(inputs.at(name)).contains(name)) << name;
    EXPECT_FALSE(AppliedRules(inputs.at(name + "_stays")).contains(name)) << name;
  }
}

TEST(SimplifyRulesTest, ThoseOfGlobalTypesStayAwayFromLocalGraphs) {
  int num_rules = 0;
  const std::map<std::string, std::string> inputs = InputsByName();
  for (const passes::SimplifyRule& rule : passes::SimplifyRules()) {
    const auto of_a_rank = inputs.find(rule.name + "_of_a_rank");
    EXPECT_EQ(rule.global_types_only, of_a_rank != inputs.end()) << rule.name;
    if (of_a_rank == inputs.end()) continue;
    EXPECT_TRUE(of_a_rank->second.starts_with("mesh {data=2}\nlocal graph")) << rule.name;
    EXPECT_FALSE(AppliedRules(of_a_rank->second).contains(rule.name)) << rule.name;
    EXPECT_TRUE(AppliedRules(of_a_rank->second, /*in_global_types=*/true).contains(rule.name)) << rule.name;
    ++num_rules;
  }
  EXPECT_GE(num_rules, 18);
}

TEST(SimplifyRulesTest, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const passes::SimplifyRule& rule : passes::SimplifyRules())
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
}

}  // namespace
}  // namespace lockstep
