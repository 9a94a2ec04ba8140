#include "backends/lowering/certificate.h"

#include <map>

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

class Checker {
 public:
  absl::Status Visit(size_t at, const StepInfo& step) {
    RETURN_IF_ERROR(CheckRaces(at, step));
    if (!step.collective) return absl::OkStatus();
    return step.collective->phase == CollectiveInfo::Phase::kStart ? Start(at, step) : Wait(at, step);
  }

  absl::StatusOr<Certificate> Finish() {
    if (!in_flight_.empty()) {
      return Internal() << "order certificate (O2): " << in_flight_.begin()->second.label << " is never waited for";
    }
    certificate_.hash = 0xcbf29ce484222325;
    for (const std::string& line : certificate_.lines) certificate_.hash = Hash(certificate_.hash, line + "\n");
    return std::move(certificate_);
  }

 private:
  static ErrorStream Error(const char* rule, size_t at, const StepInfo& step) {
    return Internal() << "order certificate (" << rule << "): step [" << at << "] " << step.ToString() << ": ";
  }

  // (O3), except for what a wait itself ends.
  absl::Status CheckRaces(size_t at, const StepInfo& step) const {
    const bool is_wait = step.collective && step.collective->phase == CollectiveInfo::Phase::kWait;
    for (const auto& [id, flying] : in_flight_) {
      if (is_wait && step.collective->id == id) continue;
      for (const StepOperand& read : step.reads) {
        if (!read.slice.Overlaps(flying.output)) continue;
        return Error("O3", at, step) << "reads %" << read.name << " while " << flying.label << " is in flight";
      }
      for (const StepOperand& write : step.writes) {
        if (!write.slice.Overlaps(flying.input) && !write.slice.Overlaps(flying.output)) continue;
        return Error("O3", at, step) << "writes %" << write.name << " while " << flying.label << " is in flight";
      }
      if (step.collective && !is_wait &&
          (step.collective->output.Overlaps(flying.input) || step.collective->output.Overlaps(flying.output))) {
        return Error("O3", at, step) << "overlaps " << flying.label << ", which is in flight";
      }
    }
    return absl::OkStatus();
  }

  absl::Status Start(size_t at, const StepInfo& step) {
    const CollectiveInfo& collective = *step.collective;
    if (collective.id != next_id_) {
      return Error("O1", at, step) << "collective " << collective.id << " starts, expected " << next_id_;
    }
    ++next_id_;
    const bool in_place = collective.input == collective.output;
    if (collective.op == "all_reduce" && !in_place) return Error("O4", at, step) << "is not in place";
    std::string line = collective.ToString() + ":";
    for (const StepOperand& read : step.reads) {
      if (!Contains(collective.input, read.slice)) return Error("O4", at, step) << "%" << read.name << " is outside";
      line += " %" + read.name + "@" + std::to_string(read.slice.offset - collective.input.offset) + "+" +
              std::to_string(read.slice.bytes) + (read.layout.empty() ? "" : ":" + read.layout);
    }
    certificate_.lines.push_back(std::move(line));
    in_flight_.emplace(collective.id, collective);
    return absl::OkStatus();
  }

  absl::Status Wait(size_t at, const StepInfo& step) {
    if (in_flight_.erase(step.collective->id) == 0) {
      return Error("O2", at, step) << "collective " << step.collective->id << " is not in flight";
    }
    return absl::OkStatus();
  }

  int next_id_ = 0;
  std::map<int, CollectiveInfo> in_flight_;
  Certificate certificate_;
};

}  // namespace

absl::StatusOr<Certificate> CertifyOrder(const StepList& steps) {
  Checker checker;
  for (size_t i = 0; i < steps.size(); ++i) RETURN_IF_ERROR(checker.Visit(i, steps[i]->info()));
  return checker.Finish();
}

}  // namespace lockstep
