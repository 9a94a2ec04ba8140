#include "backends/find_non_finite.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "backends/state_values.h"
#include "backends/value_trace.h"
#include "core/placement.h"
#include "core/printer.h"
#include "core/unroll_loops.h"
#include "passes/training/loss_scaling.h"
#include "passes/training/uneven.h"
#include "runtime/execution/agreement.h"

namespace lockstep {
namespace {

// --- Messages between ranks -----------------------------------------------------------------------------------------

template <typename T>
void Put(std::string& text, std::span<const T> values) {
  const auto bytes = static_cast<uint64_t>(values.size_bytes());
  text.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  text.append(reinterpret_cast<const char*>(values.data()), bytes);
}

template <typename T>
std::vector<T> Take(std::string_view& text) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, text.data(), sizeof(bytes));
  std::vector<T> values(bytes / sizeof(T));
  if (bytes > 0) std::memcpy(values.data(), text.data() + sizeof(bytes), bytes);
  text.remove_prefix(sizeof(bytes) + bytes);
  return values;
}

void PutText(std::string& text, std::string_view field) { Put(text, std::span<const char>(field)); }

std::string TakeText(std::string_view& text) {
  const std::vector<char> field = Take<char>(text);
  return {field.begin(), field.end()};
}

void PutCounts(std::string& text, const ElementCounts& counts) { Put(text, std::span(&counts, 1)); }

std::string ToBytes(const NonFinite& found) {
  std::string text;
  for (const std::string* field : {&found.op, &found.value, &found.layer, &found.iteration, &found.becomes_nan,
                                   &found.fused, &found.infinite_since})
    PutText(text, *field);
  PutCounts(text, found.counts);
  Put(text, std::span(std::as_const(found.first)));
  for (const NonFinite::Operand& operand : found.operands) {
    PutText(text, operand.name);
    PutCounts(text, operand.counts);
  }
  return text;
}

NonFinite FromBytes(std::string_view text, size_t rank) {
  NonFinite found;
  for (std::string* field : {&found.op, &found.value, &found.layer, &found.iteration, &found.becomes_nan, &found.fused,
                             &found.infinite_since})
    *field = TakeText(text);
  found.rank = static_cast<int64_t>(rank);
  found.counts = Take<ElementCounts>(text)[0];
  found.first = Take<int64_t>(text);
  while (!text.empty()) {
    std::string name = TakeText(text);
    found.operands.push_back({std::move(name), Take<ElementCounts>(text)[0]});
  }
  return found;
}

// What ranks tell each other about a run.
struct RankFacts {
  std::vector<StepFacts> steps;
  std::vector<WrongOperand> operands;
  std::vector<WrongEnd> ends;
};

absl::StatusOr<std::vector<RankFacts>> FactsOfAll(const ValueTrace& own, Communicator& communicator) {
  std::string message;
  Put(message, std::span(own.facts()));
  Put(message, std::span(own.wrong_operands()));
  for (const WrongEnd& end : own.wrong_ends()) {
    PutText(message, end.name);
    Put(message, std::span(&end.step, 1));
    Put(message, std::span(&end.has_nan, 1));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, communicator.AllGatherBytes(message, "find_nan"));
  std::vector<RankFacts> facts;
  for (std::string_view text : all) {
    RankFacts& of_rank = facts.emplace_back();
    of_rank.steps = Take<StepFacts>(text);
    of_rank.operands = Take<WrongOperand>(text);
    while (!text.empty()) {
      std::string name = TakeText(text);
      const int32_t step = Take<int32_t>(text)[0];
      of_rank.ends.push_back({std::move(name), step, Take<char>(text)[0] != 0});
    }
    if (of_rank.steps.size() != own.facts().size())
      return Internal() << "find_nan: ranks ran programs with different steps";
  }
  return facts;
}

// The names of results and states that are not finite, and whether they have a NaN.
using Ends = std::set<std::pair<std::string, bool>>;

// --- From a value that is not finite to where it was made -----------------------------------------------------------

struct Cause {
  size_t step = 0, rank = 0;
  bool is_given = false;           // an input, a state or a constant that the step read
  std::optional<size_t> nan_step;  // the step that made a NaN of the infinity of this cause

  bool operator<(const Cause& other) const { return std::tie(step, rank) < std::tie(other.step, other.rank); }
};

void TakeFirst(std::optional<Cause>& first, const std::optional<Cause>& other) {
  if (other && (!first || *other < *first)) first = other;
}

// Computes the causes of all steps in order: those of a step follow from those of the steps that wrote its operands.
class Search {
 public:
  Search(const std::vector<RankFacts>& facts, const Executable& executable) : facts_(facts), executable_(executable) {
    for (const RankFacts& rank : facts_) {
      auto& wrong = wrong_.emplace_back(rank.steps.size());
      for (const WrongOperand& operand : rank.operands) wrong[static_cast<size_t>(operand.step)].push_back(operand);
      causes_.emplace_back(rank.steps.size());
    }
    for (size_t step = 0; step < executable_.steps.size(); ++step) {
      for (size_t rank = 0; rank < facts_.size(); ++rank) {
        if (!facts_[rank].steps[step].is_finite()) causes_[rank][step] = CauseOf(rank, step);
      }
    }
  }

  // Returns the first cause of results and states, apart from those that are `intended`.
  std::optional<Cause> OfEnds(const std::set<std::string>* names, const Ends& intended) const {
    std::optional<Cause> of_nans, of_infinities;
    for (size_t rank = 0; rank < facts_.size(); ++rank) {
      for (const WrongEnd& end : facts_[rank].ends) {
        if (intended.contains({end.name, end.has_nan}) || (names != nullptr && !names->contains(end.name))) continue;
        TakeFirst(end.has_nan ? of_nans : of_infinities, causes_[rank][static_cast<size_t>(end.step)]);
      }
    }
    return of_nans ? of_nans : of_infinities;
  }

  // Returns the first cause of gradients that a loss scale found.
  std::optional<Cause> OfScaledGradients() const {
    std::optional<Cause> first;
    for (size_t step = 0; step < executable_.steps.size(); ++step) {
      if (SplitIterations(executable_.steps[step]->info().source).first != passes::kLossScalingSource) continue;
      for (const auto& causes : causes_) TakeFirst(first, causes[step]);
    }
    return first;
  }

  // Returns where the infinities that a step reads were given, if no op made the first of them.
  std::optional<Cause> GivenInfinityOf(const Cause& cause) const {
    size_t step = cause.step;
    std::optional<size_t> rank = RankWith(cause.rank, step, kInfinity);
    while (rank) {
      const auto& operands = wrong_[*rank][step];
      const auto infinite = std::find_if(operands.begin(), operands.end(), std::mem_fn(kInfinity));
      if (infinite->from < 0) return Cause{step, *rank, true, {}};
      step = static_cast<size_t>(infinite->from);
      rank = RankWith(*rank, step, kInfinity);
    }
    return std::nullopt;
  }

 private:
  using Kind = bool WrongOperand::*;
  static constexpr Kind kNaN = &WrongOperand::has_nan, kInfinity = &WrongOperand::has_infinity;

  bool HasWrongOperand(size_t rank, size_t step, Kind kind) const {
    const auto& operands = wrong_[rank][step];
    return std::any_of(operands.begin(), operands.end(), [&](const WrongOperand& each) { return each.*kind; });
  }

  // Returns the rank whose operands explain a result of the step on `rank`: of a collective, the first one with such
  // an operand.
  std::optional<size_t> RankWith(size_t rank, size_t step, Kind kind) const {
    if (HasWrongOperand(rank, step, kind)) return rank;
    const bool is_collective = executable_.steps[step]->info().collective.has_value();
    for (size_t other = 0; other < facts_.size() && is_collective; ++other) {
      if (HasWrongOperand(other, step, kind)) return other;
    }
    return std::nullopt;
  }

  // Returns the first cause of the operands of this kind. An infinity that is given is intended, unless it is a state
  // that steps update.
  std::optional<Cause> OfOperands(size_t rank, size_t step, Kind kind) const {
    std::optional<Cause> first;
    for (const WrongOperand& operand : wrong_[rank][step]) {
      if (!(operand.*kind)) continue;
      if (operand.from >= 0) TakeFirst(first, causes_[rank][static_cast<size_t>(operand.from)]);
      else if (kind == kNaN || operand.from == kFromState) TakeFirst(first, Cause{step, rank, true, {}});
    }
    return first;
  }

  std::optional<Cause> CauseOf(size_t rank, size_t step) const {
    const bool is_nan = facts_[rank].steps[step].has_nan;
    const std::optional<size_t> with_nan = RankWith(rank, step, kNaN);
    if (is_nan && with_nan) return OfOperands(*with_nan, step, kNaN);
    std::optional<Cause> cause;
    const Cause own = {step, rank, false, {}};
    if (const auto with_infinity = RankWith(rank, step, kInfinity)) cause = OfOperands(*with_infinity, step, kInfinity);
    else if (with_nan) cause = OfOperands(*with_nan, step, kNaN);
    else if (is_nan || !facts_[rank].steps[step].is_constant) return own;
    if (!cause && (is_nan || facts_[rank].steps[step].made_here)) return own;  // its wrong operands are intended
    if (is_nan && !cause->nan_step) cause->nan_step = step;
    return cause;
  }

  const std::vector<RankFacts>& facts_;
  const Executable& executable_;
  std::vector<std::vector<std::vector<WrongOperand>>> wrong_;  // by rank and step
  std::vector<std::vector<std::optional<Cause>>> causes_;      // by rank and step
};

// --- The programs that run once -------------------------------------------------------------------------------------

absl::Status CheckIsPossible(const LoadedProgram& loaded) {
  if (loaded.options.servers)
    return FailedPrecondition() << "find_nan: strategy=\"parameter_server\": the servers would update the weights";
  if (!loaded.executor->executable().parts_along.empty())
    return FailedPrecondition() << "find_nan: a mesh with the axis stage: its ranks run different programs";
  return absl::OkStatus();
}

// The options of a program that runs once beside the given one.
LoadOptions ForOneRun(LoadOptions options) {
  options.check_every = 0;  // a NaN on one rank is no difference between replicas here
  options.shared_weights = options.profile = options.verify = false;
  options.dump.clear();
  return options;
}

// The options without those of optimizations, which hide values, and without those that make the ranks' runs differ
// from the given program's.
LoadOptions WithoutOptimization(LoadOptions options) {
  options.optimize = false;
  options.factors.reset();
  options.measured.reset();
  options.bucket_bytes.reset();
  if (options.wire == "int8") options.wire.clear();  // it has states of its own
  options.memory_limit = 0;
  return options;
}

// Returns the program with loops as the ops of their iterations, where these are not too many.
Graph WithoutLoops(const Graph& graph) {
  constexpr int64_t kMostNodes = 20000;
  Graph unrolled = graph.Clone();
  return UnrollLoops(unrolled, kMostNodes).ok() ? std::move(unrolled) : graph.Clone();
}

// Returns the ops of the kernel that computes a value, with their layers, if it is one of several ops.
std::string FusedOps(const Executable& executable, const std::string& value) {
  constexpr size_t kShown = 8;
  const absl::StatusOr<Graph> graph = ParseGraph(executable.graph_text);
  if (!graph.ok()) return "";
  std::vector<std::string> ops;
  for (const Node& node : graph->nodes()) {
    if (!node.Is("fusion")) continue;
    bool is_it = false;
    for (size_t i = 0; i < node.num_results(); ++i) is_it = is_it || node.result_name(i) == value;
    if (!is_it) continue;
    for (const Node& inner : node.attr<Region>("body").graph().nodes()) {
      if (!inner.Is("constant"))
        ops.push_back(inner.op_name() + (inner.source().empty() ? "" : " at " + inner.source()));
    }
  }
  std::string text;
  for (size_t i = 0; i < std::min(ops.size(), kShown); ++i) text += (i ? ", " : "") + ops[i];
  return ops.size() <= kShown ? text : text + " and " + std::to_string(ops.size() - kShown) + " more";
}

// Returns the number of entries along dimension 0 of an input that are not padding at the end: the input `rows` of an
// uneven step is then 0. Others may have padding only if ranks share them by rows.
int64_t EntriesOf(const Graph& graph, std::span<const NamedInput> inputs, const NamedInput& input) {
  const auto rows =
      std::find_if(inputs.begin(), inputs.end(), [](const NamedInput& each) { return each.name == passes::kRows; });
  const Input* const info = graph.FindInput(input.name);
  const int64_t entries = input.tensor.type.shape[0];
  const bool may_pad = rows != inputs.end() && passes::IsUneven(graph);
  if (!may_pad || info == nullptr || !info->value.placement(kDataAxis).is_split(0)) return entries;
  const std::span there(static_cast<const float*>(rows->tensor.data), At(rows->tensor.type.num_elements()));
  const auto last = std::find_if(there.rbegin(), there.rend(), [](float row) { return row != 0; });
  return entries / std::max<int64_t>(std::ssize(there), 1) * (there.rend() - last);
}

// Counts the elements of an input that this rank was given, of which the trace has perhaps only a part, without the
// rows that pad it. These count if only they are not finite.
void CountGiven(const Graph& graph, std::span<const NamedInput> inputs, NonFinite& found) {
  const auto input =
      std::find_if(inputs.begin(), inputs.end(), [&](const NamedInput& each) { return each.name == found.value; });
  if (found.op != "input" || input == inputs.end() || input->tensor.type.shape.rank() == 0) return;
  const TensorType& type = input->tensor.type;
  const auto* const data = static_cast<const std::byte*>(input->tensor.data);
  const TensorType there = {type.dtype, type.shape.WithDim(0, EntriesOf(graph, inputs, *input))};
  found.counts = CountElements(type.dtype, data, there.num_bytes());
  if (found.counts.is_finite()) found.counts = CountElements(type.dtype, data, type.num_bytes());
  found.first = IndexOf(found.counts.first, type.shape);
}

struct Traced {
  std::optional<NonFinite> found;
  Ends ends;
};

// Compiles the graph with these options and runs it once, with the states and settings of `loaded`. Looks for causes of
// the results and states with these `names`, or of all, which are not `intended`.
absl::StatusOr<Traced> Trace(LoadedProgram& loaded, const Graph& graph, const LoadOptions& options,
                             std::span<const NamedInput> inputs, Communicator& communicator,
                             const std::set<std::string>* names, const Ends& intended) {
  ASSIGN_OR_RETURN(const LoadedProgram program, CompileAndLoad(graph, {}, *loaded.backend, options, communicator));
  Executor& executor = *program.executor;
  RETURN_IF_ERROR(AgreeOnSuccess(communicator, "find_nan", CopyStates(*loaded.executor, executor)));
  ValueTrace trace(executor);
  RETURN_IF_ERROR(executor.Observe(&trace));
  RETURN_IF_ERROR(executor.Run(inputs, {}));
  ASSIGN_OR_RETURN(const std::vector<RankFacts> facts, FactsOfAll(trace, communicator));
  Traced traced;
  for (const RankFacts& rank : facts) {
    for (const WrongEnd& end : rank.ends) traced.ends.emplace(end.name, end.has_nan);
  }
  const Search search(facts, executor.executable());
  std::optional<Cause> cause = search.OfEnds(names, intended);
  if (!cause && names == nullptr && passes::IsLossScaled(loaded.graph)) cause = search.OfScaledGradients();
  if (!cause) return traced;
  NonFinite found = cause->is_given ? trace.DescribeGiven(cause->step) : trace.Describe(cause->step);
  CountGiven(loaded.graph, inputs, found);
  if (cause->nan_step) found.becomes_nan = trace.NameOf(*cause->nan_step);
  if (!cause->is_given) found.fused = FusedOps(executor.executable(), found.value);
  const Cause since = search.GivenInfinityOf(*cause).value_or(*cause);
  if (!cause->is_given && since.is_given) {
    NonFinite given = trace.DescribeGiven(since.step, /*is_infinite=*/true);
    CountGiven(loaded.graph, inputs, given);
    found.infinite_since = given.op + " %" + given.value + " on rank " + std::to_string(since.rank) + ": " +
                           given.counts.ToString(given.first);
  }
  // Only that rank knows its values.
  ASSIGN_OR_RETURN(const std::vector<std::string> all, communicator.AllGatherBytes(ToBytes(found), "find_nan"));
  traced.found = FromBytes(all[cause->rank], cause->rank);
  traced.found->infinite_since = FromBytes(all[since.rank], since.rank).infinite_since;
  traced.found->has_no_effect = traced.ends.empty();
  return traced;
}

}  // namespace

std::string NonFinite::ToString(int64_t step) const {
  std::string text = "step " + std::to_string(step) + ", rank " + std::to_string(rank) + ": ";
  const std::string made = " %" + value + ": " + counts.ToString(first);
  if (op == "input" || op == "state" || op == "constant") return text + op + made;
  text += fused.empty() ? op : "the kernel of " + fused;
  text += " makes" + made + (layer.empty() ? "" : ", at " + layer) + (iteration.empty() ? "" : ", " + iteration);
  for (const Operand& operand : operands) text += "\n  from %" + operand.name + ": " + operand.counts.ToString();
  if (!infinite_since.empty()) text += "\n  infinite since " + infinite_since;
  if (!becomes_nan.empty()) text += "\n  which becomes NaN in " + becomes_nan;
  if (has_no_effect) text += "\n  which reaches no result and no state: the loss scale skips this step";
  return text + (only_optimized ? "\n  only in the optimized program: with optimize=False it is finite" : "");
}

absl::StatusOr<std::optional<NonFinite>> FindNonFinite(LoadedProgram& loaded, std::span<const NamedInput> inputs,
                                                       Communicator& communicator, const std::set<std::string>* names,
                                                       const absl::Status& prepared) {
  RETURN_IF_ERROR(CheckIsPossible(loaded));  // asynchronous workers would wait for nobody
  absl::Status usable = prepared;
  if (usable.ok()) usable = loaded.executor->CheckUsable();
  if (usable.ok()) usable = loaded.executor->CheckInputs(inputs);
  RETURN_IF_ERROR(AgreeOnSuccess(communicator, "find_nan", usable));
  const LoadOptions options = ForOneRun(loaded.options);
  ASSIGN_OR_RETURN(Traced plain, Trace(loaded, WithoutLoops(loaded.graph), WithoutOptimization(options), inputs,
                                       communicator, names, {}));
  if (plain.found) return plain.found;
  ASSIGN_OR_RETURN(Traced optimized, Trace(loaded, loaded.graph, options, inputs, communicator, names, plain.ends));
  if (optimized.found) optimized.found->only_optimized = true;
  return optimized.found;
}

}  // namespace lockstep
