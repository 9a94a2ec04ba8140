#include "backends/planning/buffer_plan.h"

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

// Returns the offset of the smallest gap of `bytes` between the given [begin, end) ranges, or after them.
uint64_t BestFit(std::vector<std::pair<uint64_t, uint64_t>> taken, uint64_t bytes) {
  std::sort(taken.begin(), taken.end());
  uint64_t best = UINT64_MAX, best_gap = UINT64_MAX, end = 0;
  for (const auto& [begin, range_end] : taken) {
    if (begin > end && begin - end >= bytes && begin - end < best_gap) {
      best = end;
      best_gap = begin - end;
    }
    end = std::max(end, range_end);
  }
  return best == UINT64_MAX ? end : best;
}

// The contents of the arena: storages, then scratch memory of instructions, and their lifetimes.
struct ArenaContents {
  std::vector<size_t> storages, instructions;
  std::vector<ArenaRequest> requests;  // in this order
};

ArenaContents ContentsOfArena(const Program& program, const std::vector<Lifetime>& lifetimes) {
  ArenaContents contents;
  for (size_t id = 0; id < program.storages.size(); ++id) {
    if (!program.storages[id].InArena() || lifetimes[id].begin() < 0) continue;
    contents.storages.push_back(id);
    contents.requests.push_back({program.storages[id].bytes, lifetimes[id].begin(), lifetimes[id].end()});
  }
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const uint64_t bytes = program.instructions[i].kernel.scratch_bytes;
    if (bytes == 0) continue;
    contents.instructions.push_back(i);
    contents.requests.push_back({bytes, static_cast<int>(i), static_cast<int>(i)});
  }
  return contents;
}

class Planner {
 public:
  explicit Planner(Program& program) : program_(program), lifetimes_(Lifetimes(program)) {
    plan_.slices.resize(program.storages.size());
    plan_.scratch.resize(program.instructions.size());
  }

  BufferPlan Run() {
    AddNamedBuffers(BufferKind::kInput, program_.inputs, inputs_);
    AddNamedBuffers(BufferKind::kResult, program_.results, results_);
    AddNamedBuffers(BufferKind::kState, program_.states, states_);
    ShareBuffers();
    if (!program_.settings.empty()) {
      plan_.settings = AddBuffer(BufferKind::kSettings, "", program_.settings.size() * sizeof(double));
    }
    for (size_t i = 0; i < program_.constants.size(); ++i) {
      constants_.push_back(AddBuffer(BufferKind::kConstant, std::to_string(i), program_.constants[i].num_bytes()));
    }
    PlaceRoots();
    const size_t axes = program_.mesh.axes().size() + program_.lanes.size();
    for (size_t axis = 0; axis < axes; ++axis) PlaceBuckets(static_cast<int>(axis));
    PlaceInArena();
    for (size_t id = 0; id < program_.storages.size(); ++id) {
      int place = static_cast<int>(id);
      while (program_.storage(place).alias_of >= 0 && !IsPart(place)) place = program_.storage(place).alias_of;
      plan_.slices[id] = plan_.slices[static_cast<size_t>(place)];
    }
    return std::move(plan_);
  }

 private:
  int32_t AddBuffer(BufferKind kind, std::string name, uint64_t bytes) {
    plan_.buffers.push_back({kind, std::move(name), bytes});
    return static_cast<int32_t>(plan_.buffers.size()) - 1;
  }

  void AddNamedBuffers(BufferKind kind, std::vector<ValueInfo>& infos, std::vector<int32_t>& buffers) {
    for (ValueInfo& info : infos) {
      info.buffer = AddBuffer(kind, info.name, info.local_type.num_bytes());
      buffers.push_back(info.buffer);
    }
  }

  // Marks the buffers of states that ranks share, and links the buffers of parts to those of the whole states.
  void ShareBuffers() {
    for (size_t state = 0; state < program_.shared.size(); ++state) {
      const SharedState& shared = program_.shared[state];
      if (shared.axis < 0) continue;
      Buffer& buffer = plan_.buffers[static_cast<size_t>(states_[state])];
      buffer.mesh_axis = shared.axis;
      buffer.sharers = static_cast<int>(program_.mesh.axes()[static_cast<size_t>(shared.axis)].size);
      if (shared.part_of < 0) continue;
      buffer.part_of = states_[static_cast<size_t>(shared.part_of)];
      buffer.name = program_.states[static_cast<size_t>(shared.part_of)].name;
    }
  }

  // True if the storage is a state that is a part of another one. It has that state's bytes, in a separate buffer.
  bool IsPart(int id) const {
    const Storage& storage = program_.storage(id);
    return storage.kind == Storage::Kind::kState && storage.alias_of >= 0;
  }

  void PlaceRoots() {
    for (size_t id = 0; id < program_.storages.size(); ++id) {
      const Storage& storage = program_.storages[id];
      if (storage.alias_of >= 0 && !IsPart(static_cast<int>(id))) continue;
      const auto index = static_cast<size_t>(storage.index);
      BufferSlice& slice = plan_.slices[id];
      slice.bytes = storage.bytes;
      switch (storage.kind) {
        case Storage::Kind::kInput: slice.buffer = inputs_[index]; continue;
        case Storage::Kind::kState: slice.buffer = states_[index]; continue;
        case Storage::Kind::kSetting:
          slice.buffer = plan_.settings;
          slice.offset = index * sizeof(double);
          continue;
        case Storage::Kind::kConstant: slice.buffer = constants_[index]; continue;
        case Storage::Kind::kTemporary: break;
      }
      if (storage.state >= 0) {
        slice.buffer = states_[static_cast<size_t>(storage.state)];
      } else if (storage.result >= 0) {
        slice.buffer = results_[static_cast<size_t>(storage.result)];
      }
    }
  }

  std::string NameOfAxis(size_t axis) const {
    const size_t axes = program_.mesh.axes().size();
    return axis < axes ? program_.mesh.axes()[axis].name : program_.lanes[axis - axes].ToString();
  }

  // Places the buckets of an axis or a lane in its registered memory. A bucket lives from the first write to the last
  // use of any of its storages.
  void PlaceBuckets(int axis) {
    std::vector<int> buckets;                              // of this axis
    std::vector<int> at(program_.bucket_axes.size(), -1);  // by bucket: its index in `buckets`
    for (size_t bucket = 0; bucket < at.size(); ++bucket) {
      if (program_.bucket_axes[bucket] != axis) continue;
      at[bucket] = static_cast<int>(buckets.size());
      buckets.push_back(static_cast<int>(bucket));
    }
    if (buckets.empty()) return;
    const auto last = static_cast<int>(program_.instructions.size());
    std::vector<ArenaRequest> requests(buckets.size(), ArenaRequest{.bytes = 0, .begin = last, .end = 0});
    const auto of_axis = [&](const Storage& storage) {
      return storage.alias_of < 0 && storage.bucket >= 0 ? at[static_cast<size_t>(storage.bucket)] : -1;
    };
    for (size_t id = 0; id < program_.storages.size(); ++id) {
      const Storage& storage = program_.storages[id];
      if (of_axis(storage) < 0) continue;
      ArenaRequest& request = requests[static_cast<size_t>(of_axis(storage))];
      request.bytes = std::max(request.bytes, storage.bucket_offset + storage.bytes);
      request.begin = std::min(request.begin, lifetimes_[id].begin());
      request.end = std::max(request.end, lifetimes_[id].end());
    }
    uint64_t total = 0;
    const std::vector<uint64_t> offsets = PlanArena(requests, total);
    const int32_t buffer = AddBuffer(BufferKind::kRegistered, NameOfAxis(static_cast<size_t>(axis)), total);
    plan_.buffers.back().mesh_axis = axis;
    for (size_t id = 0; id < program_.storages.size(); ++id) {
      const Storage& storage = program_.storages[id];
      if (of_axis(storage) < 0) continue;
      plan_.slices[id] = {buffer, offsets[static_cast<size_t>(of_axis(storage))] + storage.bucket_offset,
                          storage.bytes};
    }
  }

  void PlaceInArena() {
    uint64_t total = 0;
    const ArenaContents contents = ContentsOfArena(program_, lifetimes_);
    const std::vector<uint64_t> offsets = PlanArena(contents.requests, total);
    const int32_t arena = AddBuffer(BufferKind::kArena, "", total);
    auto offset = offsets.begin();
    for (size_t id : contents.storages) plan_.slices[id] = {arena, *offset++, program_.storages[id].bytes};
    for (size_t i : contents.instructions)
      plan_.scratch[i] = {arena, *offset++, program_.instructions[i].kernel.scratch_bytes};
  }

  Program& program_;
  const std::vector<Lifetime> lifetimes_;
  BufferPlan plan_;
  std::vector<int32_t> inputs_, results_, states_, constants_;
};

}  // namespace

std::vector<uint64_t> PlanArena(const std::vector<ArenaRequest>& requests, uint64_t& total) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return requests[a].bytes > requests[b].bytes; });
  std::vector<uint64_t> offsets(requests.size(), 0);
  std::vector<size_t> placed;
  total = 0;
  for (size_t i : order) {
    const ArenaRequest& request = requests[i];
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    for (size_t j : placed) {
      const ArenaRequest& other = requests[j];
      if (other.begin <= request.end && request.begin <= other.end) {
        taken.emplace_back(offsets[j], offsets[j] + AlignUp(other.bytes));
      }
    }
    offsets[i] = BestFit(std::move(taken), AlignUp(request.bytes));
    total = std::max(total, offsets[i] + AlignUp(request.bytes));
    placed.push_back(i);
  }
  return offsets;
}

uint64_t ArenaBytes(const Program& program) {
  uint64_t total = 0;
  PlanArena(ContentsOfArena(program, Lifetimes(program)).requests, total);
  return total;
}

BufferPlan PlanBuffers(Program& program) { return Planner(program).Run(); }

}  // namespace lockstep
