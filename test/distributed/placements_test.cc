// Tests mesh axes other than that of the batch: for any splits of its states, a training step gives the losses and the
// states of the one-rank program. Also tests the search for placements: it finds the plan of least cost, checked
// against the costs of all plans, and respects a memory limit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "bazel/num_cases.h"
#include "core/local_part.h"
#include "core/placement_rules.h"
#include "core/printer.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/plan_search.h"
#include "passes/distribute/split_inputs.h"
#include "passes/optimize/dce.h"
#include "passes/training/train_step.h"
#include "test/distributed/models.h"
#include "test/distributed/train.h"

namespace lockstep {
namespace {

using passes::InputSplits;
using passes::PlanCosts;
using passes::PlanMachine;
using passes::PlanOptions;
using passes::PlanSearch;

constexpr std::string_view kLayers = R"(
graph @layers(%x: f32[12,8] split(0), state %w1: f32[8,16], state %b1: f32[16], state %w2: f32[16,6], state %w3: f32[6,4]) -> (logits: f32[12,4] split(0)) {
  %h  = matmul %x, %w1 : f32[12,16]
  %bb = broadcast %b1 {shape=[12,16], dims=[1]} : f32[12,16]
  %hb = add %h, %bb : f32[12,16]
  %a  = tanh %hb : f32[12,16]
  %g  = matmul %a, %w2 : f32[12,6]
  %r  = relu %g : f32[12,6]
  %z  = matmul %r, %w3 : f32[12,4]
  return %z
}
)";

// A residual sum of two layers, so not a chain; one weight is used twice.
constexpr std::string_view kResidual = R"(
graph @residual(%x: f32[12,8] split(0), state %w1: f32[8,8], state %w2: f32[8,8], state %s: f32[8], state %w3: f32[8,4]) -> (logits: f32[12,4] split(0)) {
  %h  = matmul %x, %w1 : f32[12,8]
  %t  = tanh %h : f32[12,8]
  %u  = matmul %t, %w2 : f32[12,8]
  %v  = add %u, %h : f32[12,8]
  %s1 = broadcast %s {shape=[12,8], dims=[1]} : f32[12,8]
  %m  = mul %v, %s1 : f32[12,8]
  %k  = matmul %m, %w2 : f32[12,8]
  %q  = add %k, %v : f32[12,8]
  %z  = matmul %q, %w3 : f32[12,4]
  return %z
}
)";

Graph PlacedStep(std::string_view model, passes::OptimizerSpec optimizer, std::optional<double> clip = {}) {
  absl::StatusOr<Graph> step = ParseGraph(model);
  EXPECT_TRUE(step.ok()) << step.status();
  passes::TrainStepSpec spec;
  spec.optimizer = std::move(optimizer);
  if (clip) spec.clipping = {"global_norm", *clip};
  const absl::Status made = passes::MakeTrainStep(*step, spec);
  EXPECT_TRUE(made.ok()) << made;
  return std::move(*step);
}

std::vector<passes::OptimizerSpec> Optimizers() {
  return {{"SGD", {{"learning_rate", 0.1}}},
          {"SGD", {{"learning_rate", 0.1}, {"momentum", 0.9}}},
          {"Adam", {{"learning_rate", 0.01}}}};
}

// Possible placements of a state along the axis: split dimensions, and -1 for replicated.
std::vector<int64_t> DimsOf(const Input& input, const Mesh& mesh, const std::string& axis) {
  std::vector<int64_t> dims = {-1};
  for (int64_t dim = 0; dim < input.value.shape().rank(); ++dim) {
    if (SplitsEvenly(input.value.shape(), {{axis, Placement::Split(dim)}}, mesh)) dims.push_back(dim);
  }
  return dims;
}

// A state assembled from the ranks' parts.
Tensor WholeOf(const Graph& step, const History& history, const Mesh& mesh, const std::string& name) {
  const Input& input = *step.FindInput(name);
  Tensor whole(input.value.type());
  for (size_t rank = 0; rank < history.states.size(); ++rank) {
    const Tensor& part = history.states[rank].at(name);
    PutLocalPart(part.bytes(), input.placements(), mesh, static_cast<int64_t>(rank), input.value.type(),
                 whole.mutable_bytes());
  }
  return whole;
}

void ExpectPlacedResults(const Graph& step, const InputSplits& splits, const Mesh& mesh) {
  std::string text;
  for (const auto& [name, dims] : splits) {
    for (const auto& [axis, dim] : dims) text += name + " " + axis + " " + std::to_string(dim) + " ";
  }
  SCOPED_TRACE(mesh.ToString() + " " + text);
  constexpr int kSteps = 4;
  const History one = Train(step, 1, kSteps);
  Graph split = step.Clone();
  const absl::Status status = passes::SplitInputs(split, splits, mesh);
  ASSERT_TRUE(status.ok()) << status;
  const History many = Train(split, mesh, kSteps);
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(many.losses.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(many.states.size(), static_cast<size_t>(mesh.num_ranks()));
  for (size_t s = 0; s < kSteps; ++s) EXPECT_NEAR(many.losses[s], one.losses[s], 2e-5 * std::abs(one.losses[s]));
  for (const auto& [name, value] : one.states[0]) {
    const Tensor whole = WholeOf(split, many, mesh, name);
    for (int64_t i = 0; i < value.num_elements(); ++i)
      ASSERT_NEAR(whole.At(i), value.At(i), 5e-5) << name << ", element " << i;
    for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      const auto first = FirstReplica(split.FindInput(name)->placements(), mesh, rank);
      EXPECT_TRUE(many.states[static_cast<size_t>(rank)].at(name) == many.states[static_cast<size_t>(first)].at(name))
          << name << " differs between ranks " << first << " and " << rank;
    }
  }
}

std::vector<Mesh> Meshes() {
  return {Mesh({{"data", 2}, {"model", 2}}), Mesh({{"model", 2}, {"data", 2}}), Mesh({{"data", 1}, {"model", 2}}),
          Mesh({{"data", 1}, {"model", 4}}), Mesh({{"rows", 2}, {"data", 1}, {"columns", 2}})};
}

// Machines on each of which another plan is the best.
std::vector<PlanMachine> Machines(const Mesh& mesh) {
  std::vector<PlanMachine> machines = {{1e9, 1e9, {}}, {1e9, 1e9, {}}, {1e5, 1e9, {}}, {1e9, 1e5, {}}};
  const std::vector<passes::AxisCost> costs = {{1e-3, 1e-6}, {1e-9, 1e-9}, {1e-6, 1e-8}, {1e-5, 1e-7}};
  for (size_t i = 0; i < machines.size(); ++i) {
    for (const MeshAxis& axis : mesh.axes()) machines[i].axes[axis.name] = costs[i];
  }
  return machines;
}

const std::vector<std::string_view>& Models() {
  static const std::vector<std::string_view> models = {kLayers, kResidual, kConvNet, kEmbedding, kRecurrent};
  return models;
}

TEST(Placements, OfWhateverStatesAreNRanksComputeWhatOneDoes) {
  std::mt19937_64 random(11);
  const int draws = NumCases(3);
  int count = 0;
  for (const std::string_view model : Models()) {
    for (const passes::OptimizerSpec& optimizer : Optimizers()) {
      const Graph step = PlacedStep(model, optimizer, random() % 2 ? std::optional<double>(0.5) : std::nullopt);
      for (const Mesh& mesh : Meshes()) {
        for (int draw = 0; draw < draws; ++draw) {
          InputSplits splits;
          for (const Input& input : step.inputs()) {
            if (!input.is_state || input.name().find('/') != std::string::npos) continue;
            for (const MeshAxis& axis : mesh.axes()) {
              const std::vector<int64_t> dims = DimsOf(input, mesh, axis.name);
              const int64_t dim = dims[random() % dims.size()];
              InputSplits with = splits;
              if (dim < 0 || axis.name == kDataAxis) continue;
              with[input.name()][axis.name] = dim;
              Graph tried = step.Clone();
              if (passes::SplitInputs(tried, with, mesh).ok()) splits = std::move(with);
            }
          }
          ExpectPlacedResults(step, splits, mesh);
          ++count;
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_EQ(count, 5 * 3 * 5 * draws);
}

TEST(Placements, OfFoundPlansAreNRanksComputeWhatOneDoes) {
  int count = 0;
  for (const std::string_view model : Models()) {
    const Graph step = PlacedStep(model, Optimizers()[2]);
    for (const Mesh& mesh : Meshes()) {
      for (const PlanMachine& machine : Machines(mesh)) {
        const absl::StatusOr<PlanSearch> search = passes::SearchPlan(step, mesh, {.machine = machine});
        if (model == kRecurrent && mesh.axes().back().size == 4) {  // none of its extents is a multiple of 4
          EXPECT_FALSE(search.ok());
          continue;
        }
        ASSERT_TRUE(search.ok()) << search.status();
        ExpectPlacedResults(step, search->best.splits, mesh);
        ++count;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_EQ(count, (5 * 5 - 1) * 4);
}

// Costs of all plans along "model", computed from the programs that distribute makes of them.
std::vector<PlanCosts> CostsOfAllPlans(const Graph& step, const Mesh& mesh, const PlanMachine& machine) {
  std::vector<InputSplits> all = {{}};
  for (const Input& input : step.inputs()) {
    if (!input.is_state || input.name().find('/') != std::string::npos) continue;
    std::vector<InputSplits> more;
    for (const int64_t dim : DimsOf(input, mesh, "model")) {
      for (InputSplits splits : all) {
        if (dim >= 0) splits[input.name()]["model"] = dim;
        more.push_back(std::move(splits));
      }
    }
    all = std::move(more);
  }
  std::vector<PlanCosts> costs;
  for (const InputSplits& splits : all) {
    Graph graph = step.Clone();
    EXPECT_TRUE(passes::SplitInputs(graph, splits, mesh).ok());
    const absl::StatusOr<Graph> placed = passes::DistributeGraph(graph, mesh);
    EXPECT_TRUE(placed.ok()) << placed.status();
    if (!placed.ok()) continue;
    Graph lean = placed->Clone();
    EXPECT_TRUE(passes::RunPasses({passes::Dce()}, lean).ok());
    costs.push_back(passes::CostsOf(lean, machine));
  }
  return costs;
}

TEST(PlanSearch, FindsThePlanThatCostsLeastOfAll) {
  const Mesh mesh({{"data", 2}, {"model", 2}});
  int shared = 0;
  for (const std::string_view model : {kLayers, kResidual, kEmbedding}) {
    const Graph step = PlacedStep(model, Optimizers()[1]);
    for (const PlanMachine& machine : Machines(mesh)) {
      const std::vector<PlanCosts> all = CostsOfAllPlans(step, mesh, machine);
      ASSERT_GE(all.size(), 4u);
      const auto least = std::min_element(
          all.begin(), all.end(), [](const PlanCosts& a, const PlanCosts& b) { return a.seconds() < b.seconds(); });
      const absl::StatusOr<PlanSearch> search = passes::SearchPlan(step, mesh, {.machine = machine});
      ASSERT_TRUE(search.ok()) << search.status();
      EXPECT_TRUE(search->is_exact);
      EXPECT_NEAR(search->best.costs.seconds(), least->seconds(), 1e-9 * least->seconds()) << step.name();
      shared += search->best.splits.empty() ? 0 : 1;
      EXPECT_LE(search->best.costs.seconds(), search->replicated.costs.seconds());
      for (const passes::PlacementPlan& other : search->runners_up)
        EXPECT_LE(search->best.costs.seconds(), other.costs.seconds());
      EXPECT_FALSE(search->runners_up.empty());
    }
  }
  EXPECT_GE(shared, 6) << "on most machines a plan with splits costs least";
}

TEST(PlanSearch, KeepsWithinALimitWhateverItTakes) {
  const Mesh mesh({{"data", 1}, {"model", 2}});
  const Graph step = PlacedStep(kLayers, Optimizers()[2]);
  const PlanMachine machine = Machines(mesh)[0];  // on which no split is worth its cost
  const absl::StatusOr<PlanSearch> free = passes::SearchPlan(step, mesh, {.machine = machine});
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_EQ(free->best.splits, InputSplits());
  const std::vector<PlanCosts> all = CostsOfAllPlans(step, mesh, machine);
  int64_t smallest = free->best.costs.bytes();
  for (const PlanCosts& costs : all) smallest = std::min(smallest, costs.bytes());
  for (const int64_t limit : {free->best.costs.bytes() - 1, (smallest + free->best.costs.bytes()) / 2, smallest}) {
    const absl::StatusOr<PlanSearch> search =
        passes::SearchPlan(step, mesh, {.machine = machine, .memory_limit = limit});
    ASSERT_TRUE(search.ok()) << search.status();
    EXPECT_LE(search->best.costs.bytes(), limit);
    double least = 1e9;
    for (const PlanCosts& costs : all) {
      if (costs.bytes() <= limit) least = std::min(least, costs.seconds());
    }
    EXPECT_NEAR(search->best.costs.seconds(), least, 1e-9 * least) << limit;
  }
  const absl::StatusOr<PlanSearch> none =
      passes::SearchPlan(step, mesh, {.machine = machine, .memory_limit = smallest - 1});
  EXPECT_EQ(none.status().message(),
            "plan: a rank of the mesh {data=1, model=2} needs " + std::to_string(smallest) +
                " bytes with the smallest plan that was found for @layers, and memory_limit is " +
                std::to_string(smallest - 1));
}

TEST(PlanSearch, IsTheSameEachTimeAndSaysWhenItLeftWaysOut) {
  const Mesh mesh({{"data", 1}, {"model", 2}});
  const Graph step = PlacedStep(kResidual, Optimizers()[0]);
  const PlanMachine machine = Machines(mesh)[2];
  const auto first = passes::SearchPlan(step, mesh, {.machine = machine}).value();
  const auto second = passes::SearchPlan(step, mesh, {.machine = machine}).value();
  EXPECT_EQ(first.best.splits, second.best.splits);
  const auto narrow = passes::SearchPlan(step, mesh, {.machine = machine, .width = 2}).value();
  EXPECT_TRUE(first.is_exact);
  EXPECT_FALSE(narrow.is_exact);
  EXPECT_GE(narrow.best.costs.seconds(), first.best.costs.seconds());
}

TEST(PlanSearch, KeepsWhatIsSplitAlready) {
  const Mesh mesh({{"data", 1}, {"model", 2}});
  Graph step = PlacedStep(kLayers, Optimizers()[0]);
  ASSERT_TRUE(passes::SplitInputs(step, {{"w2", {{"model", 1}}}}, mesh).ok());
  const auto search = passes::SearchPlan(step, mesh, {.machine = Machines(mesh)[2]}).value();
  EXPECT_FALSE(search.best.splits.contains("w2"));
  Graph placed = step.Clone();
  ASSERT_TRUE(passes::SplitInputs(placed, search.best.splits, mesh).ok());
  EXPECT_EQ(placed.FindInput("w2")->value.placement("model"), Placement::Split(1));
}

TEST(PlanSearch, SaysWhatCannotBeSearched) {
  const Graph step = PlacedStep(kMlp, Optimizers()[0]);
  const auto error = [&](const Mesh& mesh) {
    return std::string(passes::SearchPlan(step, mesh, {}).status().message());
  };
  EXPECT_EQ(error(Mesh({{"data", 2}})),
            "plan: the mesh {data=2} has no axis of several ranks, other than data, along which no input is split; the "
            "search needs such an axis");
  EXPECT_EQ(error(Mesh({{"data", 1}, {"model", 2}})),
            "plan: graph @mlp has no state that the 2 ranks along axis model can share evenly");
  const Graph placed = passes::DistributeGraph(step, Mesh({{"data", 2}})).value();
  EXPECT_EQ(passes::SearchPlan(placed, Mesh({{"model", 2}}), {}).status().message(),
            "plan: graph @mlp is distributed already, over {data=2}");
}

}  // namespace
}  // namespace lockstep
