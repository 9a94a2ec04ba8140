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

TEST(OptionTable, RangesIncludeTheirEnds) {
  const auto is_set = [](std::string_view name, std::string_view text) {
    CompileOptions options;
    options.servers = {.synchronous = false};
    return CompileOptionNamed(name).set(options, text).ok();
  };
  EXPECT_TRUE(is_set("threads", "1") && is_set("threads", "1024"));
  EXPECT_FALSE(is_set("threads", "0") || is_set("threads", "1025"));
  EXPECT_TRUE(is_set("check_every", "0") && !is_set("check_every", "-1"));
  EXPECT_TRUE(is_set("bucket_bytes", "1") && !is_set("bucket_bytes", "0"));
  EXPECT_TRUE(is_set("memory_limit", "1") && !is_set("memory_limit", "0"));
  EXPECT_TRUE(is_set("max_staleness", "0") && !is_set("max_staleness", "-1"));
  EXPECT_TRUE(is_set("bigarray_bound", "1") && !is_set("bigarray_bound", "0"));
  EXPECT_TRUE(is_set("factors", "1e-9") && !is_set("factors", "0"));
}

// Returns the error about options that exclude each other, without the reason; "" if there is none.
std::string ExclusionIn(std::string_view text, std::string_view backend) {
  CompileOptions options;
  const absl::StatusOr<Strategy> strategy = Strategy::Parse(text);
  if (!strategy.ok()) return std::string(strategy.status().message());
  static_cast<Strategy&>(options) = *strategy;
  const std::string message(CheckOptions(Graph("empty"), options, backend).status().message());
  const bool is_exclusion = message.find(" does not go with ") != message.npos;
  return is_exclusion ? message.substr(0, message.find(": ", sizeof("compile: "))) : "";
}

TEST(CheckOptions, NamesBothOptionsThatExcludeEachOther) {
  const std::string servers = "strategy=parameter_server", asynchronous = servers + ",asynchronous=true";
  const struct {
    std::string text, one, other;
    std::string backend = "cpu";
  } exclusions[] = {
      {servers, "strategy=\"parameter_server\"", "backend=\"cuda\"", "cuda"},
      {servers + ",mesh={stage=2}", "strategy=\"parameter_server\"", "stages, mesh={stage=2}"},
      {servers + ",shared_weights=true", "strategy=\"parameter_server\"", "shared_weights=True"},
      {servers + ",shard_optimizer=true", "strategy=\"parameter_server\"", "shard_optimizer=True"},
      {servers + ",wire=bf16", "strategy=\"parameter_server\"", "wire=\"bf16\""},
      {servers + ",buckets={}", "strategy=\"parameter_server\"", "buckets"},
      {servers + ",bucket_bytes=8", "strategy=\"parameter_server\"", "bucket_bytes=8"},
      {servers + ",factors=true", "strategy=\"parameter_server\"", "factors"},
      {asynchronous + ",mesh={data=2}", "asynchronous=True", "mesh={data=2}"},
      {asynchronous + ",split={w={data=0}}", "asynchronous=True", "split or placements"},
      {"shared_weights=true", "shared_weights=True", "backend=\"cuda\"", "cuda"},
      {"shared_weights=true,mesh={stage=2}", "shared_weights=True", "stages, mesh={stage=2}"},
      {"shared_weights=true,wire=int8", "shared_weights=True", "wire=\"int8\""},
      {"shard_optimizer=true,mesh={stage=2}", "shard_optimizer=True", "stages, mesh={stage=2}"},
      {"shard_optimizer=true,wire=bf16", "shard_optimizer=True", "wire=\"bf16\""},
      {"wire=int8,mesh={stage=2}", "wire=\"int8\"", "stages, mesh={stage=2}"},
      {"buckets={},mesh={stage=2}", "buckets", "stages, mesh={stage=2}"},
      {"buckets={}", "buckets", "backend=\"cuda\"", "cuda"},
      {"optimize=false,buckets={}", "optimize=False", "buckets"},
      {"optimize=false,factors=0.5", "optimize=False", "factors"},
      {"mesh={stage=2}", "stages, mesh={stage=2}", "backend=\"cuda\"", "cuda"},
  };
  for (const auto& [text, one, other, backend] : exclusions)
    EXPECT_EQ(ExclusionIn(text, backend), "compile: " + one + " does not go with " + other) << text;
}

TEST(CheckOptions, AcceptsOtherValuesOfTheseOptions) {
  for (const std::string text :
       {"strategy=parameter_server,factors=false", "strategy=parameter_server,mesh={data=2}",
        "strategy=parameter_server,split={w={data=0}}", "wire=bf16,mesh={stage=2}", "wire=int8,mesh={stage=1}",
        "shard_optimizer=true,shared_weights=true", "optimize=false,factors=false", "buckets={},wire=bf16"}) {
    EXPECT_EQ(ExclusionIn(text, "cpu"), "") << text;
  }
  EXPECT_EQ(ExclusionIn("wire=int8,tf32=true,shard_optimizer=false", "cuda"), "");
}

TEST(CheckOptions, ReturnsTheMeshOfAllRanks) {
  Graph graph("g");
  CompileOptions options;
  options.mesh = Mesh({{"data", 3}});
  EXPECT_EQ(*CheckOptions(graph, options, "cpu"), options.mesh);
  graph.set_mesh(Mesh({{"data", 2}}));
  EXPECT_EQ(CheckOptions(graph, options, "cpu").status().message(),
            "graph @g is distributed over the mesh {data=2}, but is to be compiled for {data=3}");
  options.mesh = Mesh();
  EXPECT_EQ(*CheckOptions(graph, options, "cpu"), graph.mesh());
  for (const Mesh& mesh : {graph.mesh(), Mesh({{"stage", 1}, {"data", 2}})}) {
    options.mesh = mesh;
    EXPECT_EQ(*CheckOptions(graph, options, "cpu"), mesh);
  }
  options.servers.emplace();
  EXPECT_EQ(CheckOptions(graph, options, "cpu").status().message(),
            "graph @g: strategy=\"parameter_server\": it is already distributed, over the mesh {data=2}");
}

}  // namespace
}  // namespace lockstep
