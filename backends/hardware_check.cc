#include "backends/hardware_check.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/execution/agreement.h"
#include "runtime/hash.h"

namespace lockstep {

// Hashes what each collective reads, and keeps what it writes.
class HardwareCheck::Recorder final : public StepObserver {
 public:
  explicit Recorder(StepObserver* also) : also_(also) {}

  absl::Status Before(const StepInfo& step, size_t number, const StepContext& context) override {
    if (also_ != nullptr) RETURN_IF_ERROR(also_->Before(step, number, context));
    if (number == 0) {  // check_numerics may run a step twice: the last run counts
      hashes.clear();
      labels.clear();
      outputs.clear();
    }
    if (step.kind != StepKind::kStart || !MovesData(*step.collective, context)) return absl::OkStatus();
    uint64_t hash = 0;
    for (const StepOperand& read : step.reads) hash = HashBytes(context.data(read.slice), read.slice.bytes, hash);
    hashes.push_back(hash);
    labels.push_back("the operand of " + step.ToString(3));
    positions_[step.collective->id] = outputs.size();
    outputs.emplace_back();
    return absl::OkStatus();
  }

  absl::Status After(const StepInfo& step, size_t number, const StepContext& context) override {
    if (step.kind == StepKind::kWait && MovesData(*step.collective, context)) {
      const BufferSlice& output = step.collective->output;
      const std::byte* const begin = context.data(output);
      if (begin != nullptr) outputs[positions_.at(step.collective->id)].assign(begin, begin + output.bytes);
    }
    return also_ == nullptr ? absl::OkStatus() : also_->After(step, number, context);
  }

  Hashes hashes;
  std::vector<std::string> labels;
  CollectiveOutputs outputs;

 private:
  static bool MovesData(const CollectiveInfo& collective, const StepContext& context) {
    return collective.op != CollectiveOp::kBarrier && collective.count() > 0 && context.communicates(collective);
  }

  StepObserver* const also_;
  std::map<int, size_t> positions_;  // in outputs, by collective
};

namespace {

// Observes the steps of an executor as long as it lives.
class Observation {
 public:
  Observation(Executor& executor, StepObserver& observer) : executor_(executor), status_(executor.Observe(&observer)) {}
  ~Observation() {
    while (!executor_.Observe(nullptr).ok()) std::this_thread::yield();  // another thread uses the executor
  }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  Executor& executor_;
  const absl::Status status_;
};

std::vector<std::string> NamesOfStates(const Executor& executor) {
  std::vector<std::string> names;
  for (const ValueInfo& state : executor.executable().states) names.push_back(state.name);
  return names;
}

// Returns true if all ranks have the same value of this state.
bool IsCommon(const Executor& executor, const std::string& name) {
  const std::vector<ValueInfo>& states = executor.executable().states;
  const auto state = std::find_if(states.begin(), states.end(), [&](const auto& each) { return each.name == name; });
  return std::all_of(state->placements.begin(), state->placements.end(),
                     [](const auto& along) { return along.second.is_replicated(); });
}

// Returns the states that the program updates; others may be bound to memory that is not writable.
StateValues UpdatedOf(const Executor& executor, const StateValues& values) {
  const auto& updated = executor.updated_states();
  StateValues found;
  for (const auto& value : values) {
    if (std::find(updated.begin(), updated.end(), value.first) != updated.end()) found.push_back(value);
  }
  return found;
}

void Append(std::vector<std::byte>& message, const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  message.insert(message.end(), begin, begin + bytes);
}

// Sends a message to the rank `shift` after this one, and returns the one of the rank `shift` before it, which is as
// long.
absl::StatusOr<std::vector<std::byte>> Exchange(Communicator& world, int shift, std::vector<std::byte> message) {
  if (shift == 0 || message.empty()) return message;
  std::vector<RankPair> pairs;
  for (int rank = 0; rank < world.size(); ++rank) pairs.push_back({rank, (rank + shift) % world.size()});
  std::vector<std::byte> received(message.size());
  const Collective permute = Collective::Permute(static_cast<int64_t>(message.size()), DType::kU8, pairs);
  RETURN_IF_ERROR(world.Run(permute, message.data(), received.data(), {"what verify_hardware computes again"}));
  return received;
}

// One computation of a part: who computed it, and the hash of the first value that differs.
struct Computed {
  int rank;
  uint64_t hash;
};

// Returns the rank that computed wrongly, if that can be told.
std::optional<int> WrongRank(const std::vector<Computed>& computed) {
  const bool is_one = std::all_of(computed.begin(), computed.end(),
                                  [&](const Computed& each) { return each.rank == computed[0].rank; });
  if (is_one) return computed[0].rank;
  if (computed.size() == 4) {  // two ranks, twice each, in turn
    const bool first_repeats = computed[0].hash == computed[2].hash;
    const bool second_repeats = computed[1].hash == computed[3].hash;
    if (first_repeats == second_repeats) return std::nullopt;
    return first_repeats ? computed[1].rank : computed[0].rank;
  }
  for (size_t i = 0; i < computed.size(); ++i) {
    const Computed &other = computed[(i + 1) % 3], &third = computed[(i + 2) % 3];
    if (other.hash == third.hash) return computed[i].rank;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HardwareCheck>> HardwareCheck::Create(LoadedProgram& loaded,
                                                                     Communicator& communicator) {
  std::unique_ptr<HardwareCheck> check(new HardwareCheck(loaded, communicator));
  RETURN_IF_ERROR(check->SecondFor(1 % communicator.size()).status());
  return check;
}

absl::StatusOr<HardwareCheck::Second*> HardwareCheck::SecondFor(int shift) {
  std::unique_ptr<Second>& second = seconds_[shift];
  if (second != nullptr) return second.get();
  auto made = std::make_unique<Second>();
  made->communicator = std::make_unique<ReplayCommunicator>(communicator_, shift, made->outputs);
  LoadOptions options = loaded_.options;
  options.verify_hardware = options.check_every = 0;
  options.check_numerics = options.verify = options.profile = false;
  options.dump.clear();
  ASSIGN_OR_RETURN(made->program, CompileAndLoad(loaded_.graph, {}, *loaded_.backend, options, *made->communicator));
  second = std::move(made);
  return second.get();
}

absl::Status HardwareCheck::AddEnd(Executor& executor, std::span<const NamedResult> results, Hashes& hashes,
                                   std::vector<std::string>& labels) {
  for (const NamedResult& result : results) {
    hashes.push_back(HashBytes(result.tensor.data, result.tensor.type.num_bytes()));
    labels.push_back("result " + std::string(result.name));
  }
  StateValues after;
  RETURN_IF_ERROR(ReadStates(executor, NamesOfStates(executor), after));
  for (const auto& [name, value] : after) {
    hashes.push_back(HashBytes(value.bytes(), value.num_bytes()));
    labels.push_back("state " + name);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<HardwareCheck::Hashes>> HardwareCheck::OfAll(const Hashes& own, int shift) {
  const std::string_view bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(own[0]));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, communicator_.AllGatherBytes(bytes, "verify_hardware"));
  std::vector<Hashes> hashes(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != bytes.size()) return Internal() << "verify_hardware: ranks ran different programs";
    Hashes& of_part = hashes[(rank + all.size() - static_cast<size_t>(shift)) % all.size()];
    of_part.resize(own.size());
    std::memcpy(of_part.data(), all[rank].data(), bytes.size());
  }
  return hashes;
}

std::vector<std::byte> HardwareCheck::OwnPart(std::span<const NamedInput> inputs,
                                              const CollectiveOutputs& outputs) const {
  std::vector<std::byte> part;
  for (const NamedInput& input : inputs) Append(part, input.tensor.data, input.tensor.type.num_bytes());
  for (const auto& [name, value] : before_) {
    if (!IsCommon(*loaded_.executor, name)) Append(part, value.bytes(), value.num_bytes());
  }
  for (const std::vector<std::byte>& output : outputs) Append(part, output.data(), output.size());
  return part;
}

absl::StatusOr<std::vector<NamedInput>> HardwareCheck::Prepare(Second& second, std::span<const std::byte> part,
                                                               std::span<const NamedInput> inputs,
                                                               const CollectiveOutputs& outputs) {
  const std::byte* next = part.data();
  const auto take = [&](size_t bytes) { return std::exchange(next, next + bytes); };
  std::vector<NamedInput> others;
  for (const NamedInput& input : inputs)
    others.push_back({input.name, {input.tensor.type, take(input.tensor.type.num_bytes())}});
  for (const auto& [name, value] : before_) {
    const std::byte* const data = IsCommon(*loaded_.executor, name) ? value.bytes() : take(value.num_bytes());
    RETURN_IF_ERROR(second.program.executor->AssignState(name, {value.type(), data}));
  }
  second.outputs.clear();
  for (const std::vector<std::byte>& output : outputs) {
    const std::byte* const begin = take(output.size());
    second.outputs.emplace_back(begin, begin + output.size());
  }
  RETURN_IF_ERROR(CopySettings(*loaded_.executor, *second.program.executor));
  return others;
}

absl::StatusOr<HardwareCheck::Hashes> HardwareCheck::HashesOf(Executor& executor, std::span<const NamedInput> inputs,
                                                              std::span<const NamedResult> results) const {
  std::vector<Tensor> memory;
  std::vector<NamedResult> own;
  for (const NamedResult& result : results) memory.emplace_back(result.tensor.type);
  for (size_t i = 0; i < memory.size(); ++i)
    own.push_back({results[i].name, {memory[i].type(), memory[i].mutable_bytes()}});
  Recorder recorder(also_);
  {
    const Observation observation(executor, recorder);
    RETURN_IF_ERROR(observation.status());
    RETURN_IF_ERROR(executor.Run(inputs, own));
  }
  RETURN_IF_ERROR(AddEnd(executor, own, recorder.hashes, recorder.labels));
  return std::move(recorder.hashes);
}

absl::StatusOr<std::vector<HardwareCheck::Hashes>> HardwareCheck::Again(int shift, std::span<const NamedInput> inputs,
                                                                        std::span<const NamedResult> results,
                                                                        const CollectiveOutputs& outputs) {
  ASSIGN_OR_RETURN(Second* const second, SecondFor(shift));
  ASSIGN_OR_RETURN(const std::vector<std::byte> part, Exchange(communicator_, shift, OwnPart(inputs, outputs)));
  ASSIGN_OR_RETURN(const std::vector<NamedInput> others, Prepare(*second, part, inputs, outputs));
  ASSIGN_OR_RETURN(const Hashes hashes, HashesOf(*second->program.executor, others, results));
  return OfAll(hashes, shift);
}

std::string HardwareCheck::NameOf(int rank) const {
  return "rank " + std::to_string(rank) + " on host " + communicator_.host(rank);
}

absl::Status HardwareCheck::Compare(int64_t step, std::span<const NamedInput> inputs,
                                    std::span<const NamedResult> results, const Hashes& own,
                                    const CollectiveOutputs& outputs) {
  const int ranks = communicator_.size();
  ASSIGN_OR_RETURN(const std::vector<Hashes> first, OfAll(own, 0));
  std::vector<std::pair<int, std::vector<Hashes>>> computed = {{0, first}};  // with their shifts
  ASSIGN_OR_RETURN(std::vector<Hashes> second, Again(1 % ranks, inputs, results, outputs));
  if (second == first) return absl::OkStatus();
  const StateValues before = UpdatedOf(*loaded_.executor, before_);
  RETURN_IF_ERROR(WriteStates(*loaded_.executor, before));
  computed.emplace_back(1 % ranks, std::move(second));
  for (const int shift : ranks == 1 ? std::vector<int>{0} : ranks == 2 ? std::vector<int>{0, 1} : std::vector<int>{2}) {
    ASSIGN_OR_RETURN(std::vector<Hashes> again, Again(shift, inputs, results, outputs));
    computed.emplace_back(shift, std::move(again));
  }
  std::string text;
  for (int part = 0; part < ranks; ++part) {
    const Hashes &one = first[static_cast<size_t>(part)], &other = computed[1].second[static_cast<size_t>(part)];
    const auto differing = std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first;
    const auto at = static_cast<size_t>(differing - one.begin());
    if (at == one.size()) continue;
    std::vector<Computed> by;
    for (const auto& [shift, hashes] : computed)
      by.push_back({(part + shift) % ranks, hashes[static_cast<size_t>(part)][at]});
    const std::optional<int> wrong = WrongRank(by);
    const std::string where = ", first in " + labels_[at] + " of rank " + std::to_string(part) + "'s part";
    if (wrong) text += "\n  " + NameOf(*wrong) + " computed other bits" + where;
    else text += "\n  either " + NameOf(by[0].rank) + " or " + NameOf(by[1].rank) + " computed wrong bits" + where;
  }
  return FailedPrecondition() << "verify_hardware: step " << step
                              << " has other bits when it is computed again:" << text
                              << "\nThe states are those before this step.";
}

absl::Status HardwareCheck::Run(int64_t step, std::span<const NamedInput> inputs, std::span<const NamedResult> results,
                                const std::function<absl::Status()>& run) {
  const int64_t every = loaded_.options.verify_hardware;
  if (every == 0 || (step + 1) % every != 0) return run();
  Executor& executor = *loaded_.executor;
  RETURN_IF_ERROR(ReadStates(executor, NamesOfStates(executor), before_));
  Recorder recorder(also_);
  {
    const Observation observation(executor, recorder);
    RETURN_IF_ERROR(observation.status());
    RETURN_IF_ERROR(run());
  }
  RETURN_IF_ERROR(AddEnd(executor, results, recorder.hashes, recorder.labels));
  labels_ = std::move(recorder.labels);
  const absl::Status compared = Compare(step, inputs, results, recorder.hashes, recorder.outputs);
  before_.clear();
  return compared;
}

}  // namespace lockstep
