#include "backends/planning/share_states.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/check.h"
#include "core/op_def.h"

namespace lockstep {
namespace {

bool Is(const Node& node, const char* op, const std::string& axis) {
  return node.Is(op) && node.attr<std::string>("axis") == axis;
}

// --- The graph ----------------------------------------------------------------------------------------------------

class Sharer {
 public:
  Sharer(Graph& graph, const std::string& axis) : graph_(graph), axis_(axis) {}

  absl::StatusOr<std::vector<StateToShare>> Run() {
    std::vector<Value> states;
    for (const Input& input : graph_.inputs()) {
      if (input.is_state && input.value.placement(axis_).is_replicated()) states.push_back(input.value);
    }
    std::vector<StateToShare> shared;
    for (Value state : states) {
      const Result* const result = graph_.FindResult(state.name(), true);
      if (result == nullptr || result->value == state) {
        shared.push_back({state.name(), "", axis_});
      } else if (IsGatheredFor(*result)) {
        ASSIGN_OR_RETURN(std::string part, Split(state, result - graph_.results().data()));
        shared.push_back({state.name(), std::move(part), axis_});
      }
    }
    return shared;
  }

 private:
  // Returns true if its slices are gathered for this result alone, and are adjacent in memory.
  bool IsGatheredFor(const Result& result) const {
    const Node& node = *result.value.node;
    if (!Is(node, "all_gather", axis_) || !result.value.shape().IsOutermost(node.attr<int64_t>("dim"))) return false;
    const auto is_it = [&](Value value) { return value == result.value; };
    const bool is_read = std::any_of(node.users().begin(), node.users().end(), [&](const Node* user) {
      return std::any_of(user->operands().begin(), user->operands().end(), is_it);
    });
    return !is_read && std::count_if(graph_.results().begin(), graph_.results().end(),
                                     [&](const Result& each) { return is_it(each.value); }) == 1;
  }

  // Adds the rank's part as a state. It is read and updated instead of slices of the whole.
  absl::StatusOr<std::string> Split(Value state, std::ptrdiff_t result) {
    const Value next = graph_.results()[static_cast<size_t>(result)].value;
    Node* const gather = next.node;
    const int64_t dim = gather->attr<int64_t>("dim");
    const Value slice = gather->operand(static_cast<size_t>(next.index));
    PlacementMap placements = state.placements();
    placements[axis_] = Placement::Split(dim);
    ASSIGN_OR_RETURN(const Value part, AddPart(state.name(), slice.type(), placements));
    for (Node* user : std::vector<Node*>(state.node->users())) {
      if (!Is(*user, "shard", axis_) || user->attr<int64_t>("dim") != dim) continue;
      graph_.ReplaceUses(user->result(), part);
      graph_.Erase(user);
    }
    graph_.RemoveResult(static_cast<size_t>(result));
    // `slice` may have been the state's own slice, which is now the part.
    const Value kept = gather->operand(static_cast<size_t>(next.index));
    RETURN_IF_ERROR(DropOperand(gather, static_cast<size_t>(next.index)));
    RETURN_IF_ERROR(graph_.AddStateResult(part.name(), kept, std::move(placements)));
    return part.name();
  }

  absl::StatusOr<Value> AddPart(const std::string& state, const TensorType& type, const PlacementMap& placements) {
    std::string name = state + ".part";
    absl::StatusOr<Value> part = graph_.AddInput(name, type, true, placements);
    for (int i = 1; !part.ok() && i < 1000; ++i)  // the model may have a value with this name
      part = graph_.AddInput(name + std::to_string(i), type, true, placements);
    return part;
  }

  // Replaces a collective by one without one of its operands, whose result is not used.
  absl::Status DropOperand(Node* node, size_t dropped) {
    NodeSpec spec = CopyOf(*node, Identity(*node));
    const auto erase = [&](auto& of_each) {
      if (!of_each.empty()) of_each.erase(of_each.begin() + static_cast<std::ptrdiff_t>(dropped));
    };
    erase(spec.operands);
    erase(spec.names);
    erase(spec.placements);
    // the names are taken until the node is erased
    const std::vector<std::string> names = std::exchange(spec.names, {});
    if (spec.operands.empty()) {
      graph_.Erase(node);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(Node* const rest, graph_.Insert(std::move(spec), node));
    for (size_t i = 0; i < rest->num_results(); ++i)
      graph_.ReplaceUses(node->result(i < dropped ? i : i + 1), rest->result(i));
    graph_.Erase(node);
    for (size_t i = 0; i < names.size(); ++i) graph_.SetName(rest->result(i), names[i]);
    return absl::OkStatus();
  }

  static ValueMap Identity(const Node& node) {
    ValueMap map;
    for (Value operand : node.operands()) map.emplace(operand, operand);
    return map;
  }

  Graph& graph_;
  const std::string& axis_;
};

// --- The program --------------------------------------------------------------------------------------------------

int StateOf(const Program& program, const std::string& name) {
  const auto state = std::find_if(program.states.begin(), program.states.end(),
                                  [&](const ValueInfo& info) { return info.name == name; });
  LOCKSTEP_CHECK(state != program.states.end()) << name;
  return static_cast<int>(state - program.states.begin());
}

int StorageOf(const Program& program, int state) {
  const auto storage = std::find_if(program.storages.begin(), program.storages.end(), [&](const Storage& each) {
    return each.kind == Storage::Kind::kState && each.index == state;
  });
  LOCKSTEP_CHECK(storage != program.storages.end()) << state;
  return static_cast<int>(storage - program.storages.begin());
}

// Inserts barriers so that no part of a shared state is written while another rank may read the whole.
class Guard {
 public:
  explicit Guard(Program& program) : program_(program) {
    for (const SharedState& shared : program.shared) axis_ = std::max(axis_, shared.axis);
    for (size_t i = 0; i < program.instructions.size(); ++i) Visit(static_cast<int>(i));
  }

  void Run() {
    std::vector<const Uses*> in_order;
    for (const auto& [whole, uses] : uses_) {
      if (uses.first_write >= 0) in_order.push_back(&uses);
    }
    if (in_order.empty()) return;
    std::sort(in_order.begin(), in_order.end(),
              [](const Uses* a, const Uses* b) { return a->first_write < b->first_write; });
    int last_write = -1;
    for (const Uses* uses : in_order) {
      LOCKSTEP_CHECK(uses->last_read < uses->first_write) << "this rank reads a state that it has updated";
      last_write = std::max(last_write, uses->last_write);
      if (!IsGuarded(uses->last_read, uses->first_write))
        Insert(LastReadBefore(uses->first_write), uses->first_write, "ranks have read the states that they share");
    }
    const auto end = static_cast<int>(program_.instructions.size());
    if (!IsGuarded(last_write, end)) Insert(last_write, end, "ranks have written the states that they share");
    Rewrite();
  }

 private:
  // The uses of a shared state, by positions of instructions; -1: none.
  struct Uses {
    int last_read = -1;                     // of the whole
    int first_write = -1, last_write = -1;  // of the part
  };
  // A collective that synchronizes all ranks: after the wait, all ranks are known to have reached its start.
  struct Synchronization {
    int start, wait;  // positions of the instructions before which they come
  };

  void Visit(int at) {
    const Instruction& instruction = program_.instructions[static_cast<size_t>(at)];
    for (int id : instruction.reads) {
      int place = id;
      while (program_.storage(place).alias_of >= 0 && program_.storage(place).kind != Storage::Kind::kState)
        place = program_.storage(place).alias_of;
      const Storage& storage = program_.storage(place);
      if (storage.kind == Storage::Kind::kState && storage.alias_of < 0 && IsShared(storage.index))
        uses_[storage.index].last_read = at;
    }
    for (int id : instruction.writes) {
      const int state = program_.storage(program_.Root(id)).state;
      if (state < 0 || !IsShared(state)) continue;
      Uses& uses = uses_[program_.WholeOf(state)];
      if (uses.first_write < 0) uses.first_write = at;
      uses.last_write = at;
    }
    if (instruction.kind == Instruction::Kind::kStart) started_[instruction.collective.id] = at;
    if (instruction.kind == Instruction::Kind::kWait && instruction.collective.mesh_axis == axis_ &&
        SynchronizesAllRanks(instruction.collective))
      synchronizations_.push_back({started_.at(instruction.collective.id), at});
  }

  bool IsShared(int state) const { return program_.shared[static_cast<size_t>(state)].axis >= 0; }

  // Returns true if every rank's result depends on the operands of all ranks.
  static bool SynchronizesAllRanks(const CollectiveInfo& collective) {
    return collective.op == CollectiveOp::kBarrier ||
           (TraitsOf(collective.op).synchronizes() && collective.count() > 0);
  }

  // Returns true if some meeting starts after `from` and is waited for before `to`.
  bool IsGuarded(int from, int to) const {
    return std::any_of(synchronizations_.begin(), synchronizations_.end(),
                       [&](const Synchronization& meeting) { return meeting.start > from && meeting.wait < to; });
  }

  int LastReadBefore(int position) const {
    int last = -1;
    for (const auto& [whole, uses] : uses_) {
      if (uses.first_write >= 0 && uses.last_read < position) last = std::max(last, uses.last_read);
    }
    return last;
  }

  // Adds a barrier that starts after `from` and is waited for before `to`.
  void Insert(int from, int to, const char* label) {
    Instruction start;
    start.kind = Instruction::Kind::kStart;
    start.collective.id = program_.num_collectives++;
    start.collective.op = CollectiveOp::kBarrier;
    start.collective.mesh_axis = axis_;
    start.collective.axis = program_.mesh.axes()[static_cast<size_t>(axis_)].name;
    start.collective.label = label;
    Instruction wait;
    wait.kind = Instruction::Kind::kWait;
    wait.collective = start.collective;
    inserted_.emplace(from + 1, std::move(start));
    inserted_.emplace(to, std::move(wait));
    synchronizations_.push_back({from + 1, to - 1});
  }

  // Adds the inserted instructions, and numbers collectives in the order of their starts.
  void Rewrite() {
    if (inserted_.empty()) return;
    std::vector<Instruction> instructions = std::move(program_.instructions);
    program_.instructions.clear();
    const auto insert_before = [&](size_t position) {
      const auto [begin, end] = inserted_.equal_range(static_cast<int>(position));
      for (auto it = begin; it != end; ++it) program_.instructions.push_back(std::move(it->second));
    };
    for (size_t i = 0; i < instructions.size(); ++i) {
      insert_before(i);
      program_.instructions.push_back(std::move(instructions[i]));
    }
    insert_before(instructions.size());
    std::map<int, int> numbers;
    for (Instruction& instruction : program_.instructions) {
      const bool is_start = instruction.kind == Instruction::Kind::kStart;
      if (!is_start && instruction.kind != Instruction::Kind::kWait) continue;
      int& id = instruction.collective.id;
      if (is_start) numbers.emplace(id, static_cast<int>(numbers.size()));
      id = numbers.at(id);
    }
  }

  Program& program_;
  int axis_ = -1;               // of the mesh, along which ranks share states
  std::map<int, Uses> uses_;    // by whole state
  std::map<int, int> started_;  // by collective: the position of its start
  std::vector<Synchronization> synchronizations_;
  std::multimap<int, Instruction> inserted_;  // by the position before which it is inserted
};

}  // namespace

absl::StatusOr<std::vector<StateToShare>> ShareStates(Graph& graph, const std::string& axis) {
  if (!graph.mesh().has_axis(axis) || *graph.mesh().axis_size(axis) < 2) return std::vector<StateToShare>();
  return Sharer(graph, axis).Run();
}

void MarkShared(Program& program, const std::vector<StateToShare>& states) {
  if (states.empty()) return;
  program.shared.assign(program.states.size(), {});
  const std::vector<MeshAxis>& axes = program.mesh.axes();
  for (const StateToShare& state : states) {
    const auto axis =
        std::find_if(axes.begin(), axes.end(), [&](const MeshAxis& each) { return each.name == state.axis; });
    LOCKSTEP_CHECK(axis != axes.end()) << state.axis;
    const int position = static_cast<int>(axis - axes.begin()), whole = StateOf(program, state.name);
    program.shared[static_cast<size_t>(whole)] = {position, -1};
    if (state.part.empty()) continue;
    const int part = StateOf(program, state.part);
    program.shared[static_cast<size_t>(part)] = {position, whole};
    program.storage(StorageOf(program, part)).alias_of = StorageOf(program, whole);
  }
}

void GuardSharedStates(Program& program) {
  if (!program.shared.empty()) Guard(program).Run();
}

}  // namespace lockstep
