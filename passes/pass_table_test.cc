#include "passes/pass_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "passes/pipeline.h"

namespace lockstep::passes {
namespace {

using testing::Contains;
using testing::HasSubstr;

std::vector<std::string> NamesOf(const std::vector<Pass>& passes) {
  std::vector<std::string> names;
  for (const Pass& pass : passes) {
    if (std::find(names.begin(), names.end(), pass.name) == names.end()) names.push_back(pass.name);
  }
  return names;
}

TEST(PassTable, EndsWithThePassesOfThePipelineInItsOrder) {
  std::vector<std::string> table;
  for (const PassEntry& entry : PassTable()) table.push_back(entry.name);
  const std::vector<std::string> pipeline = NamesOf(MakePipeline({}));
  ASSERT_GT(table.size(), pipeline.size());
  EXPECT_EQ(std::vector<std::string>(table.end() - static_cast<std::ptrdiff_t>(pipeline.size()), table.end()), pipeline)
      << "the row of a pass that is not in the pipeline belongs before the rows of those that are";
  for (const std::string& name : NamesOf(MakePipeline({.optimize = false}))) EXPECT_THAT(pipeline, Contains(name));
}

TEST(PassTable, ARowIsDescribedInOneLine) {
  for (const PassEntry& entry : PassTable()) {
    EXPECT_FALSE(entry.doc.empty()) << entry.name;
    EXPECT_EQ((entry.doc + entry.options).find('\n'), std::string::npos) << entry.name;
    EXPECT_EQ(entry.make({})->name, entry.name);
  }
}

TEST(PassesFromText, MakesThePassesOfTheList) {
  EXPECT_THAT(NamesOf(*PassesFromText("simplify, cse,distribute{data=4},legalize{without=softmax|matmul}")),
              testing::ElementsAre("simplify", "cse", "distribute", "legalize"));
  EXPECT_TRUE(PassesFromText(" ")->empty());
}

TEST(PassesFromText, AnErrorNamesThePassOrTheOption) {
  const auto error_of = [](std::string_view text) { return std::string(PassesFromText(text).status().message()); };
  EXPECT_THAT(error_of("simplify,csee"), HasSubstr("there is no pass 'csee'; is cse meant? There are training-mode, "));
  EXPECT_EQ(error_of("fold-constants{max_element=1}"),
            "pass fold-constants: there is no option 'max_element'; is max_elements meant? There are max_elements");
  EXPECT_EQ(error_of("fold-constants{max_elements=x}"),
            "pass fold-constants: max_elements is 'x', expected a whole number");
  EXPECT_EQ(error_of("cse{x=1}"), "pass cse: there is no option 'x'; there are none");
  EXPECT_EQ(error_of("distribute{data=0}"), "pass distribute: mesh axis data has size 0, expected at least 1");
  EXPECT_EQ(error_of("training-mode{dropout=true}"), "pass training-mode: dropout is 'true', expected on or off");
  EXPECT_EQ(error_of("cse{a}b"), "'cse{a}b' has no closing brace at its end");
}

}  // namespace
}  // namespace lockstep::passes
