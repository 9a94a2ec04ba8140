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
    MarkUrgent();
  }

 private:
  // Returns for each collective the position before which it can start: its operands are complete, and its predecessors
  // have started.
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
        // An all_reduce overwrites its operand, so earlier readers of the operand must come first.
        if (TraitsOf(instruction.collective.op).is_in_place && lifetime.last_read == position) {
          start = std::max(start, LastReadBefore(instructions, id, position) + 1);
        }
      }
      previous = start;
      instruction.kind = Instruction::Kind::kStart;
      instruction.collective.id = program_.num_collectives++;
      copies_.emplace_back();
      const bool in_place = TraitsOf(instruction.collective.op).is_in_place;
      if (IsPartialCollective(instruction)) {
        PlacePartialCollective(instruction, position);
      } else {
        PlaceOperands(instruction, position);
        if (in_place) CountInPlace(instruction);
        else PlaceResults(instruction);
        Label(instruction);
      }
      starts.emplace(start, std::move(instruction));
      instruction.kind = Instruction::Kind::kCollective;  // its content was moved
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

  // Returns true if the bytes of an operand may be placed in the bucket of the collective, which is at `position`.
  bool CanLiveInBucket(const Instruction& instruction, int id, int position) const {
    const int root = program_.Root(id);
    const Storage& storage = program_.storage(root);
    if (storage.kind != Storage::Kind::kTemporary || storage.bucket >= 0) return false;
    const bool is_free = !output_roots_.contains(root) && lifetimes_[static_cast<size_t>(root)].last_read <= position;
    return is_free || !TraitsOf(instruction.collective.op).is_in_place;
  }

  // True for a collective of a value that one rank has. On this rank it lacks the operands or results that this rank
  // does not have, and its counts and labels are the same on all ranks (ProgramBuilder).
  static bool IsPartialCollective(const Instruction& instruction) { return !instruction.collective.label.empty(); }

  void PlacePartialCollective(Instruction& instruction, int position) {
    if (!instruction.reads.empty()) PlaceOperands(instruction, position);
    if (instruction.writes.empty()) return;
    uint64_t end = 0;
    PlaceAdjacent(AddBucket(instruction), instruction.writes[0], end);
  }

  int AddBucket(const Instruction& instruction) {
    program_.bucket_axes.push_back(instruction.collective.mesh_axis);
    return static_cast<int>(program_.bucket_axes.size()) - 1;
  }

  // Places the storage at the next position in `bucket`, which is filled up to `end`, with the alignment that the
  // communicator requires.
  void PlaceAdjacent(int bucket, int id, uint64_t& end) {
    static_assert(kBufferAlignment == kPieceAlignment);
    Storage& storage = program_.storage(program_.Root(id));
    storage.bucket = bucket;
    storage.bucket_offset = AlignUp(end);
    end = storage.bucket_offset + storage.bytes;
  }

  void PlaceOperands(Instruction& instruction, int position) {
    const CollectiveInfo& info = instruction.collective;
    if (!TraitsOf(info.op).is_in_place && instruction.reads.size() == 1) {
      const int bucket = program_.storage(program_.Root(instruction.reads[0])).bucket;
      if (bucket >= 0 && program_.bucket_axes[static_cast<size_t>(bucket)] == info.mesh_axis) return;
    }
    const int bucket = AddBucket(instruction);
    uint64_t end = 0;
    for (int& read : instruction.reads) {
      if (!CanLiveInBucket(instruction, read, position)) read = CopyOf(read, position);
      PlaceAdjacent(bucket, read, end);
    }
  }

  // Places the results over the operands, and counts one contiguous range. The content of gaps between operands is not
  // read.
  void CountInPlace(Instruction& instruction) {
    for (size_t i = 0; i < instruction.reads.size(); ++i)
      program_.storage(instruction.writes[i]).alias_of = instruction.reads[i];
    const Storage& last = program_.storage(program_.Root(instruction.reads.back()));
    instruction.collective.counts = {
        static_cast<int64_t>((last.bucket_offset + last.bytes) / SizeOf(instruction.collective.dtype))};
  }

  void PlaceResults(Instruction& instruction) {
    CollectiveInfo& info = instruction.collective;
    const CollectiveTraits traits = TraitsOf(info.op);
    const int bucket = AddBucket(instruction);
    const auto ranks = static_cast<uint64_t>(program_.mesh.axes()[static_cast<size_t>(info.mesh_axis)].size);
    uint64_t end = 0;
    info.counts.clear();
    for (size_t i = 0; i < instruction.writes.size(); ++i) {
      PlaceAdjacent(bucket, instruction.writes[i], end);
      const uint64_t bytes = program_.storage(instruction.reads[i]).bytes / (traits.scatters ? ranks : 1);
      info.counts.push_back(static_cast<int64_t>(bytes / SizeOf(info.dtype)));
    }
  }

  // Sets the collective's name for messages.
  void Label(Instruction& instruction) {
    CollectiveInfo& info = instruction.collective;
    std::string contents;
    for (const int id : instruction.reads)
      contents += (contents.empty() ? "%" : ", %") + program_.storage(program_.Root(id)).name;
    if (!TraitsOf(info.op).is_in_bucket) info.label = std::move(contents);
    else info.label = "bucket " + std::to_string(num_buckets_++) + " (" + contents + ")";
  }

  int CopyOf(int id, int position) {
    copies_.back().push_back(program_.CopyTo(program_.storage(id), id));
    const int copy = copies_.back().back().writes[0];
    lifetimes_.resize(static_cast<size_t>(copy) + 1);
    lifetimes_.back() = {.first_write = position, .last_write = position, .last_read = position};
    return copy;
  }

  void AppendStarts(std::multimap<int, Instruction>& starts, int position) {
    const auto [begin, end] = starts.equal_range(position);
    for (auto it = begin; it != end; ++it) {
      const int id = it->second.collective.id;
      if (!program_.shared.empty()) WaitForSlices();
      WaitForFirstGiven(it->second);
      for (Instruction& copy : copies_[static_cast<size_t>(id)]) Append(std::move(copy));
      Append(std::move(it->second));
    }
  }

  // Limits the transfers in flight before another one starts along the lane.
  void WaitForFirstGiven(const Instruction& start) {
    const CollectiveInfo& info = start.collective;
    if (!info.is_transfer || start.reads.empty()) return;
    std::vector<int>& given = given_[info.mesh_axis];
    std::erase_if(given, [this](int id) { return !waits_.contains(id); });
    const auto of_axis = [&](const MeshAxis& axis) { return axis.name == info.axis; };
    const auto axis = std::find_if(program_.mesh.axes().begin(), program_.mesh.axes().end(), of_axis);
    const int64_t most = axis == program_.mesh.axes().end() ? 0 : axis->size;
    if (static_cast<int64_t>(given.size()) >= std::max(most, kTransfersInFlight)) {
      AppendWait(given.front());
      given.erase(given.begin());
    }
    given.push_back(info.id);
  }

  void WaitForSlices() {
    std::vector<int> due;
    for (const auto& [id, wait] : waits_) {
      const CollectiveTraits traits = TraitsOf(wait.collective.op);
      if (traits.reduces && traits.scatters) due.push_back(id);
    }
    for (int id : due) AppendWait(id);
  }

  // Appends an instruction, after the waits for collectives whose results it accesses, or whose operands it writes, as
  // an in-place reduction does.
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

  // Walks backwards, so that later starts are known. Parts of a program have different steps between starts and waits,
  // so they would not agree on which collectives are urgent along the axis of the parts.
  void MarkUrgent() {
    std::set<int> axes_with_later_starts, urgent;  // of axes; of collectives
    for (auto it = program_.instructions.rbegin(); it != program_.instructions.rend(); ++it) {
      CollectiveInfo& info = it->collective;
      if (!program_.parts_along.empty() && info.axis == program_.parts_along) continue;
      if (it->kind == Instruction::Kind::kWait) {
        const int64_t bytes = info.count() * static_cast<int64_t>(SizeOf(info.dtype));
        if (axes_with_later_starts.contains(info.mesh_axis) && bytes <= kMostUrgentBytes) urgent.insert(info.id);
      } else if (it->kind == Instruction::Kind::kStart) {
        axes_with_later_starts.insert(info.mesh_axis);
      } else {
        continue;
      }
      info.is_urgent = urgent.contains(info.id);
    }
  }

  Program& program_;
  std::vector<Lifetime> lifetimes_;  // by storage; those of copies are added
  int num_started_ = 0;
  int num_buckets_ = 0;  // buckets that have a name
  std::set<int> output_roots_;
  std::vector<std::vector<Instruction>> copies_;  // into the bucket, by collective
  std::map<int, Instruction> waits_;              // for collectives in flight, by collective
  std::map<int, std::vector<int>> given_;  // by lane: the last collectives in flight for which this rank is the source
};

}  // namespace

void ScheduleCollectives(Program& program) { Scheduler(program).Run(); }

}  // namespace lockstep
