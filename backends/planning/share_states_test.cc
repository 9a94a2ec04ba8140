// The states that ranks share, and their program afterwards.

#include "backends/planning/share_states.h"

#include "core/local_types.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Has states that ranks update by slices, that none updates, and that all update in the same way.
constexpr char kBefore[] = R"(mesh {data=2}
local graph @step(%g: f32[2,3] split(0), state %w: f32[4,3], state %w.part: f32[1], state %frozen: f32[4], state %v: f32[4,3], state %n: f32[]) -> (%w: f32[4,3], %v: f32[4,3], %n: f32[]) {
  %s = shard %w {axis=data, dim=0} : f32[2,3] split(0)
  %t = shard %v {axis=data, dim=0} : f32[2,3] split(0)
  %a = sub %s, %g : f32[2,3] split(0)
  %b = sub %t, %a : f32[2,3] split(0)
  %w1, %v1 = all_gather %a, %b {axis=data, bucket=0, dim=0} : f32[4,3], f32[4,3]
  %n1 = neg %n : f32[]
  return %w1, %v1, %n1
}
)";

constexpr char kAfter[] = R"(mesh {data=2}
local graph @step(%g: f32[2,3] split(0), state %w: f32[4,3], state %w.part: f32[1], state %frozen: f32[4], state %v: f32[4,3], state %n: f32[], state %w.part1: f32[2,3] split(0), state %v.part: f32[2,3] split(0)) -> (%n: f32[], %w.part1: f32[2,3] split(0), %v.part: f32[2,3] split(0)) {
  %a = sub %w.part1, %g : f32[2,3] split(0)
  %b = sub %v.part, %a : f32[2,3] split(0)
  %n1 = neg %n : f32[]
  return %n1, %a, %b
}
)";

std::string WithAll(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Shares states and returns a description of the shared ones, such as "w by w.part, frozen".
std::string Share(Graph& graph) {
  const auto shared = ShareStates(graph, "data");
  EXPECT_TRUE(shared.ok()) << shared.status();
  std::string said;
  for (const StateToShare& state : *shared) {
    EXPECT_EQ(state.axis, "data");
    said += (said.empty() ? "" : ", ") + state.name + (state.part.empty() ? "" : " by " + state.part);
  }
  return said;
}

Graph Parse(const std::string& text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(ShareStates, ThatAreUpdatedBySlicesOrByNobody) {
  Graph graph = Parse(kBefore);
  EXPECT_EQ(Share(graph), "w by w.part1, w.part, frozen, v by v.part");
  EXPECT_EQ(graph.ToString(), kAfter);
}

TEST(ShareStates, NotWhatIsGatheredForSomethingElseToo) {
  std::string text = WithAll(kBefore, "  %n1 =", "  %read = neg %w1 : f32[4,3]\n  %n1 =");
  text = WithAll(WithAll(text, "-> (", "-> (read: f32[4,3], "), "return ", "return %read, ");
  Graph graph = Parse(text);
  EXPECT_EQ(Share(graph), "w.part, frozen, v by v.part");
  EXPECT_NE(graph.ToString().find("%w1 = all_gather %a {axis=data, bucket=0, dim=0} : f32[4,3]"), std::string::npos)
      << graph.ToString();
}

// Slices of columns are not contiguous in memory.
TEST(ShareStates, NotByColumns) {
  std::string text = WithAll(kBefore, "f32[4,3]", "f32[3,4]");
  text = WithAll(text, "f32[2,3] split(0)", "f32[3,2] split(1)");
  text = WithAll(text, "dim=0", "dim=1");
  Graph graph = Parse(text);
  EXPECT_EQ(Share(graph), "w.part, frozen");
}

// A slice along another dimension is not contiguous in memory, and is taken from the whole.
TEST(ShareStates, SlicesAlongAnotherDimensionStay) {
  std::string text = WithAll(WithAll(kBefore, "[4,3]", "[4,4]"), "[2,3]", "[2,4]");
  text = WithAll(text, "  %n1 =", "  %columns = shard %w {axis=data, dim=1} : f32[4,2] split(1)\n  %n1 =");
  text = WithAll(WithAll(text, "-> (", "-> (columns: f32[4,2] split(1), "), "return ", "return %columns, ");
  Graph graph = Parse(text);
  EXPECT_EQ(Share(graph), "w by w.part1, w.part, frozen, v by v.part");
  EXPECT_NE(graph.ToString().find("%columns = shard %w {axis=data, dim=1} : f32[4,2] split(1)"), std::string::npos)
      << graph.ToString();
}

TEST(ShareStates, NotAlongOneRankOrAnAxisThatIsNotThere) {
  std::string text = WithAll(kBefore, "data=2", "data=1, model=2");
  text = WithAll(text, "f32[2,3]", "f32[4,3]");
  Graph graph = Parse(text);
  EXPECT_EQ(Share(graph), "");
  Graph other = Parse(WithAll(kBefore, "data", "model"));
  EXPECT_EQ(Share(other), "");
}

// Builds a program with two states that ranks along `data` share; each rank updates its parts.
class Sharing {
 public:
  Sharing() {
    program_.mesh = Mesh({{"data", 2}, {"model", 2}});
    for (int number : {0, 1}) {
      const int whole = static_cast<int>(program_.shared.size());
      Storage state, part, next;
      state.kind = part.kind = Storage::Kind::kState;
      state.bytes = 64;
      part.bytes = next.bytes = 32;
      state.index = whole;
      part.index = next.state = whole + 1;
      part.alias_of = wholes_[number] = program_.AddStorage(std::move(state));
      program_.AddStorage(std::move(part));
      nexts_[number] = program_.AddStorage(std::move(next));
      program_.shared.push_back({.axis = 0, .part_of = -1});
      program_.shared.push_back({.axis = 0, .part_of = whole});
    }
  }

  Sharing& Read(int state) {
    Added().reads = {wholes_[state]};
    return *this;
  }
  Sharing& Write(int state) {
    Added().writes = {nexts_[state]};
    return *this;
  }
  Sharing& Start(CollectiveOp op = CollectiveOp::kAllReduce, int64_t count = 1, int mesh_axis = 0) {
    last_ = CollectiveInfo();
    last_.op = op;
    last_.counts = {count};
    last_.id = program_.num_collectives++;
    last_.mesh_axis = mesh_axis;
    return AddCollective(Instruction::Kind::kStart);
  }
  Sharing& Wait() { return AddCollective(Instruction::Kind::kWait); }

  // Returns the guarded program, such as "read 0, barrier 0, over 0, write 0".
  std::string Guarded() {
    GuardSharedStates(program_);
    std::string text;
    for (const Instruction& each : program_.instructions) {
      text += text.empty() ? "" : ", ";
      if (each.kind == Instruction::Kind::kKernel) {
        text += each.writes.empty() ? "read " : "write ";
        text += each.reads == std::vector{wholes_[1]} || each.writes == std::vector{nexts_[1]} ? "1" : "0";
        continue;
      }
      if (each.kind == Instruction::Kind::kStart)
        text += each.collective.op == CollectiveOp::kBarrier ? "barrier " : "start ";
      else text += each.collective.op == CollectiveOp::kBarrier ? "over " : "wait ";
      text += std::to_string(each.collective.id);
    }
    return text;
  }

 private:
  Instruction& Added() { return program_.instructions.emplace_back(); }
  Sharing& AddCollective(Instruction::Kind kind) {
    Instruction& added = Added();
    added.kind = kind;
    added.collective = last_;
    return *this;
  }

  Program program_;
  int wholes_[2], nexts_[2];
  CollectiveInfo last_;
};

TEST(GuardSharedStates, ACollectiveOfAllRanksIsAsGoodAsABarrier) {
  for (const CollectiveOp op :
       CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.synchronizes(); })) {
    EXPECT_EQ(Sharing().Read(0).Start(op).Wait().Write(0).Guarded(),
              "read 0, start 0, wait 0, write 0, barrier 1, over 1")
        << CollectiveOpName(op);
  }
}

TEST(GuardSharedStates, OneThatSomeRanksNeedNotAwaitIsNot) {
  const std::string guarded = "read 0, barrier 0, start 1, wait 1, over 0, write 0, barrier 2, over 2";
  const auto needs_barrier = [](const CollectiveTraits& traits) { return traits.moves_data && !traits.synchronizes(); };
  for (const CollectiveOp op : CollectiveOpsWith(needs_barrier))
    EXPECT_EQ(Sharing().Read(0).Start(op).Wait().Write(0).Guarded(), guarded) << CollectiveOpName(op);
  EXPECT_EQ(Sharing().Read(0).Start(CollectiveOp::kAllReduce, 0).Wait().Write(0).Guarded(), guarded)
      << "of no elements";
  EXPECT_EQ(Sharing().Read(0).Start(CollectiveOp::kAllReduce, 1, /*mesh_axis=*/1).Wait().Write(0).Guarded(), guarded);
}

TEST(GuardSharedStates, NorIsOneThatStartsBeforeTheReadOrEndsBehindTheWrite) {
  EXPECT_EQ(Sharing().Start().Read(0).Wait().Write(0).Guarded(),
            "start 0, read 0, barrier 1, wait 0, over 1, write 0, barrier 2, over 2");
  EXPECT_EQ(Sharing().Read(0).Start().Write(0).Wait().Guarded(),
            "read 0, barrier 0, start 1, over 0, write 0, barrier 2, wait 1, over 2");
}

TEST(GuardSharedStates, StatesThatAreReadBeforeOneIsWrittenHaveOneBarrier) {
  EXPECT_EQ(Sharing().Read(0).Read(1).Write(0).Write(1).Guarded(),
            "read 0, read 1, barrier 0, over 0, write 0, write 1, barrier 1, over 1");
}

TEST(GuardSharedStates, TheLastWriteOfAllIsFollowedByAMeeting) {
  EXPECT_EQ(Sharing().Read(0).Read(1).Write(0).Write(1).Start().Wait().Write(0).Guarded(),
            "read 0, read 1, barrier 0, over 0, write 0, write 1, start 1, wait 1, write 0, barrier 2, over 2");
}

}  // namespace
}  // namespace lockstep
