#include "backends/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(OptionTable, HasEachNameOnceWithItsDocumentation) {
  std::set<std::string> names;
  for (const CompileOption& option : CompileOptionTable()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_GT(option.doc.size(), 40) << option.name;
    EXPECT_FALSE(option.type.empty() || option.default_value.empty()) << option.name;
  }
  EXPECT_TRUE(names.contains("mesh") && names.contains("threads"));
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
}

}  // namespace
}  // namespace lockstep
