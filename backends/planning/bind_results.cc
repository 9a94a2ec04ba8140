#include "backends/planning/bind_results.h"

#include <algorithm>

namespace lockstep {
namespace {

class Binder {
 public:
  explicit Binder(Program& program) : program_(program), lifetimes_(Lifetimes(program)) {
    state_storages_.resize(program.states.size());
    for (size_t id = 0; id < program.storages.size(); ++id) {
      const Storage& storage = program.storages[id];
      if (storage.kind == Storage::Kind::kState)
        state_storages_[static_cast<size_t>(storage.index)] = static_cast<int>(id);
    }
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      if (program.instructions[i].may_refuse) last_refusal_ = static_cast<int>(i);
    }
  }

  void Run() {
    std::vector<const ProgramOutput*> copied_results, copied_states;
    for (const ProgramOutput& output : program_.outputs) {
      if (output.state >= 0 && BindState(output)) continue;
      if (output.state < 0 && BindResult(output)) continue;
      (output.state < 0 ? copied_results : copied_states).push_back(&output);
    }
    // Results are copied first, because they may be old values. If a state's old value becomes another state's next
    // value, it is copied through a temporary.
    for (const ProgramOutput* output : copied_results) {
      Storage target = program_.storage(output->storage);
      target.result = output->info;
      target.state = -1;
      target.name = output->name;
      Copy(output->storage, std::move(target));
    }
    std::vector<std::pair<const ProgramOutput*, int>> sources;
    for (const ProgramOutput* output : copied_states) {
      int source = output->storage;
      if (program_.storage(program_.Root(source)).kind == Storage::Kind::kState) {
        Storage temporary = program_.storage(source);
        source = Copy(source, std::move(temporary));
      }
      sources.emplace_back(output, source);
    }
    for (const auto& [output, source] : sources) {
      Storage target = program_.storage(source);
      target.state = output->state;
      target.result = -1;
      target.name = output->name;
      Copy(source, std::move(target));
    }
  }

 private:
  bool BindResult(const ProgramOutput& output) {
    const int root = program_.Root(output.storage);
    if (!program_.storage(root).InArena()) return false;
    program_.storage(root).result = output.info;
    return true;
  }

  bool BindState(const ProgramOutput& output) {
    const int root = program_.Root(output.storage);
    const int state = state_storages_[static_cast<size_t>(output.state)];
    const int old = program_.Root(state);  // for a part of a state, the whole state, whose readers would see the write
    if (root == old) return true;          // unchanged
    if (!program_.storage(root).InArena() || program_.storage(root).bytes != program_.storage(state).bytes)
      return false;
    for (const ProgramOutput& other : program_.outputs) {
      if (program_.Root(other.storage) == old) return false;  // the old value is needed at the end
    }
    const int written = lifetimes_[static_cast<size_t>(root)].first_write;
    if (written <= last_refusal_) return false;
    const int read = lifetimes_[static_cast<size_t>(old)].last_read;
    if (read > written || (read == written && !MayOverwrite(written, root, old))) return false;
    program_.storage(root).state = output.state;
    return true;
  }

  // Returns true if instruction `at` may write `root` over `old`, and reads `old` only there.
  bool MayOverwrite(int at, int root, int old) const {
    const Instruction& instruction = program_.instructions[static_cast<size_t>(at)];
    const auto is_old = [&](int id) { return program_.Root(id) == old; };
    if (std::count_if(instruction.reads.begin(), instruction.reads.end(), is_old) != 1) return false;
    return std::any_of(instruction.may_overwrite.begin(), instruction.may_overwrite.end(), [&](const auto& pair) {
      return program_.Root(instruction.writes[static_cast<size_t>(pair.first)]) == root &&
             is_old(instruction.reads[static_cast<size_t>(pair.second)]);
    });
  }

  int Copy(int source, Storage target) {
    program_.instructions.push_back(program_.CopyTo(std::move(target), source));
    return program_.instructions.back().writes[0];
  }

  Program& program_;
  const std::vector<Lifetime> lifetimes_;
  std::vector<int> state_storages_;
  int last_refusal_ = -1;  // the position of the last instruction that may refuse data
};

}  // namespace

void BindResults(Program& program) { Binder(program).Run(); }

}  // namespace lockstep
