#include "runtime/comm/group.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/status.h"

namespace lockstep {
namespace {

constexpr absl::Duration kNap = absl::Milliseconds(20);     // between looks at failures
constexpr absl::Duration kPulse = absl::Milliseconds(200);  // between looks at processes

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

const char* OpcodeName(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBarrier: return "barrier";
    case Opcode::kAllocate: return "allocate";
    case Opcode::kAllReduce: return "all_reduce";
    case Opcode::kBroadcast: return "broadcast";
    case Opcode::kAllGather: return "all_gather";
    case Opcode::kReduceScatter: return "reduce_scatter";
  }
  return "?";
}

// What the first field means in which the evidence of two ranks differs; "" if none does.
std::string DifferenceOf(const Communicator::Evidence& a, const Communicator::Evidence& b) {
  auto hashes = [](uint64_t x, uint64_t y) { return absl::StrFormat(" (0x%016x and 0x%016x)", x, y); };
  if (a.program != b.program) return "they run different programs" + hashes(a.program, b.program);
  if (a.assignments != b.assignments) {
    return absl::StrFormat("a state was assigned on one of them alone (%d assignments and %d)", a.assignments,
                           b.assignments);
  }
  if (a.inputs != b.inputs) return "inputs that are replicated have different contents" + hashes(a.inputs, b.inputs);
  if (a.states != b.states) return "replicas of the states differ" + hashes(a.states, b.states);
  return "";
}

}  // namespace

std::string Describe(const OpDescription& d, const std::string& label) {
  std::ostringstream text;
  text << OpcodeName(d.opcode);
  if (d.opcode == Opcode::kAllReduce || d.opcode == Opcode::kReduceScatter) {
    text << " " << ReduceKindName(static_cast<ReduceKind>(d.kind));
  }
  if (d.opcode == Opcode::kBroadcast) text << " from rank " << d.root;
  if (d.opcode != Opcode::kBarrier && d.opcode != Opcode::kAllocate) {
    text << " " << DTypeName(static_cast<DType>(d.dtype)) << "[" << d.count << "]";
  }
  text << " `" << label << "`";
  return text.str();
}

std::string HostName() {
  char name[kHostBytes] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

uint64_t ProcessStart(int id) {
  // Not by a stream: one throws if the process ends between opening and reading.
  const int file = open(("/proc/" + std::to_string(id) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char line[1024];  // more than 52 fields can take
  const ssize_t length = read(file, line, sizeof(line));
  close(file);
  if (length <= 0) return 0;
  const std::string text(line, static_cast<size_t>(length));
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  if (state == "Z" || state == "X") return 0;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  uint64_t start = 0;
  fields >> start;
  return start;
}

Group::Group(GroupPlace place, absl::Duration timeout)
    : place_(std::move(place)),
      memory_(place_.one_process),
      timeout_(timeout),
      crowded_(size() > AvailableCores()),
      next_pulse_(absl::Now() + kPulse) {}

void Group::Join() {
  RankState& state = place_.block.rank(index());
  if (!one_process()) {
    state.process = getpid();
    state.process_start = ProcessStart(state.process);
  }
  state.presence.store(Presence::kHere);
  Notify();
}

absl::Status Group::AwaitJoined() {
  auto missing = [this] {
    std::vector<int> absent;
    for (int i = 0; i < size(); ++i) {
      if (place_.block.rank(i).presence.load() == Presence::kAbsent) absent.push_back(i);
    }
    return absent;
  };
  return Await([&] { return missing().empty(); }, missing, "the start");
}

bool Group::Leave() {
  if (place_.on_leave) place_.on_leave(failure());
  place_.block.rank(index()).presence.store(Presence::kLeft);
  Notify();
  for (int i = 0; i < size(); ++i) {
    if (place_.block.rank(i).presence.load() != Presence::kLeft) return false;
  }
  return true;
}

absl::Status Group::Publish(uint64_t sequence, const OpDescription& description, const MemoryRef& input,
                            const MemoryRef& output, const std::string& label) {
  if (sequence >= kSlots) {
    auto missing = [&] {
      std::vector<int> behind;
      for (int i = 0; i < size(); ++i) {
        if (place_.block.rank(i).retired.load(std::memory_order_acquire) <= sequence - kSlots) behind.push_back(i);
      }
      return behind;
    };
    RETURN_IF_ERROR(Await([&] { return missing().empty(); }, missing, Describe(description, label)));
  }
  Post& mine = post(sequence, index());
  mine.description = description;
  mine.input = input;
  mine.output = output;
  CopyText(label, mine.label, kLabelBytes);
  mine.posted.store(sequence + 1, std::memory_order_release);
  Notify();
  return absl::OkStatus();
}

absl::Status Group::AwaitPosted(uint64_t sequence) {
  auto missing = [&] {
    std::vector<int> late;
    for (int i = 0; i < size(); ++i) {
      if (post(sequence, i).posted.load(std::memory_order_acquire) != sequence + 1) late.push_back(i);
    }
    return late;
  };
  int next = 0;
  auto ready = [&] {
    while (next < size() && post(sequence, next).posted.load(std::memory_order_acquire) == sequence + 1) ++next;
    return next == size();
  };
  const Post& first = post(sequence, 0);
  const Post& mine = post(sequence, index());
  RETURN_IF_ERROR(Await(ready, missing, Describe(mine.description, mine.label)));
  for (int i = 1; i < size(); ++i) {
    const Post& other = post(sequence, i);
    if (other.description == first.description && std::strcmp(other.label, first.label) == 0) continue;
    return Fail(first_rank() + i, Disagreement(sequence, first_rank(), first.description, first.label, first_rank() + i,
                                               other.description, other.label));
  }
  return absl::OkStatus();
}

absl::Status Group::Disagreement(uint64_t sequence, int rank_a, const OpDescription& a, const std::string& label_a,
                                 int rank_b, const OpDescription& b, const std::string& label_b) const {
  const std::string cause = DifferenceOf(a.evidence, b.evidence);
  OpDescription b_with_evidence_of_a = b;
  b_with_evidence_of_a.evidence = a.evidence;
  if (a == b_with_evidence_of_a && label_a == label_b) {
    return FailedPrecondition() << Name(rank_a) << " and " << Name(rank_b) << " disagree in collective number "
                                << sequence << ", " << Describe(a, label_a) << ": " << cause;
  }
  return FailedPrecondition() << "the ranks disagree about collective number " << sequence << ": " << Name(rank_a)
                              << " is in " << Describe(a, label_a) << ", " << Name(rank_b) << " in "
                              << Describe(b, label_b) << (cause.empty() ? "" : "; ") << cause;
}

std::vector<int> Group::BehindOf(uint64_t sequence) const {
  std::vector<int> behind;
  for (int i = 0; i < size(); ++i) {
    const RankState& state = place_.block.rank(i);
    if (i == index() || state.presence.load() != Presence::kHere) continue;
    if (state.retired.load(std::memory_order_acquire) <= sequence) behind.push_back(i);
  }
  return behind;
}

void Group::Retire(uint64_t sequence) {
  place_.block.rank(index()).retired.store(sequence + 1, std::memory_order_release);
}

// BeginWork stores `working` and then looks for a failure; whoever has seen a failure then looks at `working`. All of it in
// one total order, so either the worker sees the failure or the other sees the worker.
bool Group::BeginWork() {
  place_.block.rank(index()).working.store(1);
  if (place_.block.header().failure.state.load() == 0) return true;
  EndWork();
  return false;
}

void Group::EndWork() { place_.block.rank(index()).working.store(0, std::memory_order_release); }

void Group::AwaitUntouched() const {
  if (!one_process()) return;  // peers have mappings of their own, which outlive ours
  for (int i = 0; i < size(); ++i) {
    while (i != index() && place_.block.rank(i).working.load() != 0) sched_yield();
  }
}

absl::Status Group::Await(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::vector<int>()> missing,
                          const std::string& what) {
  Spinner spinner(crowded_);
  do {
    if (ready()) return absl::OkStatus();
  } while (spinner.Again());
  Event& changed = place_.block.header().changed;
  const absl::Time begin = absl::Now();
  for (;;) {
    const uint32_t seen = changed.count();
    if (ready()) return absl::OkStatus();
    on_idle_();
    RETURN_IF_ERROR(failure());
    RETURN_IF_ERROR(CheckAlive(what));
    const std::vector<int> late = missing();
    absl::Status left = CheckLeft(late, what);
    if (!left.ok()) {
      if (ready()) return absl::OkStatus();  // it did what we wait for, and left then
      return Fail(world_rank(), left);
    }
    if (absl::Now() - begin >= timeout_ && !late.empty()) {
      return Fail(first_rank() + late[0], ErrorStream(absl::StatusCode::kDeadlineExceeded)
                                              << Name(world_rank()) << " waited " << absl::FormatDuration(timeout_)
                                              << " in " << what << " for " << Names(late)
                                              << ": alive, but not arrived");
    }
    changed.Sleep(seen, kNap);
  }
}

absl::Status Group::CheckLeft(const std::vector<int>& missing, const std::string& what) const {
  for (int i : missing) {
    if (i == index() || place_.block.rank(i).presence.load() != Presence::kLeft) continue;
    return ErrorStream(absl::StatusCode::kUnavailable)
           << Name(first_rank() + i) << " has left (its communicator is destroyed) while " << Name(world_rank())
           << " waits in " << what;
  }
  return absl::OkStatus();
}

absl::Status Group::CheckAlive(const std::string& what) {
  const absl::Time now = absl::Now();
  if (one_process() || now < next_pulse_) return absl::OkStatus();
  next_pulse_ = now + kPulse;
  for (int i = 0; i < size(); ++i) {
    if (i == index() || place_.block.rank(i).presence.load() != Presence::kHere || Alive(i)) continue;
    if (place_.block.rank(i).presence.load() != Presence::kHere) continue;  // it left while we looked
    return Fail(first_rank() + i, ErrorStream(absl::StatusCode::kUnavailable)
                                      << Name(first_rank() + i) << " (process " << process(i) << ") died while "
                                      << Name(world_rank()) << " waited in " << what);
  }
  return absl::OkStatus();
}

bool Group::Alive(int i) const {
  const RankState& state = place_.block.rank(i);
  return ProcessStart(state.process) == state.process_start;
}

absl::Status Group::Fail(int culprit, const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok());
  Failure& failure = place_.block.header().failure;
  uint32_t none = 0;
  if (failure.state.compare_exchange_strong(none, 1)) {
    failure.culprit = culprit;
    failure.code = static_cast<int32_t>(status.code());
    CopyText(std::string_view(status.message().data(), status.message().size()), failure.message, kMessageBytes);
    failure.state.store(2);
    Notify();
  }
  for (int i = 0; i < 1000 && failure.state.load() != 2; ++i) absl::SleepFor(absl::Milliseconds(1));
  if (failure.state.load() != 2) return status;  // whoever was first died while it wrote
  return this->failure();
}

absl::Status Group::failure() const {
  const Failure& failure = place_.block.header().failure;
  if (failure.state.load(std::memory_order_acquire) != 2) return absl::OkStatus();
  place_.block.rank(index()).saw_failure.store(1);
  return absl::Status(static_cast<absl::StatusCode>(failure.code), failure.message);
}

void Group::AwaitFailureSeen(absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  for (int i = 0; i < size(); ++i) {
    RankState& state = place_.block.rank(i);
    while (i != index() && state.presence.load() == Presence::kHere && state.saw_failure.load() == 0 && Alive(i)) {
      if (absl::Now() >= end) return;
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
}

std::string Group::Name(int world_rank) const {
  return "rank " + std::to_string(world_rank) + " on host " + place_.hosts[world_rank];
}

std::string Group::Names(const std::vector<int>& indices) const {
  std::string text;
  for (int i : indices) text += (text.empty() ? "" : ", ") + Name(first_rank() + i);
  return text;
}

}  // namespace lockstep
