// Steps on batches that are not full, on the interpreter: n ranks, each with any number of rows, compute what one rank
// computes with a batch of exactly these rows. Six hundred random models; for more:
//
//   bazel run //test/distributed:uneven_test -- --graphs=20000 --first_seed=1000

#include "passes/training/uneven.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "core/op_def.h"
#include "core/ops/scan.h"
#include "core/printer.h"
#include "passes/pipeline.h"
#include "test/distributed/random_step.h"
#include "test/distributed/shares.h"
#include "test/meaning/meaning.h"
#include "test/random_graph/random_graph.h"
#include "test/random_graph/seed_flags.h"
#include "test/random_graph/steady.h"

namespace lockstep {
namespace {

using Tensors = std::map<std::string, Tensor>;
using passes::TrainStepSpec;

uint64_t num_graphs = NumCases(600), first_seed = 0;

// The program that every rank runs, after the whole pipeline or, without `optimize`, after the required passes only.
absl::StatusOr<Graph> OnRanks(const Graph& step, int64_t ranks, bool optimize) {
  passes::PipelineOptions options;
  options.mesh = Mesh({{"data", ranks}});
  options.supports = [](const Node&) { return true; };
  options.optimize = optimize;
  Graph graph = step.Clone();
  RETURN_IF_ERROR(passes::RunPasses(passes::MakePipeline(options), graph));
  if (graph.mesh().num_ranks() != ranks)
    return Internal() << "the number of ranks of the step is " << graph.mesh().num_ranks();
  return graph;
}

size_t Collectives(const Graph& graph) {
  size_t count = 0;
  for (const Node& node : graph.nodes()) {
    count += node.op().has_trait(kCollective);
    if (node.Is("scan")) count += Collectives(*ScanForm(node).body);
  }
  return count;
}

// Counts of the seeds and of the comparisons.
struct Tally {
  Unused unused;
  int steps = 0, normalised = 0;                                        // steps that were compared
  std::map<int64_t, int> equal, uneven, without_rows, unsteady_shares;  // by the number of ranks
};

// Compares the new states with those of one rank, relative to the distance that these moved: even a small gradient must
// be correct.
absl::Status CheckMoved(const std::string& name, const Tensor& before, const Tensor& expected, const Tensor& found) {
  if (!IsFloat(expected.dtype())) return CheckClose(name, expected, found, 0);
  double moved = 0, largest = 0;
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    moved = std::max(moved, std::abs(expected.At(i) - before.At(i)));
    largest = std::max(largest, std::abs(expected.At(i)));
  }
  const bool is_wide = expected.dtype() == DType::kF64;
  const double allowed = (is_wide ? 1e-9 : 1e-3) * moved + (is_wide ? 1e-12 : 2e-5) * std::max(1.0, largest);
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    if (std::abs(found.At(i) - expected.At(i)) <= allowed) continue;
    return Internal() << "element " << i << " of " << name << " was " << before.At(i) << ", and became " << found.At(i)
                      << " instead of " << expected.At(i);
  }
  return absl::OkStatus();
}

absl::Status CheckResults(const RandomStep& step, const Graph& graph, const std::vector<std::vector<Tensor>>& found,
                          const Tensors& expected, int64_t total) {
  for (size_t rank = 0; rank < found.size(); ++rank) {
    Tensors results = ByName(graph, found[rank]);
    const std::string where = "rank " + std::to_string(rank);
    if (results.at("rows").At(0) != static_cast<double>(total))
      return Internal() << where << " counted " << results.at("rows").At(0) << " rows";
    for (const auto& [name, value] : expected) {
      const Tensor* const before = ValueBefore(step, name);
      const Tensor zeros(value.type());
      RETURN_IF_ERROR(Annotate(CheckMoved(name, before == nullptr ? zeros : *before, value, results.at(name)), where));
      if (!(results.at(name) == ByName(graph, found[0]).at(name)))
        return Internal() << name << " of rank 0 and of rank " << rank << " differ";
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<Tensor>>> RunOnRanks(const Graph& graph, const RandomStep& step,
                                                            const Shares& shares, Random& random) {
  std::vector<std::vector<Tensor>> inputs;
  for (int64_t rank = 0; rank < shares.ranks(); ++rank)
    inputs.push_back(InputsOfRank(graph, step, RowsOf(shares, rank), shares.most, random));
  return Interpret(graph, inputs);
}

// True if the input of a batch normalisation is the same for all rows. With full batches its ranks then need no
// collectives.
bool NormalizesNoBatch(const Graph& model) {
  std::set<std::string> of_batch;  // names of values that depend on the batch
  for (const Input& input : model.inputs()) {
    if (input.value.placement("data").is_split(0)) of_batch.insert(input.name());
  }
  for (const Node& node : model.nodes()) {
    if (node.Is("batch_norm_inference") && !of_batch.contains(node.operand(0).name())) return true;
    if (std::any_of(node.operands().begin(), node.operands().end(),
                    [&](Value operand) { return of_batch.contains(operand.name()); })) {
      for (size_t i = 0; i < node.num_results(); ++i) of_batch.insert(node.result_name(i));
    }
  }
  return false;
}

// Compares with one rank that has the rows of all. Returns false if rounding could explain any difference.
absl::StatusOr<bool> CheckStep(const RandomStep& step, const Shares& shares, bool optimize, Random& random) {
  ASSIGN_OR_RETURN(Graph alone, WithRows(step.model.graph, shares.total()));
  ASSIGN_OR_RETURN(const Graph one, StepOf(std::move(alone), step.spec, /*uneven=*/false));
  const std::vector<Tensor> inputs = InputsOf(one, step, AllRows(shares));
  if (!IsSteadyProgram(one, inputs)) return false;
  ASSIGN_OR_RETURN(const std::vector<Tensor> expected, InterpretOneRank(one, inputs));
  ASSIGN_OR_RETURN(Graph full, WithRows(step.model.graph, shares.ranks() * shares.most));
  ASSIGN_OR_RETURN(const Graph uneven, StepOf(full.Clone(), step.spec, /*uneven=*/true));
  ASSIGN_OR_RETURN(const Graph graph, OnRanks(uneven, shares.ranks(), optimize));
  ASSIGN_OR_RETURN(const auto found, RunOnRanks(graph, step, shares, random));
  RETURN_IF_ERROR(CheckResults(step, graph, found, ByName(one, expected), shares.total()));
  // Counts are f32: with gradients of other dtypes they need a bucket of their own.
  if (!optimize || ToleranceOf(full) < 1e-6 || NormalizesNoBatch(full)) return true;
  const auto normalises = [](const Node& node) { return node.Is("batch_norm_inference"); };
  const auto of_variances = static_cast<size_t>(std::count_if(full.nodes().begin(), full.nodes().end(), normalises));
  ASSIGN_OR_RETURN(const Graph plain, StepOf(std::move(full), step.spec, /*uneven=*/false));
  ASSIGN_OR_RETURN(const Graph with_full_batches, OnRanks(plain, shares.ranks(), optimize));
  if (Collectives(graph) <= Collectives(with_full_batches) + of_variances) return true;
  return Internal() << Collectives(graph) << " collectives, and " << Collectives(with_full_batches)
                    << " with full batches";
}

// A step in which no rank has a row must not change any state.
absl::Status CheckNoRows(const RandomStep& step, int64_t ranks, Random& random) {
  const Shares none{std::vector<int64_t>(static_cast<size_t>(ranks)), 2};
  ASSIGN_OR_RETURN(Graph full, WithRows(step.model.graph, ranks * none.most));
  ASSIGN_OR_RETURN(const Graph uneven, StepOf(std::move(full), step.spec, /*uneven=*/true));
  ASSIGN_OR_RETURN(const Graph graph, OnRanks(uneven, ranks, /*optimize=*/true));
  ASSIGN_OR_RETURN(const auto found, RunOnRanks(graph, step, none, random));
  for (const std::vector<Tensor>& results : found) {
    for (size_t i = 0; i < results.size(); ++i) {
      const Result& result = graph.results()[i];
      if (result.name == passes::kRows && results[i].At(0) != 0) return Internal() << "there were rows";
      if (!result.is_state) continue;
      const Tensor* const before = ValueBefore(step, "state " + result.name);
      if (!(results[i] == (before == nullptr ? Tensor(results[i].type()) : *before)))
        return Internal() << "state " << result.name << " changed without any row";
    }
  }
  return absl::OkStatus();
}

bool Has(const Graph& graph, std::string_view op) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.Is(op); });
}

// Compares the step on all numbers of ranks, with equal and with uneven shares.
void Compare(const RandomStep& step, Tally& tally) {
  Random random(step.seed + 2);
  int compared = 0;
  const auto check = [&](const Shares& shares, std::map<int64_t, int>& count) {
    const absl::StatusOr<bool> same = CheckStep(step, shares, /*optimize=*/random.Chance(70), random);
    ASSERT_TRUE(same.ok()) << "seed " << step.seed << ", " << shares.ToString() << ": " << same.status().message()
                           << "\nloss " << step.spec.losses[0].name << " of\n"
                           << step.model.graph.ToString();
    compared += *same;
    ++(*same ? count : tally.unsteady_shares)[shares.ranks()];
  };
  for (int64_t ranks : {1, 2, 3, 4, 7}) {
    check(EqualShares(random, ranks), tally.equal);
    check(UnevenShares(random, ranks), tally.uneven);
    if (testing::Test::HasFatalFailure()) return;
  }
  const int64_t ranks = 1 + random.Below(3);
  const absl::Status unchanged = CheckNoRows(step, ranks, random);
  ASSERT_TRUE(unchanged.ok()) << "seed " << step.seed << ", " << ranks << " ranks: " << unchanged.message() << "\n"
                              << step.model.graph.ToString();
  ++tally.without_rows[ranks];
  tally.steps += compared > 0;
  tally.normalised += compared > 0 && Has(step.model.graph, "batch_norm_inference");
}

std::string ToString(const std::map<int64_t, int>& by_ranks) {
  std::string text;
  for (const auto& [ranks, count] : by_ranks) text += " " + std::to_string(ranks) + ":" + std::to_string(count);
  return text;
}

TEST(Uneven, RandomStepsAreThoseOfOneRankWithAllRows) {
  Tally tally;
  for (uint64_t seed = first_seed; seed < first_seed + num_graphs; ++seed) {
    const std::optional<RandomStep> step = MakeRandomStep(seed, tally.unused);
    if (step) Compare(*step, tally);
    if (HasFailure()) break;
  }
  const Unused& unused = tally.unused;
  std::printf(
      "of %llu seeds %d give no model, %d are refused, %d mix rows, %d depend on positions, %d have a constant loss\n"
      "%d steps were compared, %d of them with batch normalisation\n",
      static_cast<unsigned long long>(num_graphs), unused.without_model, unused.refused, unused.mixing,
      unused.of_places, unused.flat, tally.steps, tally.normalised);
  std::printf("by ranks: equal%s; uneven%s; unsteady%s\n", ToString(tally.equal).c_str(),
              ToString(tally.uneven).c_str(), ToString(tally.unsteady_shares).c_str());
  if (HasFailure() || UnderSanitizer()) return;  // few steps need not contain each kind
  // `steps` counts steps with a loss that depends on the batch, not seeds.
  EXPECT_GE(static_cast<uint64_t>(tally.steps) * 3, num_graphs);
  EXPECT_GE(tally.normalised * 10, tally.steps);
  for (int64_t ranks : {1, 2, 3, 4, 7}) {
    EXPECT_GE(static_cast<uint64_t>(tally.equal[ranks]) * 4, num_graphs) << ranks;
    EXPECT_GE(static_cast<uint64_t>(tally.uneven[ranks]) * 4, num_graphs) << ranks;
  }
}

// --- By hand ---------------------------------------------------------------------------------------------------------

// Counts travel with sums, and in the backward pass no sum waits for another. Only the variance, which takes a second
// pass over the rows, waits for the mean.
TEST(Uneven, BatchNormalisationTakesOneMoreCollective) {
  constexpr std::string_view kNormalised = R"(
graph @normalised(%x: f32[12,5] split(0), state %w: f32[5,4], state %s: f32[4], state %b: f32[4], state %m: f32[4], state %v: f32[4], state %u: f32[4,3]) -> (prediction: f32[12,3] split(0)) {
  %h = matmul %x, %w : f32[12,4]
  %n = batch_norm_inference %h, %s, %b, %m, %v {epsilon=1e-05} : f32[12,4]
  %a = tanh %n : f32[12,4]
  %z = matmul %a, %u : f32[12,3]
  return %z
}
)";
  TrainStepSpec spec;
  spec.losses = {{.name = "mean_squared_error", .predictions = {"prediction"}, .inputs = {"target"}}};
  std::vector<size_t> counts;
  for (const bool uneven : {false, true}) {
    const absl::StatusOr<Graph> step = StepOf(ParseGraph(kNormalised).value(), spec, uneven);
    ASSERT_TRUE(step.ok()) << step.status();
    const absl::StatusOr<Graph> graph = OnRanks(*step, 2, /*optimize=*/true);
    ASSERT_TRUE(graph.ok()) << graph.status();
    counts.push_back(Collectives(*graph));
  }
  // One each for the mean, the variance, the sums of the backward pass, and the gradients; in full batches the variance
  // travels with the mean.
  EXPECT_EQ(counts, (std::vector<size_t>{3, 4}));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::RunTestsOfSeeds(argc, argv, lockstep::num_graphs, lockstep::first_seed);
}
