#include "backends/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <string>

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

TEST(OptionTable, DefaultsAreThoseOfTheFields) {
  std::map<std::string, std::string> defaults;
  for (const CompileOption& option : CompileOptionTable()) defaults[option.name] = option.default_value;
  EXPECT_EQ(defaults["check_every"], "512");
  EXPECT_EQ(defaults["strategy"], "\"all_reduce\"");
  EXPECT_EQ(defaults["isa"], "\"\"");
  EXPECT_EQ(defaults["optimize"], "True");
  EXPECT_EQ(defaults["asynchronous"], "False");
  for (const std::string name : {"mesh", "factors", "threads", "max_staleness"}) EXPECT_EQ(defaults[name], "None");
}

TEST(OptionTable, OptionsOfAMachineAreNotOfTheStrategy) {
  std::set<std::string> of_machine;
  for (const CompileOption& option : CompileOptionTable()) {
    if (!option.is_of_strategy) of_machine.insert(option.name);
  }
  EXPECT_EQ(of_machine,
            (std::set<std::string>{"check_every", "isa", "memory_limit", "profile", "threads", "tune", "verify"}))
      << "add an option here only if ranks may differ in it, or if the executor compares it";
}

// None stands for these values, which the documentation names.
TEST(OptionTable, TheDocumentationOfNoneIsCurrent) {
  const auto doc_of = [](std::string_view name) { return CompileOptionNamed(name).doc; };
  EXPECT_THAT(doc_of("bigarray_bound"), HasSubstr("None: " + ToText(passes::ServerOptions().bigarray_bound) + ". "));
  EXPECT_THAT(doc_of("factors"), HasSubstr("None: " + ToText(passes::kOperationsPerByte) + " if ranks"));
  EXPECT_THAT(doc_of("bucket_bytes"), HasSubstr("None: " + ToText(passes::MergeOptions().max_bytes >> 20) + " MiB."));
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
  every.virtual_ranks = 8;
  every.shares = {96, 32};
  every.servers = {.synchronous = false, .max_staleness = 3, .bigarray_bound = 9};
  every.bucket_bytes = 64;
  every.measured = {.gradients = {{"g", {1, 2, 3}}}, .costs = {{"data", passes::CostTable({{16, 20}, {32, 36}})}}};
  every.wire = "int8";
  every.factors = std::numeric_limits<double>::infinity();
  every.optimize = false;
  every.check_numerics = true;
  every.verify_hardware = 512;
  CompileOptions set, none;
  static_cast<Strategy&>(set) = every;
  for (const CompileOption& option : CompileOptionTable()) {
    if (!option.is_of_strategy || option.name == "placements") continue;  // printed as `split`
    EXPECT_NE(option.text(set), option.text(none)) << "give `every` a value of " << option.name;
  }
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

TEST(Strategy, SharedWeightsIncludeShardedOptimizers) {
  EXPECT_TRUE(Strategy::Parse("shared_weights=true")->shard_optimizer);
  EXPECT_TRUE(Strategy::Parse("shard_optimizer=true,shared_weights=false")->shard_optimizer);
  EXPECT_FALSE(Strategy::Parse("shared_weights=false")->shard_optimizer);
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

TEST(OptionTable, RangesIncludeTheirEnds) {
  const auto is_set = [](std::string_view name, std::string_view text) {
    CompileOptions options;
    options.servers = {.synchronous = false};
    return CompileOptionNamed(name).set(options, text).ok();
  };
  EXPECT_TRUE(is_set("threads", "1") && is_set("threads", "1024"));
  EXPECT_FALSE(is_set("threads", "0") || is_set("threads", "1025"));
  EXPECT_TRUE(is_set("check_every", "0") && !is_set("check_every", "-1"));
  EXPECT_TRUE(is_set("verify_hardware", "0") && !is_set("verify_hardware", "-1"));
  EXPECT_TRUE(is_set("bucket_bytes", "1") && !is_set("bucket_bytes", "0"));
  EXPECT_TRUE(is_set("memory_limit", "1") && !is_set("memory_limit", "0"));
  EXPECT_TRUE(is_set("max_staleness", "0") && !is_set("max_staleness", "-1"));
  EXPECT_TRUE(is_set("bigarray_bound", "1") && !is_set("bigarray_bound", "0"));
  EXPECT_TRUE(is_set("factors", "1e-9") && !is_set("factors", "0"));
}

}  // namespace
}  // namespace lockstep
