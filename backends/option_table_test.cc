#include "backends/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "passes/distribute/gather_factors.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(OptionTable, HasEachNameOnceWithItsDocumentation) {
  std::set<std::string> names;
  for (const CompileOption& option : CompileOptionTable()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_GT(option.doc.size(), 40) << option.name;
    EXPECT_FALSE(option.type.empty() || option.default_value.empty()) << option.name;
  }
  EXPECT_TRUE(names.contains("mesh") && names.contains("threads"));
}

TEST(OptionTable, DefaultsInPythonAreThoseOfTheFields) {
  const CompileOptions defaults;
  for (const CompileOption& option : CompileOptionTable()) {
    if (option.default_value == "None") continue;  // the documentation has the number, below
    std::string text = option.default_value;
    if (text == "True" || text == "False") text = text == "True" ? "true" : "false";
    ASSERT_TRUE(FromText(std::string(text), text).ok());  // removes quotes
    CompileOptions options;
    ASSERT_EQ(option.set(options, text), absl::OkStatus()) << option.name;
    EXPECT_EQ(option.text(options), option.text(defaults)) << option.name;
  }
  const auto none_is = [](const std::string& name, auto number) {
    EXPECT_THAT(CompileOptionNamed(name).doc, HasSubstr("None: " + ToText(number))) << name;
  };
  none_is("bucket_bytes", passes::MergeOptions().max_bytes / (1 << 20));
  none_is("bigarray_bound", passes::ServerOptions().bigarray_bound);
  none_is("factors", passes::kOperationsPerByte);
}

TEST(Strategy, PrintsWhatIsNotTheDefault) {
  EXPECT_EQ(Strategy().ToString(), "");
  Strategy strategy;
  strategy.mesh = Mesh({{"data", 2}, {"model", 2}});
  strategy.placements = {{"fc1.weight", {{"model", 0}}}};
  strategy.shard_optimizer = true;
  strategy.wire = "bf16";
  EXPECT_EQ(strategy.ToString(), "mesh={data=2,model=2},split={fc1.weight={model=0}},shard_optimizer=true,wire=bf16");
}

TEST(Strategy, IsWhatItsTextSays) {
  Strategy every;
  every.mesh = Mesh({{"data", 2}});
  every.placements = {{"a,b", {}}, {"w", {{"data", 1}}}};
  every.shard_optimizer = every.shared_weights = every.replicated = every.tf32 = true;
  every.servers = {.synchronous = false, .max_staleness = 3, .bigarray_bound = 9};
  every.bucket_bytes = 64;
  every.measured = {.gradients = {{"g", {1, 2, 3}}}, .costs = {{"data", passes::CostTable({{16, 20}, {32, 36}})}}};
  every.wire = "int8";
  every.factors = std::numeric_limits<double>::infinity();
  every.optimize = false;
  const absl::StatusOr<Strategy> parsed = Strategy::Parse(every.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, every) << parsed->ToString();
  EXPECT_THAT(every.ToString(), HasSubstr("buckets={gradients={g={ready=1,needed=2,update=3}},"
                                          "costs={data={16=20,32=36}}}"));
  for (const std::optional<double> factors : {std::optional<double>(), std::optional(0.0), std::optional(0.1)}) {
    every.factors = factors;
    EXPECT_EQ(*Strategy::Parse(every.ToString()), every) << every.ToString();
  }
  EXPECT_FALSE(*parsed == every);
}

TEST(Strategy, ErrorsNameTheOption) {
  const auto error_of = [](std::string_view text) { return std::string(Strategy::Parse(text).status().message()); };
  EXPECT_THAT(error_of("wier=bf16"), HasSubstr("there is no option 'wier'; is wire meant? There are asynchronous,"));
  EXPECT_EQ(error_of("wire=f16"), "wire is 'f16', expected bf16 or int8");
  EXPECT_EQ(error_of("threads=2"), "threads concerns one rank and its machine, and is not part of a strategy");
  EXPECT_EQ(error_of("asynchronous=true"), "asynchronous requires strategy=\"parameter_server\"");
  for (const CompileOption& option : CompileOptionTable())
    EXPECT_THAT(error_of(option.name + "=?"), StartsWith(option.name + " ")) << option.name;
}

}  // namespace
}  // namespace lockstep
