#include "backends/planning/recompute_plan.h"

#include <algorithm>
#include <limits>
#include <set>

namespace lockstep {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// About this many operations take as long as reading or writing one byte; current processors have ten to fifty.
constexpr double kFlopsPerByte = 16;

// A plan with more than this many times the work of the program is abandoned: the walk might not end.
constexpr double kMostWork = 8;

// The walk. A value is live or was dropped. A dropped value is needed again if it, or a value computed from it, is read
// later.
class Walk {
 public:
  Walk(const RecomputeFacts& facts, uint64_t budget)
      : facts_(facts), budget_(budget), states_(static_cast<size_t>(facts.num_values())), visited_(states_.size(), 0) {
    for (int i = 0; i < facts.num_steps(); ++i) work_left_ += kMostWork * facts.step(i).cost;
    double time = 0;
    for (int i = 0; i < facts.num_steps(); ++i) times_.push_back(time += facts.step(i).cost);
  }

  std::optional<RecomputePlan> Run() {
    for (now_ = 0; now_ < facts_.num_steps(); ++now_) {
      if (!RunStep()) return std::nullopt;
    }
    return std::move(plan_);
  }

 private:
  struct State {
    bool is_live = false, was_written = false;
    int pins = 0;         // running instructions that need it
    size_t next_use = 0;  // the first of the value's uses that has not passed
    int next = kNever;    // the position at which it, or a value computed from it, is needed next
  };

  State& state(int id) { return states_[static_cast<size_t>(id)]; }
  bool HasGone(int id) { return !state(id).is_live && state(id).was_written; }

  // Runs the program's own instruction at now_.
  bool RunStep() {
    const RecomputeFacts::Step& step = facts_.step(now_);
    std::set<int> touched(step.reads.begin(), step.reads.end());
    touched.insert(step.writes.begin(), step.writes.end());
    for (int id : touched) ++state(id).pins;
    for (int id : touched) {
      if (HasGone(id) && !RecomputeValue(id)) return false;
    }
    std::vector<int> written;
    for (int id : step.writes) {
      if (!state(id).was_written) written.push_back(id);
    }
    if (!Make(written, step.scratch, InPlace(step))) return false;
    plan_.events.push_back({now_, false, {}});
    for (int id : touched) {
      State& of = state(id);
      const std::vector<int>& uses = facts_.value(id).uses;
      while (of.next_use < uses.size() && uses[of.next_use] <= now_) ++of.next_use;
      --of.pins;
    }
    for (int id : touched) Settle(id);
    return true;
  }

  // Runs the writer of a dropped value again, after the writers of dropped values that it reads. Other dropped values
  // that it writes become live too, if they are needed.
  bool RecomputeValue(int id) {
    const int position = facts_.value(id).writer;
    if (position < 0) return false;
    const RecomputeFacts::Step& step = facts_.step(position);
    work_left_ -= step.cost;
    if (work_left_ < 0) return false;
    for (int read : step.reads) ++state(read).pins;
    for (int read : step.reads) {
      if (HasGone(read) && !RecomputeValue(read)) return false;
    }
    std::vector<int> revived;
    uint64_t others = step.scratch + step.outside;  // includes writes that are not needed
    for (int write : step.writes) {
      if (write == id || (HasGone(write) && state(write).next != kNever)) revived.push_back(write);
      else others += facts_.value(write).bytes;
    }
    for (int write : revived) ++state(write).pins;
    if (!Make(revived, others, 0)) return false;
    for (int write : revived) --state(write).pins;
    for (int read : step.reads) --state(read).pins;
    for (int read : step.reads) Settle(read);
    plan_.cost += step.cost;
    plan_.events.push_back({position, true, std::move(revived)});
    return true;
  }

  // Returns the bytes that the instruction at now_ writes over its last-used operands.
  uint64_t InPlace(const RecomputeFacts::Step& step) {
    uint64_t bytes = 0;
    std::set<int> taken;
    for (const auto& [write, read] : step.overwrites) {
      const std::vector<int>& uses = facts_.value(read).uses;
      const std::vector<int>& dependents = facts_.value(read).dependents;
      const bool is_needed = std::any_of(dependents.begin(), dependents.end(),
                                         [&](int id) { return HasGone(id) && state(id).next != kNever; });
      if (state(write).was_written || uses.back() != now_ || is_needed) continue;
      if (taken.insert(write).second && taken.insert(read).second) bytes += facts_.value(write).bytes;
    }
    return bytes;
  }

  // Makes room for `values`, which are live from now on and of which `in_place` bytes overwrite operands, and
  // temporarily for `others` bytes.
  bool Make(const std::vector<int>& values, uint64_t others, uint64_t in_place) {
    uint64_t bytes = 0;
    for (int id : values) bytes += facts_.value(id).bytes;
    while (live_bytes_ + bytes + others > budget_ + in_place) {
      const int id = Cheapest();
      if (id < 0) return false;
      Free(id);
      Needed(facts_.value(id).writer);
    }
    live_bytes_ += bytes;
    for (int id : values) {
      state(id).is_live = state(id).was_written = true;
      state(id).next = Next(id);
      if (facts_.value(id).can_be_dropped) may_go_.insert(id);
    }
    return true;
  }

  // Returns the value that may be dropped at the least cost for its bytes and for the time until it is needed; -1 if
  // there is none.
  int Cheapest() {
    int best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (int id : may_go_) {
      const RecomputeFacts::Value& value = facts_.value(id);
      const State& of = state(id);
      if (of.pins > 0 || value.bytes == 0) continue;
      ++visit_;
      const double time = times_[static_cast<size_t>(std::min(of.next, facts_.num_steps() - 1))] -
                          times_[static_cast<size_t>(std::max(now_ - 1, 0))];
      const double score = CostOf(id) / (static_cast<double>(value.bytes) * std::max(time, 1.0));
      if (score < least) {
        least = score;
        best = id;
      }
    }
    return best;
  }

  // Returns the cost of computing a value again, including dropped values that it needs. Each writer is counted once.
  double CostOf(int id) {
    visited_[static_cast<size_t>(id)] = visit_;
    const int writer = facts_.value(id).writer;
    if (writer < 0) return std::numeric_limits<double>::infinity();
    double cost = facts_.step(writer).cost;
    for (int read : facts_.step(writer).reads) {
      if (HasGone(read) && visited_[static_cast<size_t>(read)] != visit_) cost += CostOf(read);
    }
    return cost;
  }

  int Next(int id) {
    const RecomputeFacts::Value& value = facts_.value(id);
    const State& of = state(id);
    int next = of.next_use < value.uses.size() ? value.uses[of.next_use] : kNever;
    for (int dependent : value.dependents) {
      if (HasGone(dependent)) next = std::min(next, state(dependent).next);
    }
    return next;
  }

  // Updates a value whose next use may have changed: frees it if it is not needed, and updates the values that it is
  // computed from.
  void Settle(int id) {
    State& of = state(id);
    if (!of.was_written || of.pins > 0) return;
    const int before = of.next;
    of.next = Next(id);
    if (of.is_live && of.next == kNever) {
      Free(id);
    } else if (!of.is_live && of.next != before) {
      Needed(facts_.value(id).writer);
    }
  }
  void Free(int id) {
    state(id).is_live = false;
    live_bytes_ -= facts_.value(id).bytes;
    may_go_.erase(id);
  }
  void Needed(int writer) {
    if (writer < 0) return;
    for (int read : facts_.step(writer).reads) Settle(read);
  }

  const RecomputeFacts& facts_;
  const uint64_t budget_;
  RecomputePlan plan_;
  std::vector<State> states_;
  std::set<int> may_go_;       // live values that may be dropped
  std::vector<double> times_;  // when each instruction ends, in units of cost
  uint64_t live_bytes_ = 0;
  double work_left_ = 0;
  int now_ = 0;
  std::vector<int> visited_;  // by value: the last visit of CostOf
  int visit_ = 0;
};

// --- Facts -----------------------------------------------------------------------------------------------------------

bool CanRunAgain(const Instruction& instruction) {
  return instruction.kind == Instruction::Kind::kKernel || instruction.kind == Instruction::Kind::kCopy;
}

}  // namespace

RecomputeFacts::RecomputeFacts(const Program& program) {
  AddValues(program);
  AddUses(program);
  FindWriters(program);
  FindDroppable(program);
}

void RecomputeFacts::AddValues(const Program& program) {
  value_of_.assign(program.storages.size(), -1);
  for (size_t id = 0; id < program.storages.size(); ++id) {
    if (!program.storages[id].InArena()) continue;
    value_of_[id] = num_values();
    values_.emplace_back().bytes = AlignUp(program.storages[id].bytes);
  }
}

void RecomputeFacts::AddUses(const Program& program) {
  std::vector<bool> is_written(values_.size(), false);
  for (const Instruction& instruction : program.instructions) {
    const int at = num_steps();
    Step& step = steps_.emplace_back();
    step.scratch = AlignUp(instruction.kernel.scratch_bytes);
    step.cost = 1 + instruction.work.operations / kFlopsPerByte;
    const auto add = [&](const std::vector<int>& ids, std::vector<int>& to) {
      for (int id : ids) {
        const int root = program.Root(id), value = ValueOf(root);
        step.cost += static_cast<double>(program.storage(root).bytes);
        if (value >= 0 && std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
      }
    };
    add(instruction.reads, step.reads);
    add(instruction.writes, step.writes);
    for (int id : instruction.writes) {
      if (ValueOf(program.Root(id)) < 0) step.outside += AlignUp(program.storage(id).bytes);
    }
    for (const auto& [write, read] : instruction.may_overwrite) {
      const int of_write = ValueOf(program.Root(instruction.writes[static_cast<size_t>(write)]));
      const int of_read = ValueOf(program.Root(instruction.reads[static_cast<size_t>(read)]));
      if (of_write < 0 || of_read < 0 || of_write == of_read) continue;
      if (values_[static_cast<size_t>(of_write)].bytes == values_[static_cast<size_t>(of_read)].bytes)
        step.overwrites.emplace_back(of_write, of_read);
    }
    std::set<int> touched(step.reads.begin(), step.reads.end());
    touched.insert(step.writes.begin(), step.writes.end());
    for (int value : touched) {
      if (is_written[static_cast<size_t>(value)]) values_[static_cast<size_t>(value)].uses.push_back(at);
      is_written[static_cast<size_t>(value)] = true;
    }
  }
}

// Finds for each value its only writer, if that can run again: a kernel or a copy that reads nothing in a bucket.
// Collectives change the content of buckets, and their memory is planned without recomputation. The value must not be
// an operand or result of a collective.
void RecomputeFacts::FindWriters(const Program& program) {
  std::vector<int> writes(values_.size(), 0);
  std::vector<bool> is_communicated(values_.size(), false);
  for (int at = 0; at < num_steps(); ++at) {
    const Instruction& instruction = program.instructions[static_cast<size_t>(at)];
    const bool reads_bucket = std::any_of(instruction.reads.begin(), instruction.reads.end(),
                                          [&](int id) { return program.storage(program.Root(id)).bucket >= 0; });
    for (int value : step(at).writes) {
      ++writes[static_cast<size_t>(value)];
      if (CanRunAgain(instruction) && !reads_bucket) values_[static_cast<size_t>(value)].writer = at;
    }
    if (CanRunAgain(instruction)) continue;
    for (const std::vector<int>* values : {&step(at).reads, &step(at).writes}) {
      for (int value : *values) is_communicated[static_cast<size_t>(value)] = true;
    }
  }
  for (size_t id = 0; id < values_.size(); ++id) {
    if (writes[id] != 1 || is_communicated[id]) values_[id].writer = -1;
  }
  for (int at = 0; at < num_steps(); ++at) {
    for (int read : step(at).reads) {
      for (int write : step(at).writes) {
        if (read != write) values_[static_cast<size_t>(read)].dependents.push_back(write);
      }
    }
  }
}

// The operands of a value's writer must be valid at the value's last use: they must not include a state that was
// updated before.
void RecomputeFacts::FindDroppable(const Program& program) {
  std::vector<int> updated(program.states.size(), kNever);  // by state: the position of its update
  for (int at = 0; at < num_steps(); ++at) {
    for (int id : program.instructions[static_cast<size_t>(at)].writes) {
      const Storage& storage = program.storage(program.Root(id));
      if (storage.state < 0) continue;
      int& of_state = updated[static_cast<size_t>(program.WholeOf(storage.state))];
      of_state = std::min(of_state, at);
    }
  }
  std::vector<int> valid(values_.size(), kNever);  // by value: the position until which its writer can run again
  for (int at = 0; at < num_steps(); ++at) {
    int until = kNever;
    for (int id : program.instructions[static_cast<size_t>(at)].reads) {
      const Storage& storage = program.storage(program.Root(id));
      if (storage.kind == Storage::Kind::kState) until = std::min(until, updated[static_cast<size_t>(storage.index)]);
    }
    for (int read : step(at).reads) until = std::min(until, valid[static_cast<size_t>(read)]);
    for (int write : step(at).writes)
      valid[static_cast<size_t>(write)] = std::min(until, valid[static_cast<size_t>(write)]);
  }
  for (size_t id = 0; id < values_.size(); ++id) {
    Value& value = values_[id];
    value.can_be_dropped = value.writer >= 0 && !value.uses.empty() && value.uses.back() < valid[id];
  }
}

std::optional<RecomputePlan> PlanRecomputation(const RecomputeFacts& facts, uint64_t budget) {
  return Walk(facts, budget).Run();
}

}  // namespace lockstep
