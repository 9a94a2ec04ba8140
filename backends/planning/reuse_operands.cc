#include "backends/planning/reuse_operands.h"

#include <algorithm>

namespace lockstep {
namespace {

// Returns true if instruction `at` is the last to access `root`, a temporary in the arena, and has it as exactly one
// read and no write.
bool IsSpent(const Program& program, const std::vector<Lifetime>& lifetimes, int at, int root) {
  const Instruction& instruction = program.instructions[static_cast<size_t>(at)];
  const auto is_root = [&](int id) { return program.Root(id) == root; };
  return program.storage(root).InArena() && lifetimes[static_cast<size_t>(root)].end() == at &&
         std::count_if(instruction.reads.begin(), instruction.reads.end(), is_root) == 1 &&
         std::none_of(instruction.writes.begin(), instruction.writes.end(), is_root);
}

}  // namespace

void ReuseOperands(Program& program) {
  std::vector<Lifetime> lifetimes = Lifetimes(program);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const int at = static_cast<int>(i);
    for (const auto& [write, read] : instruction.may_overwrite) {
      const int result = instruction.writes[static_cast<size_t>(write)];
      const int operand = program.Root(instruction.reads[static_cast<size_t>(read)]);
      Storage& storage = program.storage(result);
      Lifetime& lifetime = lifetimes[static_cast<size_t>(result)];
      if (!storage.InArena() || lifetime.begin() != at || storage.bytes != program.storage(operand).bytes) continue;
      if (!IsSpent(program, lifetimes, at, operand)) continue;
      storage.alias_of = operand;
      lifetimes[static_cast<size_t>(operand)].last_write = std::max(at, lifetime.last_write);
      lifetimes[static_cast<size_t>(operand)].last_read = std::max(at, lifetime.last_read);
    }
  }
}

}  // namespace lockstep
