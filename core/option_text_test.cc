#include "core/option_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;
using testing::Pair;

struct Recipe {
  bool shares = false;
  int64_t bytes = 7;
  double rate = 0.5;
  std::string dtype;
  std::optional<int64_t> limit;
  Mesh mesh;
  Named<std::map<std::string, int64_t>> split;
  std::vector<std::string> names;
};

std::vector<OptionOf<Recipe>> OptionsOfRecipe() {
  return {Bind("shares", &Recipe::shares), Bind("bytes", &Recipe::bytes), Bind("rate", &Recipe::rate),
          Bind("dtype", &Recipe::dtype),   Bind("limit", &Recipe::limit), Bind("mesh", &Recipe::mesh),
          Bind("split", &Recipe::split),   Bind("names", &Recipe::names)};
}

absl::StatusOr<Recipe> RecipeFrom(std::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<NamedText> texts, ParseNamedTexts(text));
  Recipe recipe;
  RETURN_IF_ERROR(SetOptions(OptionsOfRecipe(), texts, recipe));
  return recipe;
}

std::string ErrorOf(std::string_view text) { return std::string(RecipeFrom(text).status().message()); }

TEST(OptionText, SplitsOutsideOfBracesAndQuotes) {
  EXPECT_THAT(*SplitText(" a{x=1, y=2} , b,\"c,d\" ", ','), ElementsAre("a{x=1, y=2}", "b", "\"c,d\""));
  EXPECT_THAT(*SplitText("a,,", ','), ElementsAre("a", "", ""));
  EXPECT_TRUE(SplitText(" ", ',')->empty());
  EXPECT_THAT(SplitText("a{b", ',').status().message(), HasSubstr("no closing brace"));
  EXPECT_THAT(SplitText("a}b", ',').status().message(), HasSubstr("no opening brace"));
  EXPECT_THAT(SplitText("\"a", ',').status().message(), HasSubstr("no closing quote"));
}

TEST(OptionText, ReadsNamesAndValues) {
  EXPECT_THAT(*ParseNamedTexts(R"(a = 1,"b=,c"={d={e=2}},f=)"),
              ElementsAre(Pair("a", "1"), Pair("b=,c", "{d={e=2}}"), Pair("f", "")));
  EXPECT_THAT(*ParseNamedTexts("\ta\n=\n1\t\n"), ElementsAre(Pair("a", "1")));
  EXPECT_EQ(ParseNamedTexts("a=1,b").status().message(), "'b' is not of the form name=value");
  EXPECT_EQ(ParseNamedTexts("a=1,a=2").status().message(), "'a' is given twice");
}

TEST(OptionText, SplitsANameFromItsBraces) {
  EXPECT_THAT(*SplitBraces(" a {x=1,y={}} "), Pair("a", Optional(std::string_view("x=1,y={}"))));
  EXPECT_THAT(*SplitBraces("a{}"), Pair("a", Optional(std::string_view())));
  EXPECT_THAT(*SplitBraces("a"), Pair("a", std::nullopt));
  EXPECT_EQ(SplitBraces("a{x}b").status().message(), "'a{x}b' has no closing brace at its end");
}

TEST(OptionText, DescribesDefaultsAndMeanings) {
  EXPECT_EQ(DescribeOptions<Recipe>({Bind("bytes", &Recipe::bytes, "in all"), Bind("limit", &Recipe::limit)}),
            "bytes=7 (in all), limit=");
}

TEST(OptionText, PrintsWhatIsNotTheDefaultAndReadsItAgain) {
  EXPECT_EQ(OptionsToText(OptionsOfRecipe(), Recipe()), "");
  const std::string text =
      R"(shares=true,bytes=-3,rate=0.1,dtype=bf16,limit=5,mesh={model=4,data=2},split={fc*.w={model=0},"a,{b"={}},names=a|b)";
  const absl::StatusOr<Recipe> recipe = RecipeFrom(text);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_TRUE(recipe->shares);
  EXPECT_EQ(recipe->bytes, -3);
  EXPECT_EQ(recipe->mesh, Mesh({{"model", 4}, {"data", 2}}));
  EXPECT_THAT(recipe->split, ElementsAre(Pair("fc*.w", ElementsAre(Pair("model", 0))), Pair("a,{b", ElementsAre())));
  EXPECT_EQ(OptionsToText(OptionsOfRecipe(), *recipe), text);
  EXPECT_EQ(RecipeFrom("rate=inf")->rate, std::numeric_limits<double>::infinity());
}

TEST(OptionText, KeepsAnyText) {
  for (const std::string text : {"", "a b", " a", "a\t", "a\n", "\"", "\\", "{", "}", "line\nline", "=", ",", "|"}) {
    const absl::StatusOr<Recipe> recipe = RecipeFrom("dtype=" + ToText(text) + ",names=a|" + ToText(text));
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    EXPECT_EQ(recipe->dtype, text);
    EXPECT_THAT(recipe->names, ElementsAre("a", text));
    EXPECT_THAT(RecipeFrom("names=" + ToText(std::vector<std::string>{text}))->names, ElementsAre(text));
    Named<int64_t> named;
    ASSERT_TRUE(FromText(ToText(Named<int64_t>{{text, 5}}), named).ok()) << text;
    EXPECT_THAT(named, ElementsAre(Pair(text, 5)));
  }
}

TEST(OptionText, KeepsEachBitOfANumber) {
  for (const double number : {0.1, 1.0 / 3, 123456789.0, 1e-300, 1e22, std::nextafter(1.0, 2.0), -2.5}) {
    double parsed = 0;
    ASSERT_TRUE(FromText(ToText(number), parsed).ok()) << ToText(number);
    EXPECT_EQ(parsed, number) << ToText(number);
  }
}

TEST(OptionText, DescribesTheDefaultsThatItIsGiven) {
  const std::vector<OptionOf<Recipe>> options = {Bind("bytes", &Recipe::bytes, "of a bucket"),
                                                 Bind("rate", &Recipe::rate)};
  EXPECT_EQ(DescribeOptions(options), "bytes=7 (of a bucket), rate=0.5");
  Recipe defaults;
  defaults.bytes = 9;
  EXPECT_EQ(DescribeOptions(options, defaults), "bytes=9 (of a bucket), rate=0.5");
}

TEST(OptionText, ErrorsNameTheOption) {
  EXPECT_EQ(ErrorOf("bytes=x"), "bytes is 'x', expected a whole number");
  EXPECT_EQ(ErrorOf("bytes=9223372036854775808"), "bytes is '9223372036854775808', expected a whole number");
  EXPECT_EQ(ErrorOf("rate=1.5x"), "rate is '1.5x', expected a number");
  EXPECT_EQ(ErrorOf("shares=True"), "shares is 'True', expected true or false");
  EXPECT_EQ(ErrorOf("mesh=2"), "mesh is '2', expected names and values in braces");
  EXPECT_EQ(ErrorOf("mesh={data=0}"), "mesh axis data has size 0, expected at least 1");
  const std::string expected = "expected letters, digits and _, not beginning with a digit";
  for (const std::string name : {"1st", "a-b", ""})
    EXPECT_EQ(ErrorOf("mesh={\"" + name + "\"=2}"), "mesh: the name of an axis is '" + name + "', " + expected);
  EXPECT_EQ(ErrorOf("mesh={a=256,_2=256}"), "mesh: axis _2 has size 256, which makes too many ranks");
  EXPECT_EQ(ErrorOf("mesh={a=4,b=4611686018427387904}"),
            "mesh: axis b has size 4611686018427387904, which makes too many ranks");
  EXPECT_EQ(ErrorOf("mesh=of{data=2}"), "mesh is 'of{data=2}', expected names and values in braces");
  EXPECT_EQ(ErrorOf("mesh={data=2}x"), "mesh is '{data=2}x', expected names and values in braces");
  EXPECT_EQ(ErrorOf("split={w={model=x}}"), "split: w: model is 'x', expected a whole number");
  EXPECT_EQ(ErrorOf("split={w={model=0},w={}}"), "split: 'w' is given twice");
  EXPECT_EQ(
      ErrorOf("byte=1"),
      "there is no option 'byte'; is bytes meant? There are bytes, dtype, limit, mesh, names, rate, shares, split");
  EXPECT_THAT(ErrorOf("precision=1"), HasSubstr("there is no option 'precision'; there are bytes"));
  EXPECT_EQ(SuggestName("a", {}), "; there are none");
  EXPECT_THAT(ErrorOf("bytesize=1"), HasSubstr("there is no option 'bytesize'; there are"));  // three letters more
  EXPECT_THAT(ErrorOf("rta=1"), HasSubstr("there is no option 'rta'; there are"));            // a short name
  EXPECT_THAT(ErrorOf("dtpye=1"), HasSubstr("there is no option 'dtpye'; is dtype meant?"));
  EXPECT_EQ(CheckOptionNames({{"x", ""}}, {"far", "far"}).message(), "there is no option 'x'; there are far");
}

TEST(OptionText, ReadsNumbersThatItPrints) {
  std::vector<int64_t> numbers = {1};
  ASSERT_TRUE(FromText("5|3", numbers).ok());
  EXPECT_THAT(numbers, ElementsAre(5, 3));
  EXPECT_EQ(ToText(numbers), "5|3");
  EXPECT_FALSE(FromText("5|x", numbers).ok());
}

TEST(OptionText, AListReplacesTheOneBefore) {
  std::vector<std::string> names = {"before"};
  ASSERT_TRUE(FromText("a|b", names).ok());
  EXPECT_THAT(names, ElementsAre("a", "b"));
}

}  // namespace
}  // namespace lockstep
