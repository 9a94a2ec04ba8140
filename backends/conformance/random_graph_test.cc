// Runs random graphs through the whole pipeline and on the backend, and compares with the interpreter on the original
// graph. The backend must have kernels for the passes' output, and the results must agree.

#include "test/random_graph/random_graph.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "backends/backend.h"
#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/op_def.h"
#include "core/printer.h"
#include "test/meaning/meaning.h"
#include "test/random_graph/compare.h"

namespace lockstep {
namespace {

// Compiles the one-rank program for the ranks of options.mesh and runs it. The placements of `local` say which part of
// each input and result a rank holds.
absl::StatusOr<std::vector<std::vector<Tensor>>> RunOnRanks(const Graph& program, const Graph& local,
                                                            const Backend& backend,
                                                            const std::vector<std::vector<Tensor>>& inputs,
                                                            const CompileOptions& options) {
  std::vector<std::vector<Tensor>> results(inputs.size());
  RETURN_IF_ERROR(ForEachRank(static_cast<int>(inputs.size()), [&](Communicator& communicator) -> absl::Status {
    const auto rank = static_cast<size_t>(communicator.rank());
    ASSIGN_OR_RETURN(const RankDevice opened, backend.OpenDevice(communicator));
    ASSIGN_OR_RETURN(Executable executable, Compile(program.Clone(), backend, options));
    ASSIGN_OR_RETURN(const auto executor,
                     Executor::Load(std::move(executable), opened.communicator, opened.device.get()));
    ASSIGN_OR_RETURN(results[rank], RunOnce(*executor, local, inputs[rank]));
    return absl::OkStatus();
  }));
  return results;
}

// The whole values of the ranks' results.
std::vector<Tensor> Joined(const Graph& local, const std::vector<std::vector<Tensor>>& found,
                           const std::vector<Tensor>& types) {
  std::vector<Tensor> joined;
  for (size_t i = 0; i < types.size(); ++i) {
    if (!local.is_local()) {
      joined.push_back(found[0][i]);
      continue;
    }
    Tensor& whole = joined.emplace_back(types[i].type());
    for (size_t rank = 0; rank < found.size(); ++rank) {
      PutLocalPart(found[rank][i].bytes(), local.results()[i].placements, local.mesh(), static_cast<int64_t>(rank),
                   whole.type(), whole.mutable_bytes());
    }
  }
  return joined;
}

class RandomGraphOnBackend : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomGraphOnBackend, AgreesWithTheInterpreter) {
  int ran = 0;
  for (uint64_t seed = GetParam(); seed < GetParam() + NumCases(25); ++seed) {
    const RandomProgram program = MakeRandomProgram(seed, {.max_extent = 6});
    const auto results = RunInProcess(program.graph, TestedBackend(), {program.inputs}, {});
    if (LacksKernel(results.status())) continue;
    ++ran;
    ASSERT_TRUE(results.ok()) << "seed " << seed << ": " << results.status() << "\n" << program.graph.ToString();
    const absl::Status status = CheckResults(program, (*results)[0]);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status << "\n" << program.graph.ToString();
  }
  if (TestsEverything()) {
    EXPECT_GT(ran, 5);
  }
}

// Two and three ranks, and meshes of two axes, each rank with its part, optimized and not, must give the results of one
// rank.
TEST_P(RandomGraphOnBackend, OfSeveralRanksAgreesWithOne) {
  std::set<std::string> along;  // the axes along which there were collectives
  for (uint64_t seed = GetParam(); seed < GetParam() + NumCases(10); ++seed) {
    for (const Mesh& mesh : {Mesh({{"data", 2}}), Mesh({{"data", 3}}), Mesh({{"data", 2}, {"model", 2}}),
                             Mesh({{"model", 2}, {"data", 3}})}) {
      const bool has_model = mesh.has_axis("model");
      const RandomProgram program =
          MakeRandomProgram(seed, {.batch = 6, .model = has_model ? 2 : 0, .data = *mesh.axis_size("data")});
      const auto expected = InterpretOneRank(AsOnRanks(program.graph, mesh), program.inputs);
      ASSERT_TRUE(expected.ok()) << expected.status();
      CompileOptions options;
      options.mesh = mesh;
      options.bucket_bytes = 256;
      options.replicated = true;  // because some graphs have inputs that cannot be split
      options.optimize = seed % 3 != 0;
      const absl::StatusOr<Executable> compiled = Compile(program.graph.Clone(), TestedBackend(), options);
      if (LacksKernel(compiled.status())) continue;
      ASSERT_TRUE(compiled.ok()) << "seed " << seed << ": " << compiled.status() << "\n" << program.graph.ToString();
      // The placements of results also depend on what passes did before `distribute`.
      const absl::StatusOr<Graph> local = ParseGraph(compiled->graph_text);
      ASSERT_TRUE(local.ok()) << "seed " << seed << ": " << local.status() << "\n" << program.graph.ToString();
      for (const Node& node : local->nodes()) {
        if (node.op().has_trait(kCollective)) along.insert(node.attr<std::string>("axis"));
      }
      const auto found =
          RunOnRanks(program.graph, *local, TestedBackend(), SharesOfInputs(*local, program.inputs), options);
      if (LacksKernel(found.status())) continue;
      ASSERT_TRUE(found.ok()) << "seed " << seed << ": " << found.status() << "\n" << program.graph.ToString();
      ASSERT_EQ(found->size(), static_cast<size_t>(mesh.num_ranks()));
      const absl::Status status = CheckShares(*local, *expected, *found, ToleranceOf(program.graph));
      ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status << "\n" << program.graph.ToString();
    }
  }
  // A small number of graphs need not have both.
  if (TestsEverything()) {
    EXPECT_EQ(along, (std::set<std::string>{"data", "model"}));
  }
}

// One, two and four ranks must give the same bits with four virtual ranks, which are close to those of the one-rank
// program.
TEST_P(RandomGraphOnBackend, OfVirtualRanksHasTheSameBitsOnAnyNumberOfRanks) {
  int compared = 0;
  for (uint64_t seed = GetParam(); seed < GetParam() + NumCases(10); ++seed) {
    const RandomProgram program = MakeRandomProgram(seed, {.batch = 8, .data = 4});
    const auto expected = InterpretOneRank(AsOnRanks(program.graph, Mesh({{"data", 4}})), program.inputs);
    ASSERT_TRUE(expected.ok()) << expected.status();
    std::vector<Tensor> of_one_rank;
    for (const int64_t ranks : {1, 2, 4}) {
      CompileOptions options;
      options.mesh = Mesh({{"data", ranks}});
      options.virtual_ranks = 4;
      options.replicated = true;
      options.optimize = seed % 3 != 0;
      const absl::StatusOr<Executable> compiled = Compile(program.graph.Clone(), TestedBackend(), options);
      if (LacksKernel(compiled.status())) continue;
      ASSERT_TRUE(compiled.ok()) << "seed " << seed << ": " << compiled.status() << "\n" << program.graph.ToString();
      const absl::StatusOr<Graph> local = ParseGraph(compiled->graph_text);
      ASSERT_TRUE(local.ok()) << "seed " << seed << ": " << local.status() << "\n" << program.graph.ToString();
      std::vector<std::vector<Tensor>> inputs = {program.inputs};
      if (local->is_local()) inputs = SharesOfInputs(*local, program.inputs);
      const auto found = RunOnRanks(program.graph, *local, TestedBackend(), inputs, options);
      if (LacksKernel(found.status())) continue;
      ASSERT_TRUE(found.ok()) << "seed " << seed << ": " << found.status() << "\n" << program.graph.ToString();
      const absl::Status status = CheckShares(*local, *expected, *found, ToleranceOf(program.graph));
      ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status << "\n" << program.graph.ToString();
      const std::vector<Tensor> whole = Joined(*local, *found, *expected);
      if (of_one_rank.empty()) of_one_rank = whole;
      for (size_t i = 0; i < whole.size(); ++i) {
        const bool same = std::memcmp(whole[i].bytes(), of_one_rank[i].bytes(), whole[i].num_bytes()) == 0;
        ASSERT_TRUE(same) << "seed " << seed << ", " << ranks << " ranks, result " << i << "\n"
                          << program.graph.ToString();
      }
      compared += ranks > 1 && local->is_local() ? 1 : 0;
    }
  }
  if (TestsEverything()) {
    EXPECT_GT(compared, 5);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphOnBackend, testing::Values(0, 25, 50, 75));

}  // namespace
}  // namespace lockstep
