#include "backends/planning/program.h"

namespace lockstep {

Instruction Program::CopyTo(Storage target, int source) {
  target.kind = Storage::Kind::kTemporary;
  target.index = target.alias_of = target.bucket = -1;
  Instruction instruction;
  instruction.kind = Instruction::Kind::kCopy;
  instruction.is_loop = true;
  instruction.work.bytes = 2 * target.bytes;
  instruction.read = {target.bytes};
  instruction.reads = {source};
  instruction.writes = {AddStorage(std::move(target))};
  return instruction;
}

uint64_t Program::KernelsConstantBytes() const {
  uint64_t bytes = 0;
  for (const Instruction& instruction : instructions) bytes += instruction.kernel.constant_bytes;
  return bytes;
}

std::vector<Lifetime> Lifetimes(const Program& program) {
  std::vector<Lifetime> lifetimes(program.storages.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const int at = static_cast<int>(i);
    for (int id : program.instructions[i].writes) {
      Lifetime& lifetime = lifetimes[static_cast<size_t>(program.Root(id))];
      if (lifetime.first_write < 0) lifetime.first_write = at;
      lifetime.last_write = at;
    }
    for (int id : program.instructions[i].reads) lifetimes[static_cast<size_t>(program.Root(id))].last_read = at;
  }
  return lifetimes;
}

}  // namespace lockstep
