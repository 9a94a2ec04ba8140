#include "backends/find_non_finite.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "backends/state_values.h"
#include "core/unroll_loops.h"
#include "runtime/execution/agreement.h"

namespace lockstep {
namespace {

// The origin of an operand: the number of the step that wrote it, or one of these.
constexpr int32_t kGiven = -1;     // an input or a state
constexpr int32_t kIntended = -2;  // a constant, or a setting

// What ranks tell each other about a step.
struct StepFacts {
  uint8_t nan_result = 0, infinite_result = 0;    // some result has one
  uint8_t nan_operand = 0, infinite_operand = 0;  // some operand has one
  uint8_t is_constant = 0;                        // computed from constants alone
  int32_t from_nan = kIntended;                   // the origin of the first operand with a NaN
  int32_t from_infinity = kIntended;              // of the first operand with an infinity

  bool is_finite_of_finite() const { return (nan_operand | infinite_operand) == 0; }
};

// What this rank knows about a step.
struct StepValues {
  std::vector<NonFinite::Operand> operands, results;
  std::vector<int32_t> origins;  // of the operands
};

// Looks at the operands and results of all steps of one run.
class Finder final : public StepObserver {
 public:
  explicit Finder(const Executable& executable)
      : executable_(executable), facts_(executable.steps.size()), values_(executable.steps.size()) {}

  absl::Status Before(const StepInfo& step, size_t number, const StepContext& context) override {
    StepValues& values = values_[number];
    StepFacts& facts = facts_[number];
    facts.is_constant = 1;
    for (const StepOperand& read : step.reads) {
      ASSIGN_OR_RETURN(const ElementCounts counts, Look(read, context));
      values.operands.push_back({read.name, counts});
      values.origins.push_back(OriginOf(read.slice));
      const int32_t origin = values.origins.back();
      if (counts.nans > 0 && !std::exchange(facts.nan_operand, 1)) facts.from_nan = origin;
      const bool is_first = counts.infinities > 0 && !std::exchange(facts.infinite_operand, 1);
      if (is_first || (counts.infinities > 0 && !IsComputed(facts.from_infinity))) facts.from_infinity = origin;
      if (origin == kGiven || IsComputed(origin)) facts.is_constant = 0;
    }
    if (step.kind == StepKind::kStart) starts_[step.collective->id] = number;
    return absl::OkStatus();
  }

  absl::Status After(const StepInfo& step, size_t number, const StepContext& context) override {
    if (step.kind == StepKind::kWait) TakeOver(starts_[step.collective->id], number);
    if (step.kind == StepKind::kStart) return absl::OkStatus();
    for (const StepOperand& write : step.writes) {
      ASSIGN_OR_RETURN(const ElementCounts counts, Look(write, context));
      values_[number].results.push_back({write.name, counts});
      if (counts.nans > 0) facts_[number].nan_result = 1;
      if (counts.infinities > 0) facts_[number].infinite_result = 1;
      written_[{write.slice.buffer, write.slice.offset}] = static_cast<int32_t>(number);
    }
    return absl::OkStatus();
  }

  const std::vector<StepFacts>& facts() const { return facts_; }

  // The step made the first NaN or infinity on this rank.
  NonFinite Describe(size_t number) const {
    const StepInfo& step = executable_.steps[number]->info();
    const StepValues& values = values_[number];
    const auto odd =
        std::find_if(values.results.begin(), values.results.end(), [](const auto& each) { return !Finite(each); });
    NonFinite found;
    found.op = OpOf(step);
    found.layer = step.source;
    if (odd != values.results.end()) std::tie(found.value, found.counts) = std::pair(odd->name, odd->counts);
    found.operands = values.operands;
    return found;
  }

  // The step read an input, a state or a constant with a NaN on this rank.
  NonFinite DescribeGiven(size_t number) const {
    const StepValues& values = values_[number];
    NonFinite found;
    for (size_t i = 0; i < values.operands.size(); ++i) {
      if (values.origins[i] >= 0 || values.operands[i].counts.nans == 0) continue;
      const BufferSlice& slice = ReadsOf(number)[i].slice;
      const Buffer& buffer = executable_.buffers[static_cast<size_t>(slice.buffer)];
      found.op = buffer.kind == BufferKind::kState ? "state" : values.origins[i] == kGiven ? "input" : "constant";
      found.value = buffer.name.empty() ? values.operands[i].name : buffer.name;
      found.counts = values.operands[i].counts;
      break;
    }
    return found;
  }

  std::string NameOf(size_t number) const {
    const StepInfo& step = executable_.steps[number]->info();
    std::string text = OpOf(step);
    if (!step.writes.empty()) text += " %" + step.writes[0].name;
    return step.source.empty() ? text : text + ", at " + step.source;
  }

 private:
  // True for a step that computes from inputs or states.
  bool IsComputed(int32_t origin) const { return origin >= 0 && facts_[static_cast<size_t>(origin)].is_constant == 0; }

  static bool Finite(const NonFinite::Operand& operand) { return operand.counts.is_finite(); }

  // "log" of "llvm.log", "all_reduce" of "all_reduce.wait".
  static std::string OpOf(const StepInfo& step) {
    if (step.collective) return step.name.substr(0, step.name.find('.'));
    const size_t dot = step.name.find('.');
    return dot == std::string::npos ? step.name : step.name.substr(dot + 1);
  }

  // A wait has no reads of its own; its operands are those of its start.
  const std::vector<StepOperand>& ReadsOf(size_t number) const {
    const StepInfo& step = executable_.steps[number]->info();
    if (step.kind != StepKind::kWait) return step.reads;
    return executable_.steps[starts_.at(step.collective->id)]->info().reads;
  }

  void TakeOver(size_t start, size_t wait) {
    values_[wait] = values_[start];
    facts_[wait] = std::exchange(facts_[start], StepFacts());
  }

  int32_t OriginOf(const BufferSlice& slice) const {
    const auto written = written_.find({slice.buffer, slice.offset});
    if (written != written_.end()) return written->second;
    const BufferKind kind = executable_.buffers[static_cast<size_t>(slice.buffer)].kind;
    return kind == BufferKind::kInput || kind == BufferKind::kState ? kGiven : kIntended;
  }

  absl::StatusOr<ElementCounts> Look(const StepOperand& operand, const StepContext& context) {
    const std::byte* data = context.data(operand.slice);
    const size_t bytes = data == nullptr ? 0 : operand.slice.bytes;
    if (!IsFloat(operand.dtype) || context.device().is_host()) return CountElements(operand.dtype, data, bytes);
    copy_.resize(bytes);
    RETURN_IF_ERROR(context.device().CopyToHost(copy_.data(), data, bytes));
    RETURN_IF_ERROR(context.device().Synchronize());
    return CountElements(operand.dtype, copy_.data(), bytes);
  }

  const Executable& executable_;
  std::vector<StepFacts> facts_;
  std::vector<StepValues> values_;
  std::map<int, size_t> starts_;                             // by collective
  std::map<std::pair<int32_t, uint64_t>, int32_t> written_;  // by buffer and offset: the last step that wrote there
  std::vector<std::byte> copy_;
};

// --- The first op, from the facts of all ranks
// ------------------------------------------------------------------------

// Where the first NaN or infinity was made.
struct Origin {
  size_t rank = 0, step = 0;
  bool is_given = false;  // an input or a state that the step read
};

class Search {
 public:
  Search(std::vector<std::vector<StepFacts>> facts, const Executable& executable)
      : facts_(std::move(facts)), executable_(executable) {}

  // Sets `nan` to the first step with a NaN, if there is one.
  std::optional<Origin> First(std::optional<Origin>& nan) const {
    nan = FirstWith([](const StepFacts& each) { return each.nan_result != 0; });
    if (nan) return OriginOf(*nan);
    return FirstWith([this](const StepFacts&, size_t rank, size_t step) { return MadeInfinity(rank, step); });
  }

 private:
  template <typename Condition>
  std::optional<Origin> FirstWith(Condition condition) const {
    for (size_t step = 0; step < facts_[0].size(); ++step) {
      for (size_t rank = 0; rank < facts_.size(); ++rank) {
        if constexpr (std::is_invocable_v<Condition, const StepFacts&>) {
          if (condition(facts_[rank][step])) return Origin{rank, step};
        } else {
          if (condition(facts_[rank][step], rank, step)) return Origin{rank, step};
        }
      }
    }
    return std::nullopt;
  }

  bool IsCollective(size_t step) const { return executable_.steps[step]->info().collective.has_value(); }

  // Returns the rank whose operand explains a result of the step on `rank`: of a collective, the first one with such an
  // operand.
  template <typename Condition>
  std::optional<size_t> RankWith(size_t rank, size_t step, Condition condition) const {
    if (condition(facts_[rank][step])) return rank;
    for (size_t other = 0; other < facts_.size() && IsCollective(step); ++other) {
      if (condition(facts_[other][step])) return other;
    }
    return std::nullopt;
  }

  bool MadeInfinity(size_t rank, size_t step) const {
    const StepFacts& facts = facts_[rank][step];
    const auto is_odd = [](const StepFacts& each) { return !each.is_finite_of_finite(); };
    return facts.infinite_result != 0 && facts.is_constant == 0 && !RankWith(rank, step, is_odd);
  }

  // Follows the NaN or infinity of a result back to where it was made. `at` is the first step with a NaN.
  Origin OriginOf(const Origin& nan) const {
    const auto has_nan = [](const StepFacts& each) { return each.nan_operand != 0; };
    if (const auto rank = RankWith(nan.rank, nan.step, has_nan)) return {*rank, nan.step, true};
    const auto has_infinity = [](const StepFacts& each) { return each.infinite_operand != 0; };
    Origin at = nan;
    while (const auto rank = RankWith(at.rank, at.step, has_infinity)) {
      const int32_t from = facts_[*rank][at.step].from_infinity;
      if (from < 0) return nan;  // an infinity that is given or intended
      at = {*rank, static_cast<size_t>(from)};
    }
    return facts_[at.rank][at.step].is_constant != 0 ? nan : at;
  }

  const std::vector<std::vector<StepFacts>> facts_;  // by rank and step
  const Executable& executable_;
};

// --- Messages between ranks
// -------------------------------------------------------------------------------------------

absl::StatusOr<std::vector<std::vector<StepFacts>>> FactsOfAll(const std::vector<StepFacts>& own,
                                                               Communicator& communicator) {
  const std::string_view bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(StepFacts));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, communicator.AllGatherBytes(bytes, "find_nan"));
  std::vector<std::vector<StepFacts>> facts;
  for (const std::string& each : all) {
    std::vector<StepFacts>& of_rank = facts.emplace_back(own.size());
    if (each.size() != bytes.size()) return Internal() << "find_nan: ranks ran programs with different steps";
    std::memcpy(of_rank.data(), each.data(), each.size());
  }
  return facts;
}

void Put(std::string& text, std::string_view field) {
  const auto size = static_cast<uint64_t>(field.size());
  text.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(field);
}

void Put(std::string& text, const ElementCounts& counts) {
  Put(text, std::string_view(reinterpret_cast<const char*>(&counts), sizeof(counts)));
}

std::string Take(std::string_view& text) {
  uint64_t size = 0;
  std::memcpy(&size, text.data(), sizeof(size));
  std::string field(text.substr(sizeof(size), size));
  text.remove_prefix(sizeof(size) + size);
  return field;
}

ElementCounts TakeCounts(std::string_view& text) {
  const std::string field = Take(text);
  ElementCounts counts;
  std::memcpy(&counts, field.data(), sizeof(counts));
  return counts;
}

std::string ToBytes(const NonFinite& found) {
  std::string text;
  for (const std::string* field : {&found.op, &found.value, &found.layer, &found.becomes_nan}) Put(text, *field);
  Put(text, found.counts);
  for (const NonFinite::Operand& operand : found.operands) {
    Put(text, operand.name);
    Put(text, operand.counts);
  }
  return text;
}

NonFinite FromBytes(std::string_view text, size_t rank) {
  NonFinite found;
  for (std::string* field : {&found.op, &found.value, &found.layer, &found.becomes_nan}) *field = Take(text);
  found.rank = static_cast<int64_t>(rank);
  found.counts = TakeCounts(text);
  while (!text.empty()) {
    std::string name = Take(text);
    found.operands.push_back({std::move(name), TakeCounts(text)});
  }
  return found;
}

// --- The second program
// -----------------------------------------------------------------------------------------------

absl::Status CheckIsPossible(const LoadedProgram& loaded) {
  if (loaded.options.servers)
    return FailedPrecondition() << "find_nan: strategy=\"parameter_server\": the servers would update the weights";
  if (!loaded.executor->executable().parts_along.empty())
    return FailedPrecondition() << "find_nan: a mesh with the axis stage: its ranks run different programs";
  return absl::OkStatus();
}

// The options without those of optimizations, which hide values, and without those that make the ranks' runs differ
// from the given program's.
LoadOptions WithoutOptimization(LoadOptions options) {
  options.optimize = false;
  options.factors.reset();
  options.measured.reset();
  options.bucket_bytes.reset();
  if (options.wire == "int8") options.wire.clear();  // it has states of its own
  options.shared_weights = false;
  options.memory_limit = 0;
  options.check_every = 0;  // a NaN on one rank is no difference between replicas here
  options.profile = options.verify = false;
  options.dump.clear();
  return options;
}

// Returns the program with loops as the ops of their iterations, where these are not too many.
Graph WithoutLoops(const Graph& graph) {
  constexpr int64_t kMostNodes = 20000;
  Graph unrolled = graph.Clone();
  return UnrollLoops(unrolled, kMostNodes).ok() ? std::move(unrolled) : graph.Clone();
}

}  // namespace

std::string NonFinite::ToString(int64_t step) const {
  std::string text = "step " + std::to_string(step) + ", rank " + std::to_string(rank) + ": " + op;
  const std::string made = " %" + value + ": " + counts.ToString();
  if (op == "input" || op == "state" || op == "constant") return text + made;
  text += " makes" + made + (layer.empty() ? "" : ", at " + layer);
  for (const Operand& operand : operands) text += "\n  from %" + operand.name + ": " + operand.counts.ToString();
  return text + (becomes_nan.empty() ? "" : "\n  which becomes NaN in " + becomes_nan);
}

absl::StatusOr<std::optional<NonFinite>> FindNonFinite(LoadedProgram& loaded, std::span<const NamedInput> inputs,
                                                       Communicator& communicator) {
  RETURN_IF_ERROR(CheckIsPossible(loaded));
  RETURN_IF_ERROR(loaded.executor->CheckUsable());
  ASSIGN_OR_RETURN(const LoadedProgram plain, CompileAndLoad(WithoutLoops(loaded.graph), {}, loaded.backend,
                                                             WithoutOptimization(loaded.options), communicator));
  Executor& executor = *plain.executor;
  const absl::Status copied = CopyStates(*loaded.executor, executor);
  RETURN_IF_ERROR(AgreeOnSuccess(communicator, "find_nan", copied));
  Finder finder(executor.executable());
  RETURN_IF_ERROR(executor.Observe(&finder));
  RETURN_IF_ERROR(executor.Run(inputs, {}));
  ASSIGN_OR_RETURN(std::vector<std::vector<StepFacts>> facts, FactsOfAll(finder.facts(), communicator));
  const Search search(std::move(facts), executor.executable());
  std::optional<Origin> nan;
  const std::optional<Origin> first = search.First(nan);
  if (!first) return std::nullopt;
  NonFinite found = first->is_given ? finder.DescribeGiven(first->step) : finder.Describe(first->step);
  if (nan && !first->is_given && (nan->step != first->step)) found.becomes_nan = finder.NameOf(nan->step);
  // Only that rank knows its values.
  ASSIGN_OR_RETURN(const std::vector<std::string> all, communicator.AllGatherBytes(ToBytes(found), "find_nan"));
  return FromBytes(all[first->rank], first->rank);
}

}  // namespace lockstep
