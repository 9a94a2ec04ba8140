#include "backends/planning/rematerialize.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backends/planning/buffer_plan.h"
#include "backends/planning/recompute_plan.h"
#include "backends/planning/reuse_operands.h"

namespace lockstep {
namespace {

// The number of budgets that are tried between the smallest possible and the program's own size.
constexpr uint64_t kBudgets = 32;

// Returns the parts of the program that planning an arena needs: all except the code of kernels and the constants.
Program Outline(const Program& program) {
  Program outline;
  outline.storages = program.storages;
  outline.states = program.states;
  outline.shared = program.shared;
  for (const Instruction& instruction : program.instructions) outline.instructions.push_back(instruction.WithoutRun());
  return outline;
}

// Returns the size of the program's arena after operands are reused.
uint64_t PlannedBytes(const Program& program) {
  Program outline = Outline(program);
  ReuseOperands(outline);
  return ArenaBytes(outline);
}

// Returns a second instruction that runs the same kernel. The two instructions run one after the other.
Instruction RunAgain(Instruction& instruction) {
  Instruction again = instruction.WithoutRun();
  again.kernel.constant_bytes = 0;  // shared with the first run
  if (!instruction.kernel.run) return again;
  auto run = std::make_shared<decltype(Kernel::run)>(std::move(instruction.kernel.run));
  for (Instruction* each : {&instruction, &again})
    each->kernel.run = [run](const KernelArgs& args) { return (*run)(args); };
  return again;
}

// Rewrites the program according to a plan.
class Rewriter {
 public:
  Rewriter(Program& program, const RecomputeFacts& facts) : program_(program), facts_(facts) {}

  void Run(const RecomputePlan& plan) {
    std::vector<Instruction> first = std::move(program_.instructions);
    // An instruction runs again only after its first run, so the first run is already in the new list.
    std::vector<size_t> place(first.size());
    program_.instructions.clear();
    for (const RecomputeEvent& event : plan.events) {
      const auto at = static_cast<size_t>(event.position);
      if (event.again) {
        Instruction again = RunAgain(program_.instructions[place[at]]);
        // The operands are those of the first run, under the names that hold them now.
        again.reads = Resolved(original_reads_.at(at));
        RecomputeValue(again, event.revived);
        program_.instructions.push_back(std::move(again));
        continue;
      }
      place[at] = program_.instructions.size();
      original_reads_.emplace(at, first[at].reads);
      first[at].reads = Resolved(first[at].reads);
      program_.instructions.push_back(std::move(first[at]));
    }
  }

 private:
  int CurrentRoot(int root) const {
    const auto it = current_.find(root);
    return it == current_.end() ? root : it->second;
  }

  // Returns the storages that now hold what `ids` held in the original program.
  std::vector<int> Resolved(const std::vector<int>& ids) {
    std::vector<int> now;
    for (int id : ids) now.push_back(Resolve(id));
    return now;
  }
  int Resolve(int id) {
    const int root = program_.Root(id), now = CurrentRoot(root);
    if (now == root) return id;
    if (id == root) return now;
    const auto [it, is_new] = aliases_.emplace(std::pair(id, now), -1);
    if (is_new) {
      const int of = Resolve(program_.storage(id).alias_of);
      Storage alias = program_.storage(id);
      alias.alias_of = of;
      it->second = program_.AddStorage(std::move(alias));
    }
    return aliases_.at({id, now});
  }

  // Gives the results of `again` new storages.
  void RecomputeValue(Instruction& again, const std::vector<int>& revived) {
    for (int& id : again.writes) {
      const int root = program_.Root(id), value = facts_.ValueOf(root);
      const bool is_wanted = value >= 0 && std::find(revived.begin(), revived.end(), value) != revived.end();
      if (is_wanted) current_[root] = AddTemporary(root);
      id = is_wanted ? Resolve(id) : AddTemporary(id);
    }
  }
  int AddTemporary(int like) {
    Storage storage = program_.storage(like);
    storage.kind = Storage::Kind::kTemporary;
    storage.name += "'";
    storage.index = storage.alias_of = storage.bucket = storage.state = storage.result = -1;
    return program_.AddStorage(std::move(storage));
  }

  Program& program_;
  const RecomputeFacts& facts_;
  std::map<int, int> current_;                         // by root storage that was recomputed: its current storage
  std::map<std::pair<int, int>, int> aliases_;         // by a name and the root that it refers to now
  std::map<size_t, std::vector<int>> original_reads_;  // by position in the original program
};

uint64_t BytesTouched(const Program& program, const Instruction& instruction) {
  uint64_t bytes = 0;
  for (const std::vector<int>* ids : {&instruction.reads, &instruction.writes}) {
    for (int id : *ids) bytes += program.storage(id).bytes;
  }
  return bytes;
}

Recomputation WorkOf(const Program& program, const RecomputePlan* plan) {
  Recomputation work;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != Instruction::Kind::kKernel && instruction.kind != Instruction::Kind::kCopy) continue;
    ++work.all_kernels;
    work.all_flops += instruction.work.operations;
    work.all_bytes += static_cast<double>(BytesTouched(program, instruction));
  }
  if (plan == nullptr) return work;
  for (const RecomputeEvent& event : plan->events) {
    if (!event.again) continue;
    const Instruction& instruction = program.instructions[static_cast<size_t>(event.position)];
    ++work.kernels;
    work.flops += instruction.work.operations;
    work.bytes += static_cast<double>(BytesTouched(program, instruction));
  }
  return work;
}

// The plan of the program for one budget, and the resulting arena.
struct Trial {
  RecomputePlan plan;
  uint64_t arena = 0;
};

class Search {
 public:
  explicit Search(const Program& program) : program_(program), facts_(program), whole_(PlannedBytes(program)) {}

  const RecomputeFacts& facts() const { return facts_; }

  // Returns the plan of the largest budget whose arena fits in `bytes`, if there is one. The smallest arena that does
  // not fit is kept in least().
  std::optional<RecomputePlan> Fitting(uint64_t bytes) {
    for (uint64_t budget : Budgets()) {
      std::optional<Trial> trial = Try(budget);
      if (!trial) continue;
      if (trial->arena <= bytes) return std::move(trial->plan);
      if (!least_ || trial->arena < least_->arena) least_ = std::move(trial);
    }
    return std::nullopt;
  }
  // The smallest of all that Fitting tried; empty if nothing can be recomputed.
  const std::optional<Trial>& least() const { return least_; }
  uint64_t whole() const { return whole_; }

 private:
  // Returns budgets from the program's own size down to the smallest that a walk can keep to. They do not depend on the
  // wanted size, so that the same plan is found again for the arena of an earlier one.
  std::vector<uint64_t> Budgets() const {
    uint64_t low = 0, high = whole_;  // high suffices
    while (!PlanRecomputation(facts_, high)) high += high / 4 + kBufferAlignment;
    const uint64_t most = high;
    while (high - low > std::max(kBufferAlignment, most / 512)) {
      const uint64_t middle = low + (high - low) / 2;
      (PlanRecomputation(facts_, middle) ? high : low) = middle;
    }
    std::vector<uint64_t> budgets;
    for (uint64_t i = kBudgets + 1; i-- > 0;) budgets.push_back(high + (most - high) / kBudgets * i);
    return budgets;
  }

  std::optional<Trial> Try(uint64_t budget) const {
    std::optional<RecomputePlan> plan = PlanRecomputation(facts_, budget);
    if (!plan) return std::nullopt;
    Program outline = Outline(program_);
    Rewriter(outline, facts_).Run(*plan);
    return Trial{*std::move(plan), PlannedBytes(outline)};
  }

  const Program& program_;
  const RecomputeFacts facts_;
  const uint64_t whole_;
  std::optional<Trial> least_;
};

}  // namespace

Rematerialization Rematerialize(Program& program, uint64_t bytes) {
  Rematerialization done;
  done.work = WorkOf(program, nullptr);
  Search search(program);
  done.whole = done.least = search.whole();
  done.fits = search.whole() <= bytes;
  if (done.fits) return done;
  std::optional<RecomputePlan> plan = search.Fitting(bytes);
  done.fits = plan.has_value();
  if (!plan && search.least() && search.least()->arena < search.whole()) {
    done.least = search.least()->arena;
    plan = search.least()->plan;
  }
  if (!plan) return done;
  done.work = WorkOf(program, &*plan);
  Rewriter(program, search.facts()).Run(*plan);
  return done;
}

}  // namespace lockstep
