#include "backends/memory_limit.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "backends/planning/bind_results.h"
#include "backends/planning/buffer_plan.h"
#include "backends/planning/rematerialize.h"
#include "backends/planning/schedule.h"
#include "backends/planning/schedule_pulls.h"

namespace lockstep {
namespace {

absl::StatusOr<Program> LowerAndSchedule(const Graph& graph, const std::vector<StateToShare>& shared,
                                         const Backend& backend, const Target& target) {
  ASSIGN_OR_RETURN(Program program, backend.Lower(graph, target));
  MarkShared(program, shared);
  ScheduleCollectives(program);
  SchedulePulls(program);
  BindResults(program);
  return program;
}

// Memory outside the arena that is held between runs.
struct Held {
  uint64_t states = 0, constants = 0, buckets = 0;
  uint64_t total() const { return states + constants + buckets; }
};

Held HeldBy(Program& program) {
  Held held;
  held.constants = program.KernelsConstantBytes();
  for (const Buffer& buffer : PlanBuffers(program).buffers) {
    if (buffer.kind == BufferKind::kState) held.states += buffer.bytes_of_rank();
    if (buffer.kind == BufferKind::kConstant) held.constants += buffer.bytes_of_rank();
    if (buffer.kind == BufferKind::kRegistered) held.buckets += buffer.bytes_of_rank();
  }
  return held;
}

// Returns the largest number of bytes in the arena that are in use beside the body of a loop while it runs; nothing if
// there is no loop.
std::optional<uint64_t> ArenaBytesOutsideLoopBodies(const Program& program) {
  const std::vector<Lifetime> lifetimes = Lifetimes(program);
  std::optional<uint64_t> most;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Kernel& kernel = program.instructions[i].kernel;
    if (kernel.body_bytes == 0) continue;
    uint64_t bytes = AlignUp(kernel.scratch_bytes) - kernel.body_bytes;
    for (size_t id = 0; id < program.storages.size(); ++id) {
      const bool is_live = lifetimes[id].begin() <= static_cast<int>(i) && static_cast<int>(i) <= lifetimes[id].end();
      if (program.storages[id].InArena() && is_live) bytes += AlignUp(program.storages[id].bytes);
    }
    most = std::max(most.value_or(0), bytes);
  }
  return most;
}

class Fitter {
 public:
  Fitter(uint64_t limit, const Graph& graph, const std::vector<StateToShare>& shared, const Backend& backend,
         const Target& target)
      : limit_(limit), graph_(graph), shared_(shared), backend_(backend), target_(target) {}

  absl::StatusOr<LoweredProgram> Run() {
    ASSIGN_OR_RETURN(Program program, LowerAndSchedule(graph_, shared_, backend_, target_));
    held_ = HeldBy(program);
    const uint64_t arena = limit_ > held_.total() ? limit_ - held_.total() : 0;
    const std::optional<uint64_t> beside = ArenaBytesOutsideLoopBodies(program);
    LoweredProgram lowered{std::move(program), {}};
    if (Fit(lowered, arena)) return lowered;
    // First recomputes values in loops' bodies as far as needed; the smallest bodies are the last resort.
    for (uint64_t body : {beside && arena > *beside ? arena - *beside : 1, uint64_t{1}}) {
      if (!beside) break;
      target_.body_bytes = body;
      ASSIGN_OR_RETURN(lowered.program, LowerAndSchedule(graph_, shared_, backend_, target_));
      if (Fit(lowered, arena)) return lowered;
    }
    return InvalidArgument() << "memory_limit is " << limit_ << " bytes, and graph @" << graph_.name()
                             << " needs at least " << held_.total() + least_ << " on each rank: " << held_.states
                             << " for states, " << held_.constants << " for constants, " << held_.buckets
                             << " for buckets of collectives, and " << least_
                             << " for computed values, if as much as possible is recomputed; without recomputation it "
                             << "needs " << held_.total() + whole_;
  }

 private:
  bool Fit(LoweredProgram& lowered, uint64_t arena) {
    Rematerialization done = Rematerialize(lowered.program, arena);
    if (whole_ == 0) whole_ = done.whole;
    least_ = std::min(least_, done.least);
    lowered.work = done.work;
    for (const Instruction& instruction : lowered.program.instructions) {
      Recomputation in_body = instruction.kernel.recomputed;
      in_body.all_flops = 0;  // the loop's node already counts those of the body
      lowered.work += in_body;
    }
    return done.fits && held_.total() <= limit_;  // also if the arena is empty
  }

  const uint64_t limit_;
  const Graph& graph_;
  const std::vector<StateToShare>& shared_;
  const Backend& backend_;
  Target target_;
  Held held_;
  uint64_t whole_ = 0;  // the arena if nothing is recomputed; least_: the smallest arena
  uint64_t least_ = UINT64_MAX;
};

}  // namespace

absl::StatusOr<LoweredProgram> LowerWithin(uint64_t limit, const Graph& graph, const std::vector<StateToShare>& shared,
                                           const Backend& backend, const Target& target) {
  if (limit > 0) return Fitter(limit, graph, shared, backend, target).Run();
  ASSIGN_OR_RETURN(Program program, LowerAndSchedule(graph, shared, backend, target));
  return LoweredProgram{std::move(program), {}};
}

}  // namespace lockstep
