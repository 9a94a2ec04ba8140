// Random graphs mean the same before and after each pass, and all of them. Two hundred of each in CI; for a longer
// hunt:
//
//   bazel run //test/random_graph:random_graph_test -- --graphs=100000 --first_seed=1000

#include "test/random_graph/random_graph.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "core/op_def.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/localize.h"
#include "passes/pass_table.h"
#include "passes/pipeline.h"
#include "test/random_graph/compare.h"

namespace lockstep {
namespace {

uint64_t num_graphs = 200, first_seed = 0;

constexpr char kLegalizeAll[] = "legalize{without=softmax|log_softmax|sgd}";

RandomProgram ProgramOf(uint64_t seed) {
  RandomGraphOptions options;
  // Small ones first: what fails on those needs less shrinking. Larger extents meet the limits of fusion.
  if (seed % 4 == 0) options.max_nodes = 6;
  if (seed % 8 == 7) options.max_nodes = 60;
  return MakeRandomProgram(seed, options);
}

// The same graph with smaller extents, if that fails too, then without what can be left out.
RandomProgram Smallest(uint64_t seed, const std::function<bool(const RandomProgram&)>& fails) {
  RandomProgram program = ProgramOf(seed);
  for (int64_t extent : {1, 2, 3}) {
    for (uint64_t near = seed; near < seed + 20; ++near) {
      RandomProgram smaller = MakeRandomProgram(near, {.min_nodes = 1, .max_nodes = 10, .max_extent = extent});
      if (fails(smaller)) return Shrink(smaller, fails);
    }
  }
  return Shrink(program, fails);
}

class RandomGraphTest : public testing::TestWithParam<std::string> {};

TEST_P(RandomGraphTest, MeansTheSame) {
  const absl::StatusOr<std::vector<passes::Pass>> passes = passes::PassesFromText(GetParam());
  ASSERT_TRUE(passes.ok()) << passes.status();
  uint64_t num_changed = 0;
  for (uint64_t seed = first_seed; seed < first_seed + num_graphs; ++seed) {
    bool changed = false;
    if (CheckPasses(ProgramOf(seed), *passes, &changed).ok()) {
      num_changed += changed;
      continue;
    }
    const RandomProgram smallest =
        Smallest(seed, [&](const RandomProgram& program) { return !CheckPasses(program, *passes).ok(); });
    const std::string path = WriteReproducer(smallest, GetParam(), "random_graph." + std::to_string(seed));
    FAIL() << "seed " << seed << ", passes " << GetParam() << ": " << CheckPasses(smallest, *passes).message() << "\n"
           << smallest.graph.ToString() << "written with its inputs to " << path;
  }
  // A pass that finds nothing to do is not tested.
  EXPECT_GE(num_changed * 20, num_graphs) << "only " << num_changed << " of " << num_graphs << " graphs were changed";
}

// Every pass of the table that keeps the meaning of a graph on one rank, and many of them in a row.
std::vector<std::string> PassesOfOneRank() {
  std::vector<std::string> names;
  for (const passes::PassEntry& entry : passes::PassTable()) {
    passes::PassOptions options;
    const absl::StatusOr<passes::Pass> pass = entry.make(options);
    LOCKSTEP_CHECK(pass.ok()) << pass.status();
    if (pass->keeps == passes::Keeps::kNothing || pass->keeps == passes::Keeps::kResults) continue;
    if (!pass->needs_mesh) names.push_back(entry.name == "legalize" ? kLegalizeAll : entry.name);
  }
  names.push_back(std::string("simplify,fold-constants,simplify,cse,dce,") + kLegalizeAll +
                  ",cse,simplify,dce,fuse-elementwise,dce");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Passes, RandomGraphTest, testing::ValuesIn(PassesOfOneRank()), [](const auto& info) {
  std::string name;
  for (char c : info.param.substr(0, 14)) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return std::to_string(info.index) + "_" + name;
});

constexpr int64_t kBatch = 6;  // for 2 ranks and for 3
constexpr int64_t kModelRanks = 2;

passes::PipelineOptions OptionsOf(const Mesh& mesh, bool optimize) {
  passes::PipelineOptions options;
  options.mesh = mesh;
  options.buckets = {.max_bytes = 200, .first_bytes = 100};
  options.supports = [](const Node& node) {
    return node.op_name() != "softmax" && node.op_name() != "log_softmax" && node.op_name() != "sgd";
  };
  options.optimize = optimize;
  return options;
}

class RandomGraphOnMeshTest : public testing::TestWithParam<std::tuple<Mesh, bool>> {
 protected:
  // Runs random graphs through the passes; how often each changed a graph.
  std::map<std::string, int> Run(const std::vector<passes::Pass>& passes) {
    std::map<std::string, int> num_changed;
    for (uint64_t seed = first_seed; seed < first_seed + num_graphs; ++seed) {
      const RandomProgram program = MakeRandomProgram(
          seed,
          {.max_nodes = seed % 4 == 0 ? 6 : 24, .batch = kBatch, .model = mesh().has_axis("model") ? kModelRanks : 0});
      if (CheckOnRanks(program, passes, &num_changed).ok()) continue;
      const RandomProgram smallest =
          Shrink(program, [&](const RandomProgram& smaller) { return !CheckOnRanks(smaller, passes).ok(); });
      std::string names;
      for (const passes::Pass& pass : passes) {
        names += (names.empty() ? "" : ",") + pass.name;
        if (pass.name == passes::Distribute({}).name) names += mesh().ToString();
      }
      const std::string path = WriteReproducer(smallest, names, "random_mesh." + std::to_string(seed));
      ADD_FAILURE() << "seed " << seed << ", passes " << names << ": " << CheckOnRanks(smallest, passes).message()
                    << "\n"
                    << smallest.graph.ToString() << "written with its inputs to " << path;
      break;
    }
    return num_changed;
  }
  const Mesh& mesh() const { return std::get<0>(GetParam()); }
  passes::PipelineOptions options() const { return OptionsOf(mesh(), std::get<1>(GetParam())); }
};

TEST_P(RandomGraphOnMeshTest, MeansTheSameAfterEachPassOfThePipeline) {
  const std::vector<passes::Pass> pipeline = passes::MakePipeline(options());
  std::map<std::string, int> num_changed = Run(pipeline);
  // A pass that finds nothing to do is not tested.
  for (const passes::Pass& pass : pipeline) {
    EXPECT_GT(num_changed[pass.name], 0) << pass.name << " changed none of " << num_graphs << " graphs";
  }
}

// Each on what distribute makes, or localize where it comes after that: no other pass took away what is hard.
TEST_P(RandomGraphOnMeshTest, MeansTheSameAfterDistributeAndEachPass) {
  std::vector<passes::Pass> before = {passes::Distribute(options().mesh)};
  for (const passes::Pass& pass : passes::MakePipeline(options())) {
    if (pass.name == before[0].name) continue;
    SCOPED_TRACE(pass.name);
    std::vector<passes::Pass> passes = before;
    passes.push_back(pass);
    std::map<std::string, int> num_changed = Run(passes);
    EXPECT_GT(num_changed[pass.name], 0) << pass.name << " changed none of " << num_graphs << " graphs";
    if (pass.name == passes::Localize().name) before.push_back(pass);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, RandomGraphOnMeshTest,
                         testing::Combine(testing::Values(Mesh({{"data", 2}}), Mesh({{"data", 3}}),
                                                          Mesh({{"data", 2}, {"model", kModelRanks}}),
                                                          Mesh({{"model", kModelRanks}, {"data", 3}})),
                                          testing::Bool()),
                         [](const auto& info) {
                           std::string name;
                           for (const MeshAxis& axis : std::get<0>(info.param).axes())
                             name += axis.name + std::to_string(axis.size);
                           return name + (std::get<1>(info.param) ? "Optimized" : "");
                         });

// The generator reaches the ops that it is meant to.
TEST(RandomGraphsTest, HoldManyOps) {
  std::set<std::string> ops;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const RandomProgram program = ProgramOf(seed);
    for (const Node& node : program.graph.nodes()) ops.insert(node.op_name());
  }
  EXPECT_GE(ops.size(), 42u) << testing::PrintToString(ops);
}

TEST(RandomGraphsTest, AreTheSameForTheSameSeed) {
  EXPECT_EQ(ProgramOf(17).graph.ToString(), ProgramOf(17).graph.ToString());
  EXPECT_NE(ProgramOf(17).graph.ToString(), ProgramOf(18).graph.ToString());
}

// A pass with a bug: it is found, and the graph that shows it is small.
TEST(RandomGraphsTest, FindAndShrinkABug) {
  const passes::Pass broken = {"broken", [](Graph& graph) -> absl::StatusOr<bool> {
                                 for (Node& node : graph.nodes()) {
                                   if (!node.Is("tanh")) continue;
                                   graph.ReplaceUses(node.result(), node.operand(0));
                                   return true;
                                 }
                                 return false;
                               }};
  const auto fails = [&](const RandomProgram& program) { return !CheckPasses(program, {broken}).ok(); };
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const RandomProgram program = ProgramOf(seed);
    if (program.graph.nodes().size() < 10 || !fails(program)) continue;
    const RandomProgram smallest = Shrink(program, fails);
    EXPECT_LE(smallest.graph.nodes().size(), 2u) << smallest.graph.ToString();
    EXPECT_EQ(smallest.graph.results().size(), 1u) << smallest.graph.ToString();
    return;
  }
  FAIL() << "500 random graphs did not show the bug";
}

bool ParseFlag(std::string_view argument, std::string_view name, uint64_t& value) {
  if (!argument.starts_with(name)) return false;
  argument.remove_prefix(name.size());
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), value);
  return error == std::errc() && end == argument.data() + argument.size();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (lockstep::ParseFlag(argv[i], "--graphs=", lockstep::num_graphs)) continue;
    if (lockstep::ParseFlag(argv[i], "--first_seed=", lockstep::first_seed)) continue;
    std::fprintf(stderr, "%s: unknown flag; there are --graphs=N and --first_seed=N\n", argv[i]);
    return 1;
  }
  return RUN_ALL_TESTS();
}
