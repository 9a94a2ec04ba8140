#include "backends/planning/least_bytes.h"

#include <algorithm>
#include <map>
#include <set>

namespace lockstep {
namespace {

// The values that enter and leave the loops of one level, by root storage.
struct Level {
  std::map<int, uint64_t> read;  // with the bytes that its loops need
  std::set<int> written;
};

bool IsKernel(const Instruction& instruction) {
  return instruction.kind == Instruction::Kind::kKernel || instruction.kind == Instruction::Kind::kCopy;
}

}  // namespace

uint64_t LeastBytes(const Program& program) {
  const auto bytes_of = [&](int root) { return program.storage(root).bytes; };
  std::vector<int> level_of(program.storages.size(), 0);  // by root: the level from which on it can be read
  std::vector<int> made_in(program.storages.size(), -1);  // by root: the level whose loops write it
  std::map<int, Level> levels;
  std::set<int> needed;  // roots that loops of another level or other kernels read, and what outlives the run
  for (const ProgramOutput& output : program.outputs) needed.insert(program.Root(output.storage));
  uint64_t bytes = 0;
  for (const Instruction& instruction : program.instructions) {
    std::map<int, uint64_t> reads;
    std::set<int> writes;
    for (size_t i = 0; i < instruction.reads.size(); ++i)
      reads[program.Root(instruction.reads[i])] += IsKernel(instruction) ? instruction.read[i] : 0;
    for (int id : instruction.writes) writes.insert(program.Root(id));
    int level = 0;
    for (const auto& [root, part] : reads) level = std::max(level, level_of[static_cast<size_t>(root)]);
    for (int root : writes) level = std::max(level, level_of[static_cast<size_t>(root)]);  // a part of it
    if (instruction.is_loop) {
      for (const auto& [root, part] : reads) {
        if (made_in[static_cast<size_t>(root)] == level) continue;
        levels[level].read[root] += part;
        needed.insert(root);
      }
      for (int root : writes) {
        levels[level].written.insert(root);
        made_in[static_cast<size_t>(root)] = level;
        level_of[static_cast<size_t>(root)] = level;
      }
      continue;
    }
    for (const auto& [root, part] : reads) needed.insert(root);
    if (IsKernel(instruction)) bytes += instruction.work.bytes;
    for (int root : writes) level_of[static_cast<size_t>(root)] = level + 1;
  }
  for (const auto& [number, level] : levels) {
    for (const auto& [root, part] : level.read) bytes += std::min(part, bytes_of(root));
    for (int root : level.written) bytes += needed.count(root) ? bytes_of(root) : 0;
  }
  return bytes;
}

}  // namespace lockstep
