#include "backends/planning/schedule_pulls.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

class PullScheduler {
 public:
  explicit PullScheduler(Program& program) : program_(program) {}

  void Run() {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      if (instruction.kind == Instruction::Kind::kPush) pushed_[instruction.served] = static_cast<int>(i);
      if (instruction.kind == Instruction::Kind::kPull) Place(instruction, static_cast<int>(i));
    }
    if (inserted_.empty()) return;
    std::vector<Instruction> instructions = std::move(program_.instructions);
    program_.instructions.clear();
    for (size_t i = 0; i <= instructions.size(); ++i) {
      const auto [begin, end] = inserted_.equal_range(static_cast<int>(i));
      for (auto it = begin; it != end; ++it) program_.instructions.push_back(std::move(it->second));
      if (i < instructions.size() && instructions[i].kind != Instruction::Kind::kPull)
        program_.instructions.push_back(std::move(instructions[i]));
    }
  }

 private:
  // Chooses the instructions before which the pull starts and is waited for.
  void Place(const Instruction& pull, int position) {
    LOCKSTEP_CHECK(pushed_.contains(pull.served)) << "a pull before its push, of " << pull.source;
    const int old = program_.Root(pull.reads[0]), next = program_.Root(pull.writes[0]);
    const auto count = static_cast<int>(program_.instructions.size());
    int first_use = count, last_read = pushed_.at(pull.served);
    for (int i = 0; i < count; ++i) {
      const Instruction& instruction = program_.instructions[static_cast<size_t>(i)];
      const auto touches = [&](const std::vector<int>& ids, int root) {
        return std::any_of(ids.begin(), ids.end(), [&](int id) { return program_.Root(id) == root; });
      };
      if (i > position && first_use == count && touches(instruction.reads, next)) first_use = i;
      if (i != position && touches(instruction.reads, old)) last_read = std::max(last_read, i);
    }
    const int start = std::min(last_read + 1, first_use);
    Insert(start, Instruction::Kind::kStartPull, pull);
    Insert(first_use, Instruction::Kind::kWaitPull, pull);
  }

  void Insert(int before, Instruction::Kind kind, const Instruction& pull) {
    Instruction half = pull.WithoutRun();
    half.kind = kind;
    half.reads.clear();
    inserted_.emplace(before, std::move(half));
  }

  Program& program_;
  std::map<int, int> pushed_;                 // by served state: the position of its push
  std::multimap<int, Instruction> inserted_;  // by the position before which it is inserted
};

}  // namespace

void SchedulePulls(Program& program) { PullScheduler(program).Run(); }

}  // namespace lockstep
