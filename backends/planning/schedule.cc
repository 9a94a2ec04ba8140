#include "backends/planning/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/check.h"

namespace lockstep {
namespace {

class Scheduler {
 public:
  explicit Scheduler(Program& program) : program_(program), lifetimes_(Lifetimes(program)) {
    for (const ProgramOutput& output : program.outputs) output_roots_.insert(program.Root(output.storage));
  }

  void Run() {
    std::vector<Instruction> instructions = std::move(program_.instructions);
    std::multimap<int, Instruction> starts = PlaceStarts(instructions);
    program_.instructions.clear();
    for (size_t i = 0; i < instructions.size(); ++i) {
      AppendStarts(starts, static_cast<int>(i));
      if (instructions[i].kind != Instruction::Kind::kCollective) Append(std::move(instructions[i]));
    }
    AppendStarts(starts, static_cast<int>(instructions.size()));
    while (!waits_.empty()) AppendWait(waits_.begin()->first);
    LOCKSTEP_CHECK(num_started_ == program_.num_collectives) << num_started_ << " of " << program_.num_collectives;
  }

 private:
  // For each collective the position before which it can start: its operands are complete, and its predecessors
  // started.
  std::multimap<int, Instruction> PlaceStarts(std::vector<Instruction>& instructions) {
    std::multimap<int, Instruction> starts;
    int previous = 0;
    for (size_t i = 0; i < instructions.size(); ++i) {
      Instruction& instruction = instructions[i];
      if (instruction.kind != Instruction::Kind::kCollective) continue;
      const int position = static_cast<int>(i);
      int start = previous;
      for (int id : instruction.reads) {
        const Lifetime& lifetime = lifetimes_[static_cast<size_t>(program_.Root(id))];
        start = std::max(start, lifetime.last_write + 1);
        // The result of an all_reduce takes the operand's place: whoever reads the operand before it, does so first.
        if (TraitsOf(instruction.collective.op).is_in_bucket && lifetime.last_read == position) {
          start = std::max(start, LastReadBefore(instructions, id, position) + 1);
        }
      }
      previous = start;
      instruction.kind = Instruction::Kind::kStart;
      instruction.collective.id = program_.num_collectives++;
      copies_.emplace_back();
      if (TraitsOf(instruction.collective.op).is_in_bucket) FillBucket(instruction, position);
      else Label(instruction);
      starts.emplace(start, std::move(instruction));
      instruction.kind = Instruction::Kind::kCollective;  // it has moved
    }
    return starts;
  }

  int LastReadBefore(const std::vector<Instruction>& instructions, int id, int position) const {
    for (int i = position - 1; i >= 0; --i) {
      for (int read : instructions[static_cast<size_t>(i)].reads) {
        if (program_.Root(read) == program_.Root(id)) return i;
      }
    }
    return -1;
  }

  bool CanLiveInBucket(int id, int position) const {
    const int root = program_.Root(id);
    const Storage& storage = program_.storage(root);
    return storage.kind == Storage::Kind::kTemporary && storage.bucket < 0 && !output_roots_.contains(root) &&
           lifetimes_[static_cast<size_t>(root)].last_read <= position;
  }

  // Gives every operand its place, one after the other, and the results the same places.
  void FillBucket(Instruction& instruction, int position) {
    const int bucket = static_cast<int>(program_.bucket_axes.size());
    program_.bucket_axes.push_back(instruction.collective.mesh_axis);
    uint64_t end = 0;
    std::string contents;
    for (size_t i = 0; i < instruction.reads.size(); ++i) {
      int& read = instruction.reads[i];
      if (!CanLiveInBucket(read, position)) read = CopyOf(read, position);
      Storage& storage = program_.storage(program_.Root(read));
      storage.bucket = bucket;
      storage.bucket_offset = AlignUp(end);
      end = storage.bucket_offset + storage.bytes;
      contents += (i ? ", %" : "%") + storage.name;
      program_.storage(instruction.writes[i]).alias_of = read;
    }
    // One contiguous range: the gaps between operands hold zeros on all ranks, and keep them.
    instruction.collective.count = static_cast<int64_t>(end / SizeOf(instruction.collective.dtype));
    instruction.collective.label = "bucket " + std::to_string(bucket) + " (" + contents + ")";
  }

  int CopyOf(int id, int position) {
    copies_.back().push_back(program_.CopyTo(program_.storage(id), id));
    const int copy = copies_.back().back().writes[0];
    lifetimes_.resize(static_cast<size_t>(copy) + 1);
    lifetimes_.back() = {.first_write = position, .last_write = position, .last_read = position};
    return copy;
  }

  void Label(Instruction& instruction) {
    CollectiveInfo& info = instruction.collective;
    const int id = TraitsOf(info.op).counts_results ? instruction.writes[0] : instruction.reads[0];
    info.count = static_cast<int64_t>(program_.storage(id).bytes / SizeOf(info.dtype));
    info.label = "%" + program_.storage(instruction.reads[0]).name;
  }

  void AppendStarts(std::multimap<int, Instruction>& starts, int position) {
    const auto [begin, end] = starts.equal_range(position);
    for (auto it = begin; it != end; ++it) {
      const int id = it->second.collective.id;
      for (Instruction& copy : copies_[static_cast<size_t>(id)]) Append(std::move(copy));
      Append(std::move(it->second));
    }
  }

  // Appends an instruction, after the waits for what it touches of theirs: results, and operands that it writes, as a
  // reduction in place does.
  void Append(Instruction instruction) {
    std::set<int> touched, written;
    for (int id : instruction.reads) touched.insert(program_.Root(id));
    for (int id : instruction.writes) written.insert(program_.Root(id));
    touched.insert(written.begin(), written.end());
    std::vector<int> due;
    for (const auto& [id, wait] : waits_) {
      const auto are_in = [&](const std::set<int>& roots, const std::vector<int>& storages) {
        return std::any_of(storages.begin(), storages.end(), [&](int of) { return roots.contains(program_.Root(of)); });
      };
      if (are_in(touched, wait.writes) || are_in(written, wait.reads)) due.push_back(id);
    }
    for (int id : due) AppendWait(id);
    if (instruction.kind == Instruction::Kind::kStart) {
      Instruction wait;
      wait.kind = Instruction::Kind::kWait;
      wait.source = instruction.source;
      wait.reads = instruction.reads;
      wait.writes = instruction.writes;
      wait.collective = instruction.collective;
      ++num_started_;
      waits_.emplace(wait.collective.id, std::move(wait));
    }
    program_.instructions.push_back(std::move(instruction));
  }

  void AppendWait(int id) {
    program_.instructions.push_back(std::move(waits_.at(id)));
    waits_.erase(id);
  }

  Program& program_;
  std::vector<Lifetime> lifetimes_;  // by storage; those of copies are added
  int num_started_ = 0;
  std::set<int> output_roots_;
  std::vector<std::vector<Instruction>> copies_;  // into the bucket, by collective
  std::map<int, Instruction> waits_;              // for what is in flight, by collective
};

}  // namespace

void ScheduleCollectives(Program& program) { Scheduler(program).Run(); }

}  // namespace lockstep
