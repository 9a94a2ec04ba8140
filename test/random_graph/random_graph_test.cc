// Random graphs keep their meaning in each pass, and in all passes together. Two hundred graphs for each; for more:
//
//   bazel run //test/random_graph:random_graph_test -- --graphs=100000 --first_seed=1000

#include "test/random_graph/random_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "bazel/num_cases.h"
#include "core/op_def.h"
#include "passes/distribute/check_shares.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/fold_virtual_ranks.h"
#include "passes/distribute/form_reduce_scatters.h"
#include "passes/distribute/gather_factors.h"
#include "passes/distribute/localize.h"
#include "passes/distribute/lower_exchanges.h"
#include "passes/distribute/move_updates_to_servers.h"
#include "passes/distribute/quantize_wire.h"
#include "passes/distribute/reduce_before_scale.h"
#include "passes/distribute/split_inputs.h"
#include "passes/distribute/wire.h"
#include "passes/legalize/widen.h"
#include "passes/optimize/cse.h"
#include "passes/optimize/dce.h"
#include "passes/optimize/fold_constants.h"
#include "passes/optimize/one_pass_statistics.h"
#include "passes/optimize/recognize_attention.h"
#include "passes/optimize/separate_rows.h"
#include "passes/pass_table.h"
#include "passes/pipeline.h"
#include "passes/simplify/simplify.h"
#include "passes/stages/cut_into_stages.h"
#include "passes/training/accumulate.h"
#include "passes/training/inference_mode.h"
#include "test/random_graph/compare.h"
#include "test/random_graph/op_nodes.h"
#include "test/random_graph/seed_flags.h"
#include "test/random_graph/steady.h"
#include "verify/compare_programs.h"

namespace lockstep {
namespace {

// For a pass that found too little work, which therefore was not tested.
constexpr char kTooRare[] =
    "finds too little work in random graphs; set its options in OptionsOf, or name it in FindsWork, or in "
    "PassesOfOneRank "
    "if it needs no mesh, and insert its pattern in a test of its own";

uint64_t num_graphs = NumCases(200), first_seed = 0;

// True for the ops that legalize decomposes here: all that can be decomposed, except those that a pass forms from
// several nodes.
bool IsComposite(const OpDef& op) { return op.decompose() && WhyNotDrawn(op).empty(); }

std::string LegalizeAll() {
  std::string names;
  for (const OpDef* op : AllOps()) {
    if (IsComposite(*op)) names += (names.empty() ? "" : "|") + op->name();
  }
  return "legalize{without=" + names + "}";
}

RandomProgram ProgramOf(uint64_t seed) {
  RandomGraphOptions options;
  // Some graphs are small: failures on them need less shrinking. Larger extents reach the limits of fusion.
  if (seed % 4 == 0) options.max_nodes = 6;
  if (seed % 8 == 7) options.max_nodes = 60;
  return MakeRandomProgram(seed, options);
}

// Tries similar graphs with smaller extents, then removes everything that is not needed for the failure.
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
  if (UnderSanitizer()) return;
  // A pass that changes nothing is not tested. inference-mode only changes dropout and stop_gradient, and widen-halves
  // only 16-bit products; few graphs have them.
  const bool is_rare = GetParam() == "inference-mode" || GetParam() == "widen-halves";
  EXPECT_GE(num_changed * (is_rare ? 100 : 20), num_graphs)
      << "only " << num_changed << " of " << num_graphs << " graphs were changed: " << GetParam() << " " << kTooRare;
}

// Every pass of the table that keeps the meaning of a graph on one rank, and a sequence of many of them.
std::vector<std::string> PassesOfOneRank() {
  std::vector<std::string> names;
  for (const passes::PassEntry& entry : passes::PassTable()) {
    const absl::StatusOr<passes::Pass> pass = entry.make({});
    LOCKSTEP_CHECK(pass.ok()) << pass.status();
    if (pass->keeps == passes::Keeps::kNothing || pass->keeps == passes::Keeps::kResults) continue;
    if (pass->name == passes::RecognizeAttention().name) continue;  // too rare: see FindsWork below
    if (pass->name == passes::SeparateRows().name) continue;        // tested separately
    if (entry.name == "one-pass-statistics") continue;  // sets an attribute, with which op cases are drawn already
    if (!pass->needs_mesh) names.push_back(entry.name == "legalize" ? LegalizeAll() : entry.name);
  }
  names.push_back("simplify,fold-constants,simplify,cse,dce," + LegalizeAll() +
                  ",cse,simplify,dce,fuse-elementwise,dce");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Passes, RandomGraphTest, testing::ValuesIn(PassesOfOneRank()), [](const auto& info) {
  std::string name;
  for (char c : info.param.substr(0, 14)) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return std::to_string(info.index) + "_" + name;
});

// Makes work for separate-rows: merges two dimensions of rows where a product is computed.
passes::Pass MergeRows() {
  return {"merge-rows", [](Graph& graph) -> absl::StatusOr<bool> {
            bool changed = false;
            for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
              Node& node = *it++;
              if (!node.Is("matmul") || node.operand(0).shape().rank() != 2) continue;
              const Value x = node.operand(0), y = node.operand(1);
              const int64_t rows = node.type().shape[0];
              if (rows < 4 || rows % 2 != 0) continue;
              const auto apart = [&](Builder& b, Value of) {
                return b.Reshape(of, Shape({2, of.shape()[0] / 2, of.shape()[1]}));
              };
              Builder before(graph, &node);
              const bool has_rows = x.shape()[0] == rows;  // not transposed
              const Value merged = has_rows ? before.Reshape(apart(before, x), x.shape()) : x;
              RETURN_IF_ERROR(before.status());
              ValueMap map = {{x, merged}, {y, y}};
              RETURN_IF_ERROR(graph.InsertCopy(node, map, &node).status());
              Builder after(graph, &node);
              const Value back = after.Reshape(apart(after, map.at(node.result())), node.type().shape);
              RETURN_IF_ERROR(after.status());
              graph.ReplaceUses(node.result(), back);
              graph.Erase(&node);
              changed = true;
            }
            return changed;
          }};
}

TEST(RandomGraph, SeparateRowsMeansTheSameOfRowsThatWereMerged) {
  uint64_t num_merged = 0, num_separated = 0;
  const auto counted = [](passes::Pass pass, uint64_t& count) {
    pass.run = [run = pass.run, &count](Graph& graph) -> absl::StatusOr<bool> {
      ASSIGN_OR_RETURN(const bool changed, run(graph));
      count += changed;
      return changed;
    };
    return pass;
  };
  const std::vector<passes::Pass> passes = {counted(MergeRows(), num_merged),
                                            counted(passes::SeparateRows(), num_separated)};
  // Few graphs have such products.
  for (uint64_t seed = first_seed; seed < first_seed + 10 * num_graphs; ++seed) {
    const absl::Status status = CheckPasses(ProgramOf(seed), passes);
    EXPECT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
  }
  EXPECT_GE(num_separated * 20, num_graphs) << num_merged << " graphs had rows to merge";
}

constexpr int64_t kBatch = 6;  // divides among 2 ranks and among 3
constexpr int64_t kModelRanks = 2;

passes::PipelineOptions OptionsOf(const Mesh& mesh, bool optimize) {
  passes::PipelineOptions options;
  options.mesh = mesh;
  options.buckets = {.max_bytes = 200, .first_bytes = 100};
  options.supports = [](const Node& node) { return !IsComposite(node.op()); };
  options.prefers_f32 = [](const Node& node) { return node.Is("matmul") || node.Is("add") || node.Is("mul"); };
  options.optimize = optimize;
  return options;
}

RandomProgram MeshProgramOf(uint64_t seed, const Mesh& mesh) {
  return MakeRandomProgram(seed, {.max_nodes = seed % 4 == 0 ? 6 : 24,
                                  .batch = kBatch,
                                  .model = mesh.has_axis("model") ? kModelRanks : 0,
                                  .data = *mesh.axis_size("data")});
}

class RandomGraphOnMeshTest : public testing::TestWithParam<std::tuple<Mesh, bool>> {
 protected:
  void SetUp() override {
    for (uint64_t seed = first_seed; seed < first_seed + num_graphs; ++seed)
      programs_.push_back(MeshProgramOf(seed, mesh()));
  }

  // Runs random graphs through the passes, and compares after each pass except the first `num_known`, which another
  // test checks. Returns how often each pass changed a graph.
  std::map<std::string, int> Run(const std::vector<passes::Pass>& passes, size_t num_known = 0) {
    std::map<std::string, int> num_changed;
    for (const RandomProgram& program : programs_) {
      if (CheckOnRanks(program, passes, &num_changed, num_known).ok()) continue;
      const RandomProgram smallest =
          Shrink(program, [&](const RandomProgram& smaller) { return !CheckOnRanks(smaller, passes).ok(); });
      std::string names;
      for (const passes::Pass& pass : passes) {
        names += (names.empty() ? "" : ",") + pass.name;
        if (pass.name == passes::Distribute({}).name) names += mesh().ToString();
      }
      const std::string seed = std::to_string(first_seed + static_cast<uint64_t>(&program - programs_.data()));
      const std::string path = WriteReproducer(smallest, names, "random_mesh." + seed);
      ADD_FAILURE() << "seed " << seed << ", passes " << names << ": " << CheckOnRanks(smallest, passes).message()
                    << "\n"
                    << smallest.graph.ToString() << "written with its inputs to " << path;
      break;
    }
    return num_changed;
  }
  // Returns true if the pass must change some graph, because a pass that changes nothing is not tested. Random graphs
  // have too little work for form-reduce-scatters and separate-rows, so tests of their own insert it; another test runs
  // gather-factors regardless of cost. recognize-attention, reduce-before-scale and the wire's passes are tested only
  // in test/golden/; stages, which need training steps, in test/distributed/; virtual ranks in backends/conformance/.
  // Dropouts are rare: the few graphs of a sanitizer run may have none. No program here asks for servers, split inputs,
  // sharded optimizers, exchanges or a check of what ranks share.
  static bool FindsWork(const passes::Pass& pass) {
    if (pass.name == passes::InferenceMode().name) return num_graphs >= 200;
    for (const passes::Pass& other :
         {passes::FormReduceScatters(), passes::RecognizeAttention(), passes::SeparateRows(),
          passes::OnePassStatistics(true), passes::ReduceBeforeScale(), passes::ChooseWire(""), passes::QuantizeWire(),
          passes::LowerWire(), passes::GatherFactors({}), passes::CutIntoStages({}), passes::MoveUpdatesToServers({}),
          passes::SplitInputs({}, Mesh()), passes::ShardOptimizers({}), passes::CheckShares({}, false),
          passes::FoldVirtualRanks({}), passes::LowerExchanges()}) {
      if (pass.name == other.name) return false;
    }
    return true;
  }
  const Mesh& mesh() const { return std::get<0>(GetParam()); }
  const std::vector<RandomProgram>& programs() const { return programs_; }
  passes::PipelineOptions options() const { return OptionsOf(mesh(), std::get<1>(GetParam())); }

 private:
  std::vector<RandomProgram> programs_;
};

TEST_P(RandomGraphOnMeshTest, MeansTheSameAfterEachPassOfThePipeline) {
  const std::vector<passes::Pass> pipeline = passes::MakePipeline(options());
  std::map<std::string, int> num_changed = Run(pipeline);
  for (const passes::Pass& pass : pipeline) {
    if (!FindsWork(pass)) continue;
    EXPECT_GT(num_changed[pass.name], 0) << pass.name << " changed none of " << num_graphs << " graphs: it "
                                         << kTooRare;
  }
}

// Compares the program after the whole pipeline with itself on one rank, in exact arithmetic. Constants are folded
// first: arithmetic of constants rounds, which exact arithmetic does not represent.
absl::Status CheckExactly(const RandomProgram& program, const passes::PipelineOptions& options) {
  Graph graph = program.graph.Clone();
  RETURN_IF_ERROR(passes::RunPasses({passes::Simplify(), passes::FoldConstants(), passes::Simplify()}, graph));
  ASSIGN_OR_RETURN(verify::Reference reference, verify::Reference::Of(AsOnRanks(graph, options.mesh)));
  RETURN_IF_ERROR(passes::RunPasses(passes::MakePipeline(options), graph));
  return reference.Check(graph);
}

// A law of the update of rmsprop_centered is not found if fusions cut its nodes apart (verify/axioms.cc).
TEST_P(RandomGraphOnMeshTest, IsEqualInExactArithmetic) {
  uint64_t num_equal = 0;
  for (const RandomProgram& program : programs()) {
    const auto& nodes = program.graph.nodes();
    if (std::any_of(nodes.begin(), nodes.end(), [](const Node& n) { return n.Is("rmsprop_centered"); })) continue;
    const absl::Status found = CheckExactly(program, options());
    num_equal += found.ok();
    if (found.message().find("integer division by zero") != std::string_view::npos) continue;
    EXPECT_TRUE(found.ok()) << "seed " << first_seed + static_cast<uint64_t>(&program - programs().data()) << ": "
                            << found.message() << "\n"
                            << program.graph.ToString();
  }
  EXPECT_GE(num_equal * 10, num_graphs * 9);
}

// Constants that updates of NAdam and LAMB take from operands, and the logarithm of one, which NAdam multiplies by
// another.
TEST_P(RandomGraphOnMeshTest, ConstantsOfUpdatesAreEqualInExactArithmetic) {
  for (uint64_t seed : {1026, 1353, 1615, 1985, 2050}) {
    const RandomProgram program = MeshProgramOf(seed, mesh());
    const absl::Status found = CheckExactly(program, options());
    EXPECT_TRUE(found.ok()) << "seed " << seed << ": " << found.message() << "\n" << program.graph.ToString();
  }
}

// Runs each pass right after distribute, or after localize if it comes later, so that no other pass has removed the
// difficult parts.
TEST_P(RandomGraphOnMeshTest, MeansTheSameAfterDistributeAndEachPass) {
  std::vector<passes::Pass> before = {passes::Distribute(options().mesh)};
  Run(before);
  for (const passes::Pass& pass : passes::MakePipeline(options())) {
    if (pass.name == before[0].name) continue;
    if (pass.name == passes::WidenHalves({}).name) continue;  // only for programs that are not distributed yet
    SCOPED_TRACE(pass.name);
    std::vector<passes::Pass> passes = before;
    passes.push_back(pass);
    std::map<std::string, int> num_changed = Run(passes, /*num_known=*/before.size());
    if (FindsWork(pass)) {
      EXPECT_GT(num_changed[pass.name], 0) << pass.name << " changed none of " << num_graphs << " graphs";
    }
    if (pass.name == passes::Localize().name) before.push_back(pass);
  }
}

// True if several axes split the dimension: such slices can only be gathered along the later axis first.
bool IsSharedTwice(Value value, int64_t dim) {
  return std::count_if(value.placements().begin(), value.placements().end(),
                       [&](const auto& each) { return each.second.is_split(dim); }) > 1;
}

// Makes work for form-reduce-scatters in a placed graph: replaces a reduce_scatter by an all_reduce and a shard, and
// each split operand by a shard of its all_gather.
passes::Pass MoveTooMuch() {
  const auto insert = [](Graph& graph, const char* op, Value x, AttributeMap attributes, Node* before) {
    const absl::StatusOr<Node*> node = graph.Insert({&GetOp(op), {x}, std::move(attributes), "", {}}, before);
    LOCKSTEP_CHECK(node.ok()) << node.status();
    return (*node)->result();
  };
  return {"move-too-much",
          [insert](Graph& graph) -> absl::StatusOr<bool> {
            bool changed = false;
            for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
              Node& node = *it++;
              for (size_t i = 0; i < node.operands().size(); ++i) {
                for (const auto& [axis, placement] : PlacementMap(node.operand(i).placements())) {
                  if (!placement.is_split() || IsSharedTwice(node.operand(i), placement.dim())) continue;
                  const AttributeMap slice = {{"axis", axis}, {"dim", placement.dim()}};
                  const Value whole = insert(graph, "all_gather", node.operand(i), slice, &node);
                  graph.SetOperand(&node, i, insert(graph, "shard", whole, slice, &node));
                  changed = true;
                }
              }
              if (!node.Is("reduce_scatter")) continue;
              const AttributeMap slice = {{"axis", node.attr<std::string>("axis")}, {"dim", node.attr<int64_t>("dim")}};
              const AttributeMap reduction = {{"axis", node.attr<std::string>("axis")},
                                              {"kind", node.attr<std::string>("kind")}};
              const Value whole = insert(graph, "all_reduce", node.operand(0), reduction, &node);
              graph.ReplaceUses(node.result(), insert(graph, "shard", whole, slice, &node));
              graph.Erase(&node);
              changed = true;
            }
            return changed;
          },
          passes::Keeps::kEveryValue, /*needs_mesh=*/true};
}

// A dimension of `value` that no axis splits and that `ranks` divides; -1 if there is none.
int64_t WholeDim(Value value, int64_t ranks) {
  for (int64_t dim = 0; dim < value.shape().rank(); ++dim) {
    const bool is_split = std::any_of(value.placements().begin(), value.placements().end(),
                                      [&](const auto& each) { return each.second.is_split(dim); });
    if (!is_split && value.shape()[dim] % ranks == 0) return dim;
  }
  return -1;
}

// Inserts collectives into a placed graph that move values away and back. A split operand is split along another
// dimension in between, or one rank has all of it; of a replicated operand, each rank gets its neighbour's copy.
passes::Pass SendAround(std::map<std::string, int>* num_sent) {
  return {"send-around",
          [num_sent](Graph& graph) -> absl::StatusOr<bool> {
            int count = 0;
            const auto insert = [&](const char* op, Value x, AttributeMap attributes, Node* before) {
              const absl::StatusOr<Node*> node = graph.Insert({&GetOp(op), {x}, std::move(attributes), "", {}}, before);
              LOCKSTEP_CHECK(node.ok()) << node.status();
              ++(*num_sent)[op];
              return (*node)->result();
            };
            const auto around = [&](Value x, const MeshAxis& axis, Node* before) -> Value {
              const Placement placement = x.placement(axis.name);
              const AttributeMap on = {{"axis", axis.name}};
              const auto with = [&](AttributeMap more) { return more.insert(on.begin(), on.end()), more; };
              if (placement.is_replicated()) {
                std::vector<int64_t> sources, targets;
                for (int64_t rank = 0; rank < axis.size; ++rank) {
                  sources.push_back(rank);
                  targets.push_back((rank + 1) % axis.size);
                }
                x = insert("collective_permute", x, with({{"sources", sources}, {"targets", targets}}), before);
                return insert("collective_broadcast", x, with({{"root", axis.size - 1}}), before);
              }
              if (!placement.is_split() || IsSharedTwice(x, placement.dim())) return Value();
              const int64_t dim = placement.dim(), other = WholeDim(x, axis.size);
              if (other >= 0) {
                x = insert("all_to_all", x, with({{"concat_dim", dim}, {"split_dim", other}}), before);
                return insert("all_to_all", x, with({{"concat_dim", other}, {"split_dim", dim}}), before);
              }
              const AttributeMap rooted = with({{"dim", dim}, {"root", int64_t{0}}});
              return insert("collective_scatter", insert("collective_gather", x, rooted, before), rooted, before);
            };
            for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
              Node& node = *it++;
              for (size_t i = 0; i < node.operands().size(); ++i) {
                for (const MeshAxis& axis : graph.mesh().axes()) {
                  const Value back = axis.size == 1 ? Value() : around(node.operand(i), axis, &node);
                  if (!back) continue;
                  graph.SetOperand(&node, i, back);
                  ++count;
                }
              }
            }
            return count > 0;
          },
          passes::Keeps::kEveryValue, /*needs_mesh=*/true};
}

TEST_P(RandomGraphOnMeshTest, MeansTheSameWhereValuesAreSentAround) {
  std::map<std::string, int> num_sent;
  Run({passes::Distribute(options().mesh), SendAround(&num_sent), passes::Localize()});
  for (const OpDef* op : AllOps()) {
    if (op->collective() && TraitsOf(*op->collective()).is_direct()) {
      EXPECT_GT(num_sent[op->name()], 0) << "SendAround inserts no " << op->name();
    }
  }
}

// simplify removes the collectives that were inserted.
TEST_P(RandomGraphOnMeshTest, MeansTheSameWhereWhatComesBackIsNotSent) {
  std::map<std::string, int> num_sent;
  std::map<std::string, int> num_changed = Run({passes::Distribute(options().mesh), SendAround(&num_sent),
                                                passes::Simplify(), passes::Dce(), passes::Localize()});
  EXPECT_GT(num_changed["simplify"], 0);
}

// Cuts the graph into stages of a pipeline if it has enough nodes.
passes::Pass CutWhereThatCanBe(int64_t stages) {
  return {"cut",
          [stages](Graph& graph) -> absl::StatusOr<bool> {
            absl::StatusOr<Graph> cut = passes::CutGraphIntoStages(graph, {.stages = stages});
            const bool has_too_few = cut.status().message().find("is to be cut into") != std::string::npos;
            if (has_too_few) return false;
            RETURN_IF_ERROR(cut.status());
            graph = *std::move(cut);
            return true;
          },
          passes::Keeps::kMeaning, /*needs_mesh=*/true};
}

TEST_P(RandomGraphOnMeshTest, MeansTheSameInStages) {
  const int64_t stages = options().optimize ? 3 : 2;
  std::map<std::string, int> num_changed =
      Run({passes::Distribute(options().mesh), passes::Dce(), CutWhereThatCanBe(stages), passes::Simplify(),
           passes::Cse(), passes::Dce(), passes::Localize()},
          /*num_known=*/2);
  EXPECT_GT(static_cast<uint64_t>(num_changed["cut"]), num_graphs / 4);
}

// Computes sums over ranks in a roundabout way: as the difference of two sums, or with a row that is then cut off.
passes::Pass SumRoundabout() {
  return {"sum-roundabout",
          [](Graph& graph) -> absl::StatusOr<bool> {
            int count = 0;
            for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
              Node& reduce = *it++;
              if (!reduce.Is("all_reduce") || reduce.attr<std::string>("kind") != "sum") continue;
              const Value x = reduce.operand(0);
              if (SizeOf(x.dtype()) < 4) continue;  // parts of sums are not rounded to 16 bits
              Builder b(graph, &reduce);
              const auto sum = [&](Value parts) { return b.Op("all_reduce", {parts}, reduce.attributes()); };
              const bool is_split = std::any_of(x.placements().begin(), x.placements().end(),
                                                [](const auto& each) { return each.second.is_split(); });
              Value found;
              if (count++ % 2 == 0 || x.shape().rank() == 0 || is_split) {
                found = b.Sub(sum(b.Add(x, x)), sum(x));
              } else {
                const std::vector<int64_t> ones(x.shape().dims().size(), 1), zeros(ones.size(), 0);
                std::vector<int64_t> limit = x.shape().dims();
                for (int64_t& each : limit) ++each;
                found = b.Slice(sum(b.Pad(x, ones, zeros)), ones, limit);
              }
              RETURN_IF_ERROR(b.status());
              graph.ReplaceUses(reduce.result(), found);
              graph.Erase(&reduce);
            }
            return count > 0;
          },
          passes::Keeps::kMeaning, /*needs_mesh=*/true};
}

TEST_P(RandomGraphOnMeshTest, MeansTheSameWhereSumsAreReducedTogether) {
  std::map<std::string, int> num_changed =
      Run({passes::Distribute(options().mesh), SumRoundabout(), passes::Simplify(), passes::Dce(), passes::Localize()});
  EXPECT_GT(num_changed["sum-roundabout"], 0);
  EXPECT_GE(num_changed["simplify"], num_changed["sum-roundabout"]);
}

// Gathers the factors of all products, even where they are larger than the product.
TEST_P(RandomGraphOnMeshTest, MeansTheSameWhereFactorsAreGathered) {
  std::map<std::string, int> num_changed = Run({passes::Distribute(options().mesh), passes::Dce(),
                                                passes::GatherFactors({.ignore_cost = true}), passes::Localize()});
  EXPECT_GT(num_changed["gather-factors"], 0);
}

TEST_P(RandomGraphOnMeshTest, MeansTheSameWhereTooMuchMoves) {
  std::map<std::string, int> num_changed = Run({passes::Distribute(options().mesh), MoveTooMuch(),
                                                passes::FormReduceScatters(), passes::Dce(), passes::Localize()});
  EXPECT_GT(num_changed["move-too-much"], 0);
  EXPECT_EQ(num_changed["form-reduce-scatters"], num_changed["move-too-much"]);
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

passes::Pass Accumulate(int64_t micro_batches) {
  return {"accumulate", [micro_batches](Graph& graph) -> absl::StatusOr<bool> {
            RETURN_IF_ERROR(passes::AccumulateGradients(graph, micro_batches));
            return true;
          }};
}

// True for a program with a batch and without batch normalisation, whose statistics are per micro-batch.
bool IsOfMicroBatches(const Graph& graph) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(),
                     [](const Input& input) { return input.is_data() && input.value.placement("data").is_split(); }) &&
         std::none_of(graph.nodes().begin(), graph.nodes().end(),
                      [](const Node& node) { return node.attributes().contains("statistics"); });
}

// Checks on ranks too, except if ranks would have to communicate within a loop.
absl::Status CheckMicroBatches(const RandomProgram& program, int64_t micro_batches, int* num_shared) {
  if (!IsOfMicroBatches(program.graph)) return absl::OkStatus();
  const passes::Pass accumulate = Accumulate(micro_batches);
  RETURN_IF_ERROR(CheckPasses(program, {accumulate}));
  const absl::Status on_ranks =
      CheckOnRanks(program, {accumulate, passes::Distribute(Mesh({{"data", kBatch / micro_batches}}))});
  if (on_ranks.message().find("would have to communicate within the loop") != std::string::npos)
    return absl::OkStatus();
  ++*num_shared;
  return on_ranks;
}

// Any program with a batch can be cut into micro-batches, not only training steps.
TEST(RandomGraphsTest, MeanTheSameInMicroBatches) {
  int num_cut = 0, num_shared = 0;
  for (uint64_t seed = first_seed; seed < first_seed + num_graphs; ++seed) {
    const RandomProgram program = MakeRandomProgram(seed, {.max_nodes = seed % 4 == 0 ? 6 : 24, .batch = kBatch});
    const int64_t micro_batches = seed % 2 == 0 ? 2 : 3;
    const auto fails = [&](const RandomProgram& smaller) {
      return !CheckMicroBatches(smaller, micro_batches, &num_shared).ok();
    };
    num_cut += IsOfMicroBatches(program.graph);
    if (!fails(program)) continue;
    const RandomProgram smallest = Shrink(program, fails);
    const std::string path = WriteReproducer(smallest, "", "random_micro_batches." + std::to_string(seed));
    FAIL() << "seed " << seed << ", " << micro_batches
           << " micro-batches: " << CheckMicroBatches(smallest, micro_batches, &num_shared).message() << "\n"
           << smallest.graph.ToString() << "written with its inputs to " << path;
  }
  EXPECT_GE(static_cast<uint64_t>(num_cut) * 2, num_graphs);
  EXPECT_GE(num_shared * 4, num_cut);
}

constexpr uint64_t kMany = 1000;

// The generator reaches every op, except those for which WhyNotDrawn gives a reason.
TEST(RandomGraphsTest, HoldEveryOp) {
  if (UnderSanitizer()) GTEST_SKIP() << "is about the graphs, not about memory";
  std::map<std::string, int> one_rank, mesh;  // number of times that an op is drawn
  for (uint64_t seed = 0; seed < kMany; ++seed) {
    const RandomProgram program = ProgramOf(seed), of_mesh = MeshProgramOf(seed, Mesh({{"model", 2}, {"data", 3}}));
    for (const Node& node : program.graph.nodes()) ++one_rank[node.op_name()];
    for (const Node& node : of_mesh.graph.nodes()) ++mesh[node.op_name()];
  }
  for (const OpDef* op : AllOps()) {
    const std::string reason = WhyNotDrawn(*op);
    for (const auto* drawn : {&one_rank, &mesh}) {
      const auto found = drawn->find(op->name());
      EXPECT_EQ(found != drawn->end(), reason.empty())
          << op->name() << (drawn == &mesh ? " of meshes " : " ") << reason;
    }
  }
}

bool HasTie(const Tensor& tensor) {
  int64_t num_largest = 0;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) num_largest += tensor.At(i) == LargestOf(tensor);
  return num_largest > 1;
}

// Graphs contain statistics of the whole batch and of each rank's part.
TEST(RandomGraphsTest, HoldStatisticsOfRanks) {
  if (UnderSanitizer()) GTEST_SKIP() << "is about the graphs, not about memory";
  std::map<std::string, int> num_nodes;
  for (uint64_t seed = 0; seed < kMany; ++seed) {
    const RandomProgram program = MeshProgramOf(seed, Mesh({{"data", 2}}));
    for (const Node& node : program.graph.nodes()) {
      if (node.attributes().contains("statistics"))
        ++num_nodes[node.op_name() + " " + node.attr<std::string>("statistics")];
    }
  }
  for (const char* of :
       {"batch_norm_training global", "batch_norm_training rank", "batch_norm_grad global", "batch_norm_grad rank"})
    EXPECT_GE(num_nodes[of], 3) << of;
}

// Graphs contain equal floats where a comparison, or a maximum's gradient, has to choose.
TEST(RandomGraphsTest, HoldTies) {
  if (UnderSanitizer()) GTEST_SKIP() << "is about the graphs, not about memory";
  std::map<std::string, int> num_ties;
  for (uint64_t seed = 0; seed < kMany; ++seed) {
    const RandomProgram program = ProgramOf(seed);
    for (const Node& node : program.graph.nodes()) {
      for (size_t i = 0; i < program.inputs.size() && !node.operands().empty(); ++i) {
        const bool is_float_input =
            node.operand(0) == program.graph.inputs()[i].value && IsFloat(node.operand(0).dtype());
        if (is_float_input && HasTie(program.inputs[i])) ++num_ties[node.op_name()];
      }
    }
  }
  for (const char* op : {"max_pool_grad", "reduce_max", "compare"}) EXPECT_GE(num_ties[op], 1) << op;
}

TEST(RandomGraphsTest, AreTheSameForTheSameSeed) {
  EXPECT_EQ(ProgramOf(17).graph.ToString(), ProgramOf(17).graph.ToString());
  EXPECT_NE(ProgramOf(17).graph.ToString(), ProgramOf(18).graph.ToString());
}

// A pass with a bug is found, and the reduced graph is small.
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

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::RunTestsOfSeeds(argc, argv, lockstep::num_graphs, lockstep::first_seed);
}
