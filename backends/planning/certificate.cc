#include "backends/planning/certificate.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

uint64_t Hash(uint64_t hash, std::string_view text) {  // FNV-1a
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

bool Contains(const BufferSlice& outer, const BufferSlice& inner) {
  return outer.buffer == inner.buffer && outer.offset <= inner.offset &&
         inner.offset + inner.bytes <= outer.offset + outer.bytes;
}

// A memory access of a step.
struct Access {
  std::string what;  // "%w", "scratch memory"
  BufferSlice slice;
  bool is_write = false;
};

bool Collides(const Access& a, const Access& b) { return (a.is_write || b.is_write) && a.slice.Overlaps(b.slice); }

// Returns all accesses, first the reads, then the writes.
std::vector<Access> AccessesOf(const StepInfo& step) {
  std::vector<Access> accesses;
  for (const StepOperand& read : step.reads) accesses.push_back({"%" + read.name, read.slice, false});
  for (const StepOperand& write : step.writes) accesses.push_back({"%" + write.name, write.slice, true});
  if (step.scratch.bytes > 0) accesses.push_back({"scratch memory", step.scratch, true});
  return accesses;
}

bool MayOverwrite(const StepInfo& step, size_t write, size_t read) {
  return step.writes[write].slice == step.reads[read].slice &&
         std::any_of(step.may_overwrite.begin(), step.may_overwrite.end(), [&](const std::pair<int, int>& pair) {
           return pair == std::pair(static_cast<int>(write), static_cast<int>(read));
         });
}

class Checker {
 public:
  Checker(std::span<const Buffer> buffers, const Mesh& mesh, std::span<const Lane> lanes)
      : buffers_(buffers), mesh_(mesh), lanes_(lanes) {}

  absl::Status Visit(size_t at, const StepInfo& step) {
    const bool is_start = step.kind == StepKind::kStart, is_wait = step.kind == StepKind::kWait;
    if (step.collective.has_value() != (is_start || is_wait))
      return Error("O1", at, step) << "has no collective, or is neither a start nor a wait";
    RETURN_IF_ERROR(CheckOperands(at, step));
    if (is_wait) RETURN_IF_ERROR(Wait(at, step));  // after its wait, the step may use the collective's memory
    if (step.served >= 0) RETURN_IF_ERROR(VisitServed(at, step));
    RETURN_IF_ERROR(CheckRaces(at, step));
    RETURN_IF_ERROR(CheckShared(at, step));
    return is_start ? Start(at, step) : absl::OkStatus();
  }

  absl::StatusOr<Certificate> Finish() {
    if (!in_flight_.empty()) {
      return Internal() << "order certificate (O2): " << in_flight_.begin()->second.label << " is never waited for";
    }
    for (const auto& [served, state] : served_) {
      if (state.wait >= 0) continue;
      return Internal() << "order certificate (O8): %" << state.name << " is pushed, and "
                        << (state.start < 0 ? "never pulled" : "its pull is never waited for");
    }
    for (const auto& [whole, uses] : shared_) {
      if (uses.written < 0 || Met(whole) > uses.written) continue;
      return Internal() << "order certificate (O7): the run may end before all ranks have written their parts of "
                        << buffers_[static_cast<size_t>(whole)].ToString();
    }
    certificate_.hash = 0xcbf29ce484222325;
    for (const std::string& line : certificate_.lines) certificate_.hash = Hash(certificate_.hash, line + "\n");
    return std::move(certificate_);
  }

 private:
  static ErrorStream Error(const char* rule, size_t at, const StepInfo& step) {
    return Internal() << "order certificate (" << rule << "): step [" << at << "] " << step.ToString() << ": ";
  }

  // (O5)
  static absl::Status CheckOperands(size_t at, const StepInfo& step) {
    const std::vector<Access> accesses = AccessesOf(step);
    const size_t reads = step.reads.size(), operands = reads + step.writes.size();
    for (size_t i = 0; i < accesses.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (!Collides(accesses[i], accesses[j])) continue;
        const bool declared = j < reads && i >= reads && i < operands && MayOverwrite(step, i - reads, j);
        if (!declared) return Error("O5", at, step) << accesses[i].what << " shares memory with " << accesses[j].what;
      }
    }
    return absl::OkStatus();
  }

  // (O3)
  absl::Status CheckRaces(size_t at, const StepInfo& step) const {
    std::vector<Access> accesses = AccessesOf(step);
    if (step.kind == StepKind::kStart) {
      accesses.push_back({"its input", step.collective->input, false});
      accesses.push_back({"its output", step.collective->output, true});
    }
    for (const auto& [id, flying] : in_flight_) {
      const Access input{"", flying.input, false}, output{"", flying.output, true};
      for (const Access& access : accesses) {
        if (!Collides(access, input) && !Collides(access, output)) continue;
        return Error("O3", at, step) << (access.is_write ? "writes " : "reads ") << access.what << " while "
                                     << flying.label << " is in flight";
      }
    }
    for (const auto& [served, state] : served_) {
      const bool is_own = step.served == served;
      if (state.start < 0 || state.wait >= 0 || is_own) continue;
      for (const Access& access : accesses) {
        if (!Collides(access, {"", state.pulled, true})) continue;
        return Error("O8", at, step) << (access.is_write ? "writes " : "reads ") << access.what << " while %"
                                     << state.name << " is being pulled";
      }
    }
    return absl::OkStatus();
  }

  // A state that servers update: the positions of its steps; -1: not yet seen.
  struct Served {
    std::string name;
    int64_t push = -1, start = -1, wait = -1;
    BufferSlice pulled;
  };

  // (O8)
  absl::Status VisitServed(size_t at, const StepInfo& step) {
    Served& state = served_[step.served];
    const auto position = static_cast<int64_t>(at);
    if (step.kind == StepKind::kPush) {
      if (state.push >= 0 || step.reads.size() != 1)
        return Error("O8", at, step) << "is a second push, or does not have one gradient";
      state.push = position;
      state.name = step.reads[0].name;
      certificate_.lines.push_back("push %" + state.name + " of " + std::to_string(step.reads[0].slice.bytes) +
                                   " bytes, number " + std::to_string(step.served));
      return absl::OkStatus();
    }
    const bool is_start = step.kind == StepKind::kStartPull;
    if (step.writes.size() != 1 || (!is_start && step.kind != StepKind::kWaitPull))
      return Error("O8", at, step) << "is neither a push nor a pull";
    if (state.push < 0) return Error("O8", at, step) << "pulls a state that was not pushed before";
    if (is_start ? state.start >= 0 : (state.start < 0 || state.wait >= 0 || state.pulled != step.writes[0].slice))
      return Error("O8", at, step) << "is not the pull that was started, or is repeated";
    (is_start ? state.start : state.wait) = position;
    state.pulled = step.writes[0].slice;
    certificate_.lines.push_back((is_start ? "pull %" : "has pulled %") + step.writes[0].name + ", number " +
                                 std::to_string(step.served));
    return absl::OkStatus();
  }

  // (O6)
  bool IsAlongItsLane(const CollectiveInfo& collective) const {
    const auto lane = static_cast<size_t>(collective.mesh_axis) - mesh_.axes().size();
    if (collective.mesh_axis < 0 || lane >= lanes_.size() || lanes_[lane].axis != collective.axis) return false;
    const bool gives = collective.input.buffer >= 0, gets = collective.output.buffer >= 0;
    return gives != gets && collective.pairs == std::vector{RankPair{lanes_[lane].source, lanes_[lane].target}};
  }

  absl::Status CheckLane(size_t at, const StepInfo& step) const {
    if (IsAlongItsLane(*step.collective)) return absl::OkStatus();
    return Error("O6", at, step) << "is not a transfer along lane " << step.collective->mesh_axis << ": "
                                 << step.collective->ToString();
  }

  absl::Status CheckAxis(size_t at, const StepInfo& step) const {
    const CollectiveInfo& collective = *step.collective;
    const auto axis = static_cast<size_t>(collective.mesh_axis);
    if (collective.is_transfer) {
      RETURN_IF_ERROR(CheckLane(at, step));
    } else if (collective.mesh_axis < 0 || axis >= mesh_.axes().size() || mesh_.axes()[axis].name != collective.axis ||
               mesh_.axes()[axis].size < 2) {
      return Error("O6", at, step) << "is along axis " << collective.axis << ", number " << collective.mesh_axis
                                   << " of the mesh " << mesh_.ToString();
    }
    if (collective.op == CollectiveOp::kBarrier) return absl::OkStatus();
    for (const BufferSlice& slice : {collective.input, collective.output}) {
      if (slice.buffer < 0 && (collective.is_transfer || TraitsOf(collective.op).has_root()))
        continue;  // another rank's
      const Buffer& buffer = buffers_[static_cast<size_t>(slice.buffer)];
      if (buffer.kind == BufferKind::kRegistered && buffer.mesh_axis == collective.mesh_axis) continue;
      return Error("O6", at, step) << "is along axis " << collective.axis << ", in " << buffer.ToString()
                                   << ", which is not registered with that axis' communicator";
    }
    return absl::OkStatus();
  }

  // Positions of the last steps that use a buffer shared by ranks; -1: none yet.
  struct Uses {
    int64_t read = -1;  // of the whole; the beginning of the run counts as a read
    int64_t written = -1;
  };

  // Returns the last position that all ranks sharing the buffer are known to have reached.
  int64_t Met(int32_t whole) const {
    const auto met = met_.find(buffers_[static_cast<size_t>(whole)].mesh_axis);
    return met == met_.end() ? -1 : met->second;
  }

  // (O7)
  absl::Status CheckShared(size_t at, const StepInfo& step) {
    for (const Access& access : AccessesOf(step)) {
      if (access.slice.bytes == 0) continue;
      const Buffer& buffer = buffers_[static_cast<size_t>(access.slice.buffer)];
      const bool is_part = buffer.part_of >= 0;
      if ((buffer.sharers < 2 && !is_part) || (is_part && !access.is_write)) continue;
      const int32_t whole = is_part ? buffer.part_of : access.slice.buffer;
      Uses& uses = shared_[whole];
      if (!is_part && access.is_write) {
        return Error("O7", at, step) << "writes all of " << buffer.ToString() << ", which ranks share";
      }
      if (access.is_write) {
        if (Met(whole) <= uses.read) {
          return Error("O7", at, step) << "writes " << access.what << " while another rank may read "
                                       << buffers_[static_cast<size_t>(whole)].ToString();
        }
        uses.written = static_cast<int64_t>(at);
      } else {
        if (uses.written >= 0 && Met(whole) <= uses.written) {
          return Error("O7", at, step) << "reads " << access.what << " while another rank may write its part of it";
        }
        uses.read = static_cast<int64_t>(at);
      }
    }
    return absl::OkStatus();
  }

  // Returns true if the wait of the collective completes only after all ranks have started it, because each rank's
  // result includes the operands of all ranks.
  static bool SynchronizesAllRanks(const CollectiveInfo& collective) {
    return collective.op == CollectiveOp::kBarrier ||
           (TraitsOf(collective.op).synchronizes() && collective.count() > 0);
  }

  absl::Status Start(size_t at, const StepInfo& step) {
    RETURN_IF_ERROR(CheckAxis(at, step));
    const CollectiveInfo& collective = *step.collective;
    if (collective.id != next_id_) {
      return Error("O1", at, step) << "collective " << collective.id << " starts, expected " << next_id_;
    }
    ++next_id_;
    if (TraitsOf(collective.op).is_in_place) {
      if (collective.input != collective.output) return Error("O4", at, step) << "is not in place";
    } else if (collective.input.Overlaps(collective.output)) {
      return Error("O4", at, step) << "its output shares memory with its input";
    }
    std::string line = collective.ToString() + ":";
    for (const StepOperand& read : step.reads) {
      if (!Contains(collective.input, read.slice)) return Error("O4", at, step) << "%" << read.name << " is outside";
      line += " %" + read.name + "@" + std::to_string(read.slice.offset - collective.input.offset) + "+" +
              std::to_string(read.slice.bytes) + (read.layout.empty() ? "" : ":" + read.layout);
    }
    certificate_.lines.push_back(std::move(line));
    in_flight_.emplace(collective.id, collective);
    started_at_.emplace(collective.id, static_cast<int64_t>(at));
    return absl::OkStatus();
  }

  absl::Status Wait(size_t at, const StepInfo& step) {
    const CollectiveInfo& collective = *step.collective;
    const auto flying = in_flight_.find(collective.id);
    if (flying == in_flight_.end()) {
      return Error("O2", at, step) << "collective " << collective.id << " is not in flight";
    }
    const CollectiveInfo& started = flying->second;
    if (collective != started) {
      return Error("O2", at, step) << "is for another collective than the one started as number " << collective.id
                                   << ", " << started.ToString();
    }
    for (const StepOperand& write : step.writes) {
      if (!Contains(started.output, write.slice)) return Error("O4", at, step) << "%" << write.name << " is outside";
    }
    in_flight_.erase(flying);
    if (SynchronizesAllRanks(collective)) {
      int64_t& met = met_.emplace(collective.mesh_axis, -1).first->second;
      met = std::max(met, started_at_.at(collective.id));
    }
    return absl::OkStatus();
  }

  const std::span<const Buffer> buffers_;
  const Mesh& mesh_;
  const std::span<const Lane> lanes_;
  int next_id_ = 0;
  std::map<int, CollectiveInfo> in_flight_;
  std::map<int, int64_t> started_at_;  // by collective
  std::map<int, int64_t> met_;         // by axis: the last start that all ranks are known to have reached
  std::map<int32_t, Uses> shared_;     // by buffer
  std::map<int, Served> served_;       // by position in Executable::served
  Certificate certificate_;
};

}  // namespace

absl::StatusOr<Certificate> CertifyOrder(const StepList& steps, std::span<const Buffer> buffers, const Mesh& mesh,
                                         std::span<const Lane> lanes) {
  Checker checker(buffers, mesh, lanes);
  for (size_t i = 0; i < steps.size(); ++i) RETURN_IF_ERROR(checker.Visit(i, steps[i]->info()));
  return checker.Finish();
}

}  // namespace lockstep
