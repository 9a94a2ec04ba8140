#include "backends/option_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/attributes.h"
#include "core/check.h"

namespace lockstep {
namespace {

using passes::ServerOptions;
using Option = OptionOf<CompileOptions>;

// --- Setting and printing options ------------------------------------------------------------------------------------

// Returns an option with a whole number from `low` to `high`. T is an integer type, or std::optional of one.
template <typename C, typename T>
Option Number(std::string name, T C::* field, int64_t low, int64_t high, std::string doc) {
  const auto text = [field](const CompileOptions& options) {
    if constexpr (std::is_integral_v<T>) return std::to_string(options.*field);
    else return ToText(options.*field);
  };
  const auto set = [field, low, high](CompileOptions& options, std::string_view given) -> absl::Status {
    int64_t number = 0;
    RETURN_IF_ERROR(FromText(given, number));
    if (number < low || number > high) {
      ErrorStream error = InvalidArgument() << " is " << number << ", expected at least " << low;
      if (number > high) error << " and at most " << high;
      return error;
    }
    options.*field = static_cast<std::conditional_t<std::is_integral_v<T>, T, int64_t>>(number);
    return absl::OkStatus();
  };
  return {std::move(name), std::move(doc), text, set};
}

constexpr int64_t kAnyNumber = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxThreads = 1024;          // of a rank; hosts have fewer cores
constexpr int64_t kMaxVirtualRanks = 1 << 15;  // as many as a mesh may have ranks

// Returns the option with its values limited to `choices`.
CompileOption OneOf(std::vector<std::string> choices, CompileOption option) {
  option.choices = choices;
  option.set = [choices, set = option.set](CompileOptions& options, std::string_view text) -> absl::Status {
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return set(options, text);
    ErrorStream error = InvalidArgument() << " is '" << text << "', expected ";
    for (const std::string& choice : choices) error << (choice == choices[0] ? "" : " or ") << choice;
    return error;
  };
  return option;
}

// Adds the placements of names that have none yet: `split` is set before `placements` and takes precedence.
absl::Status AddPlacements(CompileOptions& options, std::string_view text) {
  passes::PlacementChoices choices;
  RETURN_IF_ERROR(FromText(text, choices));
  for (auto& choice : choices) {
    const auto is_it = [&](const auto& each) { return each.first == choice.first; };
    if (std::none_of(options.placements.begin(), options.placements.end(), is_it))
      options.placements.push_back(std::move(choice));
  }
  return absl::OkStatus();
}

std::string TextOfPlacements(const CompileOptions& options) {
  return options.placements.empty() ? "" : ToText(options.placements);
}

std::string NoText(const CompileOptions&) { return ""; }

absl::Status SetSharedWeights(CompileOptions& options, std::string_view text) {
  RETURN_IF_ERROR(FromText(text, options.shared_weights));
  options.shard_optimizer = options.shard_optimizer || options.shared_weights;
  return absl::OkStatus();
}

std::string TextOfFactors(const CompileOptions& options) {
  if (!options.factors) return "";
  return *options.factors == 0 ? "false" : std::isinf(*options.factors) ? "true" : ToText(*options.factors);
}

absl::Status SetFactors(CompileOptions& options, std::string_view text) {
  double operations = text == "true" ? std::numeric_limits<double>::infinity() : 0;
  const bool is_number = FromText(text, operations).ok();
  if (text != "true" && text != "false" && !(is_number && operations > 0)) {
    return InvalidArgument() << " is " << text << ", expected true, false, or operations per byte, more than 0";
  }
  options.factors = operations;
  return absl::OkStatus();
}

absl::Status SetStrategy(CompileOptions& options, std::string_view text) {
  options.servers.reset();
  if (text == "parameter_server") options.servers.emplace();
  return absl::OkStatus();
}

// Returns an option of parameter servers. Setting it without servers is an error, except to false.
template <typename Text, typename Set>
Option OfServers(std::string name, Text text, Set set, std::string doc) {
  return {std::move(name), std::move(doc),
          [text](const CompileOptions& options) { return ToText(text(options.servers.value_or(ServerOptions()))); },
          [set](CompileOptions& options, std::string_view given) -> absl::Status {
            if (options.servers) return set(*options.servers, given);
            if (given == "false") return absl::OkStatus();
            return InvalidArgument() << " requires strategy=\"parameter_server\"";
          }};
}

absl::Status SetAsynchronous(ServerOptions& servers, std::string_view text) {
  bool is_asynchronous = false;
  RETURN_IF_ERROR(FromText(text, is_asynchronous));
  servers.synchronous = !is_asynchronous;
  return absl::OkStatus();
}

absl::Status SetMaxStaleness(ServerOptions& servers, std::string_view text) {
  RETURN_IF_ERROR(FromText(text, servers.max_staleness));
  if (servers.max_staleness < 0) return InvalidArgument() << " is " << servers.max_staleness << ", expected at least 0";
  if (!servers.synchronous) return absl::OkStatus();
  return InvalidArgument() << " requires asynchronous=True; without it, workers wait for each other in each step";
}

absl::Status SetBigarrayBound(ServerOptions& servers, std::string_view text) {
  RETURN_IF_ERROR(FromText(text, servers.bigarray_bound));
  if (servers.bigarray_bound >= 1) return absl::OkStatus();
  return InvalidArgument() << " is " << servers.bigarray_bound << ", expected at least 1";
}

// --- The table -------------------------------------------------------------------------------------------------------

template <typename T>
Option Bound(std::string name, T field, std::string doc) {
  return Bind<CompileOptions>(std::move(name), field, std::move(doc));
}

// Returns the default in Python's syntax. It is None for every type that has None.
std::string DefaultOf(std::string_view type, const Option& option) {
  if (type.ends_with("None")) return "None";
  const std::string text = option.text(CompileOptions());
  if (type == "int") return text;
  if (type == "bool") return text == "true" ? "True" : "False";
  return text.starts_with('"') ? text : Quoted(text);
}

CompileOption Row(std::string type, bool is_of_strategy, Option option) {
  std::string default_value = DefaultOf(type, option);
  return {std::move(option), std::move(type), std::move(default_value), is_of_strategy};
}

CompileOption OfStrategy(std::string type, Option option) { return Row(std::move(type), true, std::move(option)); }
CompileOption OfMachine(std::string type, Option option) { return Row(std::move(type), false, std::move(option)); }

using O = CompileOptions;

std::string TextOfUpdates(const O& options) { return options.servers ? "parameter_server" : "all_reduce"; }

std::vector<CompileOption> MakeTable() {
  return {
      OfStrategy("Mapping[str, int] | None", Bound("mesh", &O::mesh, R"(
The mesh of the ranks: the sizes of its named axes. The last axis varies fastest: with `{"data": 2, "model": 2}`, ranks
0 and 1 differ along "model", and ranks 0 and 2 along "data". The product of the sizes is the number of ranks. None:
`{"data": world.size}`. An axis "stage" makes a pipeline: a training step is cut into stages of about equal cost. Each
rank runs one stage and has its weights. The micro-batches of `train_step(accumulate=…)` pass through the stages one
after the other (docs/pipeline.md). An axis "stage" requires the backend "cpu" and a training step with an optimizer. An
axis "stage" excludes parameter servers, and weights that ranks share (`split`, `placements`, `shard_optimizer`,
`shared_weights`). `mesh` excludes `asynchronous`.)")),
      OfStrategy("Mapping[str, Mapping[str, int]] | None", {"split", R"(
The states and inputs to split: for each name, the dimension to split along each axis. With
`{"fc1.weight": {"model": 0}, "fc2.weight": {"model": 1}}` each rank has a part of both weights. The optimizer's states
of a weight are split with it. Inputs are split along "data" already, as `load_onnx` says. Excludes `asynchronous`.)",
                                                            TextOfPlacements, AddPlacements}),
      OfStrategy("Mapping[str, Placement] | None", {"placements", R"(
The same as `split`, by names or patterns: `{"fc1.*": split(0, "model"), "fc*": replicated()}`, with `lockstep.split`
and `lockstep.replicated`. The first entry that matches a state or input counts. Entries of `split` come before those of
`placements`. Patterns do not match the optimizer's states. A `Plan` of `lockstep.plan` is accepted too. It also sets
`mesh` (docs/model_parallelism.md).)",
                                                    NoText, AddPlacements}),
      OfStrategy("int | None", Number("virtual_ranks", &O::virtual_ranks, 1, kMaxVirtualRanks, R"(
The number of shards into which every batch is cut, so that every number of ranks computes the same bits. A power of two
that the number of ranks divides: with 8, programs of 1, 2, 4 and 8 ranks, on any hosts, have equal states and results,
also if a checkpoint of one continues with another (docs/bits.md). A rank runs its consecutive shards one by one, with
the same kernels, and sums over the batch are added along one fixed binary tree. Batches must divide evenly among the
shards. Bits still depend on `threads`, which should be given, on the processors and on this number. Steps take longer,
as kernels see fewer rows at once. None: a rank computes its rows together. Excludes ranks along
another axis than "data", an axis "stage", parameter servers, `shared_weights`, `wire`, `factors` and `buckets`.)")),
      OfStrategy("Sequence[int] | None", Bound("shares", &O::shares, R"(
The rows of each batch that each rank has, at least 1, in the order of ranks. Their sum is the global batch. With
`[96, 32]` rank 0 computes the first 96 rows of 128, and rank 1 the others. Results are those of equal shares, up to
rounding, as losses and statistics are weighted by the true numbers of rows. Requires a step of
`train_step(..., uneven=True)`; with `accumulate=k`, shares are multiples of k. With `uneven="measured"` the executable
chooses shares by the speeds of the ranks. None: equal shares. Requires the backend "cpu". Excludes ranks along another
axis than "data", an axis "stage", parameter servers, `split`, `placements`, `shard_optimizer`, `shared_weights`,
`factors` and `verify_hardware`. With `virtual_ranks`, which keeps the bits, shares are multiples of a virtual rank's
rows.)")),
      OfStrategy("bool", Bound("shard_optimizer", &O::shard_optimizer, R"(
True shards the optimizer's states, such as momenta and averages, over the ranks along "data", as in the first stage of
ZeRO. Gradients are reduced to slices. Each rank updates the slice whose states it has, and the slices of the new
weights are gathered. The number of bytes sent stays the same. Results have the same bits, with two exceptions: norms
of gradients that are sums over slices, and batch normalisation by the statistics of all ranks, which adds the ranks'
means. A state without a dimension that divides evenly among the ranks stays whole. `exe.state` shows the slices of this
rank. Checkpoints contain all slices. Excludes `wire`, parameter servers and an axis "stage".)")),
      OfStrategy("bool", {"shared_weights", R"(
True keeps one copy of the weights, in shared memory, for the ranks along "data". It includes `shard_optimizer`: each
rank updates its slices of the weights in place, after the last use of the old values on any rank, and no new weights
are sent. With Adam, n ranks have n copies of the gradients, and one copy of the weights and moments. Results have the
bits of `shard_optimizer`. `exe.memory` counts the share of this rank. Frozen weights and the weights of an evaluation
are shared too. Each rank has its own copy of states that do not divide evenly along the outermost dimension, and of
states that all ranks update alike (batch statistics, weights with plain SGD). Assigning a shared state waits for the
other ranks, which must assign the same value. Requires processes or threads of one host, and the backend "cpu".
Excludes `wire`, parameter servers and an axis "stage".)",
                          [](const O& options) { return ToText(options.shared_weights); }, SetSharedWeights}),
      OfMachine("int | None", Number("threads", &O::threads, 1, kMaxThreads, R"(
The number of threads of this rank, from 1 to 1024, equal on all ranks. None: OMP_NUM_THREADS if it is set. Otherwise,
the cores of this process divided by the number of ranks on the host that has most.)")),
      OneOf({"all_reduce", "parameter_server"}, OfStrategy("str | Strategy", {"strategy", R"(
The way in which trained weights are updated. "all_reduce": each rank updates them by the sum of all gradients.
"parameter_server": the servers of the job update them (`lockstep launch -n N -s S`, docs/parameter_servers.md). A rank
pushes each gradient as soon as it is computed. The servers run the optimizer and keep its states, and the new weights
come back at the end of the call. `exe.state`, `save` and `load` work as always. Servers require the backend "cpu", and
an optimizer whose update needs only its gradient, its states and its settings. They exclude f16 with a scaled loss,
`uneven`, ranks along another axis than "data", weights that ranks share (`split`, `placements`, `shard_optimizer`,
`shared_weights`), and the options of all-reduces: `wire`, `buckets`, `bucket_bytes` and `factors`. Synchronous servers
also exclude clipping and `accumulate`. A `Strategy`, or its text such as "mesh={data=2},wire=bf16", sets all options in
it. Passing one of these options again is an error.)",
                                                                              TextOfUpdates, SetStrategy})),
      OfStrategy("bool", OfServers(
                             "asynchronous", [](const ServerOptions& s) { return !s.synchronous; }, SetAsynchronous, R"(
Requires strategy="parameter_server". False: an update waits for the gradients of all ranks, and has the bits of
"all_reduce" in rank order. True: each gradient is an update at once, and no rank waits. The step of a rank is then a
program of its own, with its own batch, loss and number of calls. All ranks still assign, save and load states together,
and the values and settings of rank 0 count. True excludes `mesh`, `split` and `placements`.)")),
      OfStrategy("int | None",
                 OfServers(
                     "max_staleness", [](const ServerOptions& s) { return s.max_staleness; }, SetMaxStaleness, R"(
Requires asynchronous=True. The number of updates that a rank may be ahead of the slowest rank, at least 0. A rank that
is further ahead waits. None: no limit. At calls where all ranks meet, such as `exe.save`, their numbers of calls may
differ by at most this number. `exe.staleness()` says how late gradients were.)")),
      OfStrategy("int | None",
                 OfServers(
                     "bigarray_bound", [](const ServerOptions& s) { return s.bigarray_bound; }, SetBigarrayBound, R"(
Requires strategy="parameter_server". Weights with more elements than this number, which is at least 1, are divided
evenly among all servers. Each other weight is on one server. None: 1000000. Weights of optimizers that update a weight
as a whole (LAMB, Muon) are never divided.)")),
      OfStrategy("int | None", Number("bucket_bytes", &O::bucket_bytes, 1, kAnyNumber, R"(
The approximate size of buckets, in bytes. The gradients in a bucket are reduced together. None: 4 MiB.
Excludes parameter servers.)")),
      OfStrategy("Report | None", {"buckets", R"(
The `exe.report()` of an executable that ran the same step on these ranks. Buckets are then chosen so that the step ends
as early as possible. The choice depends on the time at which each gradient was computed, the duration of its update,
and the duration of collectives of different sizes, which is measured during compilation, in about a second. Each rank
passes its own report. The latest times of all ranks count, so all ranks choose the same buckets. The step of the report
may have another `wire`, except "int8", for which gradients have no times. Results have the same bits, except on more
than two hosts: there, buckets of other sizes may take routes that add in another order (`order="rank"` keeps one
order). Buckets of gathered new weights, and all buckets along an axis whose ranks share memory, still follow
`bucket_bytes`. Requires the backend "cpu". Excludes optimize=False, parameter servers and an axis "stage".)",
                                   [](const O& options) { return ToText(options.measured); },
                                   [](O& options, std::string_view text) { return FromText(text, options.measured); }}),
      OneOf({"bf16", "int8"}, OfStrategy("str | None", Bound("wire", &O::wire, R"(
The dtype in which f32 gradients of `train_step` are sent between ranks. None: f32. "bf16": half of the bytes. Values
are rounded to 8 bits of significand and added in f32, and the sum is rounded again. "int8": about a quarter of the
bytes. Values are integers from -127 to 127, with one scale for 256 values. Each rank keeps the rounding errors, in f32
and as large as the gradients, and adds them in the next step (docs/wire.md). The loss, statistics and norms are sent
unchanged. Excludes `shard_optimizer` and `shared_weights`, which reduce gradients to slices, and parameter servers.
"int8" also excludes an axis "stage" and `shares`.)"))),
      OfStrategy("bool | float | None", {"factors", R"(
The condition for sending the factors of a gradient in place of the gradient. The gradient of a layer's weights is a
product. With few rows in a batch and a wide layer, the factors are much smaller than the product. A number, more than
0: ranks gather the factors of all rows, and each rank computes the whole product, if that takes fewer operations than
this number for each byte that is saved. The gradient of an embedding is then computed from the rows that were looked
up. The batch is summed in the order of one rank, so the bits differ from those of a sum of the ranks' sums. True:
only bytes count. False: every gradient is reduced. None: 100 if ranks along "data" are on several hosts; False if all
are on one host or the communicator has `order="rank"`. Gradients of micro-batches, and gradients that `shard_optimizer`
reduces to slices, are always reduced. With `wire`, the bytes of a gradient are those that are sent. Excludes
optimize=False and parameter servers.)",
                                         TextOfFactors, SetFactors}),
      OfStrategy("bool", Bound("optimize", &O::optimize, R"(
True runs all passes. False runs only those that the program needs to run: no buckets and no `factors`.)")),
      OfStrategy("bool", Bound("replicated", &O::replicated, R"(
True allows that all ranks get the same inputs and compute the same. False: a graph that has no input or state split
over several ranks is an error. Without a `world`, True allows that each process of a job trains a model of its own.)")),
      OfStrategy("bool", Bound("check_numerics", &O::check_numerics, R"(
True makes a step an error on all ranks if a result or the next value of a state has a NaN, or an infinity that an op
made from finite numbers. The error names this op with its layer, rank and step (docs/numerics.md), and the states are
those before the step. Each step then copies the states that it updates, and reads them and its results. A step that a
loss scale skips is no error, unless its loss is NaN. Excludes parameter servers and an axis "stage".)")),
      OfStrategy("int", Number("verify_hardware", &O::verify_hardware, 0, kAnyNumber, R"(
Every `verify_hardware` steps, the next rank computes each rank's part of the step again, with a program and memory of
its own. If a bit differs, it is an error on all ranks that names the host that computed wrongly, and the states are
those before the step (docs/numerics.md). With 512, it takes about 0.3 % of the time. 0: never. Requires the backend
"cpu". Excludes parameter servers, an axis "stage" and `shared_weights`.)")),
      OfMachine("int", Number("check_every", &O::check_every, 0, kAnyNumber, R"(
Ranks compare the contents of replicated inputs and states every `check_every` calls. 0: never. Equal on all ranks.)")),
      OfMachine("str", Bound("isa", &O::isa, R"(
The instruction set of the processor that kernels may use: "sse41", "avx2" or "avx512". Empty: everything that the
processor has. Set it if ranks have different processors. It holds for the whole process, so pass it to the first
`compile`. For the backend "cuda": the GPU for which code is generated ("h200", "sm_90"). Empty: the first GPU of this
machine. Loading a program requires the GPU; `lockstep-run --dry` prints the steps for a GPU that is not present.)")),
      OfStrategy("bool", Bound("tf32", &O::tf32, R"(
True lets GPUs multiply f32 matrices with significands of 10 bits (TF32), which is several times as fast.)")),
      OfMachine("bool", Bound("tune", &O::tune, R"(
True measures the times of cuBLASLt's algorithms for each matrix product, and of cuDNN's engines for each convolution,
on rank 0's GPU. All ranks then use the fastest. They differ in rounding. A file below ~/.cache/lockstep keeps the choices, so that later programs on this machine
compute the same bits. False uses the libraries' first choices, without a file.)")),
      OfMachine("int | None", Number("memory_limit", &O::memory_limit, 1, kAnyNumber, R"(
The maximum number of bytes that this rank holds during and between calls, as `exe.memory` counts them: states,
constants, buckets of collectives and the arena. None: no limit. Inputs and results belong to the caller and are not
counted. If a step needs more, values are recomputed instead of kept, starting with those that cost least for their
bytes. Results have the same bits. `exe.recomputed` and `exe.steps` show the cost. If the limit cannot be kept, the
error names the smallest limit that was found. Ranks may have different limits.)")),
      OfMachine("bool", Bound("profile", &O::profile, R"(
True runs the steps of a GPU one by one and waits for each, so that `exe.profile` has the time of each step, with its
launch and the wait. Calls take longer. Steps of a CPU always run like this. Equal on all ranks.)")),
      OfMachine("bool", Bound("verify", &O::verify, R"(
True compares the program of all ranks with that of one rank in exact arithmetic (docs/verify.md). If they differ, the
error names the pass that made the difference, the first value that differs and its ranks. A program that is distributed
already is compared with itself. A large program is made smaller first, which is then compared in its place. It may be
True on one rank alone, as the program is the same on all.)")),
  };
}

}  // namespace

const std::vector<CompileOption>& CompileOptionTable() {
  static const std::vector<CompileOption> table = MakeTable();
  return table;
}

const CompileOption& CompileOptionNamed(std::string_view name) {
  const std::vector<CompileOption>& table = CompileOptionTable();
  const auto it =
      std::find_if(table.begin(), table.end(), [&](const CompileOption& each) { return each.name == name; });
  LOCKSTEP_CHECK(it != table.end()) << name;
  return *it;
}

namespace {

std::vector<CompileOption> OptionsOfStrategy() {
  std::vector<CompileOption> options = CompileOptionTable();
  std::erase_if(options, [](const CompileOption& option) { return !option.is_of_strategy; });
  return options;
}

}  // namespace

absl::StatusOr<Strategy> StrategyFrom(const std::vector<NamedText>& texts) {
  for (const CompileOption& option : CompileOptionTable()) {
    const auto is_it = [&](const NamedText& each) { return each.first == option.name; };
    if (!option.is_of_strategy && std::any_of(texts.begin(), texts.end(), is_it))
      return InvalidArgument() << option.name << " concerns one rank and its machine, and is not part of a strategy";
  }
  CompileOptions options;
  RETURN_IF_ERROR(SetOptions(OptionsOfStrategy(), texts, options));
  return static_cast<const Strategy&>(options);
}

std::string Strategy::ToString() const {
  CompileOptions options;
  static_cast<Strategy&>(options) = *this;
  return OptionsToText(OptionsOfStrategy(), options);
}

absl::StatusOr<Strategy> Strategy::Parse(std::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<NamedText> texts, ParseNamedTexts(text));
  return StrategyFrom(texts);
}

}  // namespace lockstep
