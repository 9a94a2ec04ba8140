#include "backends/option_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

using passes::ServerOptions;
using Option = OptionOf<CompileOptions>;

// --- How options are set and printed ---------------------------------------------------------------------------------

// A whole number within bounds; T is an integer, or may be absent.
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
constexpr int64_t kMaxThreads = 1024;  // of a rank: more than hosts have cores

// The option, whose text is one of `choices`.
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

// What goes before counts.
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
    return InvalidArgument() << " is " << text << ", expected true, false, or operations for a byte, more than 0";
  }
  options.factors = operations;
  return absl::OkStatus();
}

absl::Status SetStrategy(CompileOptions& options, std::string_view text) {
  options.servers.reset();
  if (text == "parameter_server") options.servers.emplace();
  return absl::OkStatus();
}

// An option of parameter servers, which there have to be unless it is false.
template <typename Text, typename Set>
Option OfServers(std::string name, Text text, Set set, std::string doc) {
  return {std::move(name), std::move(doc),
          [text](const CompileOptions& options) { return ToText(text(options.servers.value_or(ServerOptions()))); },
          [set](CompileOptions& options, std::string_view given) -> absl::Status {
            if (options.servers) return set(*options.servers, given);
            if (given == "false") return absl::OkStatus();
            return InvalidArgument() << " is of servers, with strategy=\"parameter_server\"";
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
  return InvalidArgument() << " is for asynchronous=True; other workers wait for each other in each step";
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

CompileOption OfStrategy(std::string type, std::string default_value, Option option) {
  return {std::move(option), std::move(type), std::move(default_value), true};
}

CompileOption OfMachine(std::string type, std::string default_value, Option option) {
  return {std::move(option), std::move(type), std::move(default_value), false};
}

using O = CompileOptions;

std::vector<CompileOption> MakeTable() {
  return {
      OfStrategy("Mapping[str, int] | None", "None", Bound("mesh", &O::mesh, R"(
The ranks as a grid with named axes, the last one fastest: with `{"data": 2, "model": 2}`, ranks 0 and 1 differ along
"model", ranks 0 and 2 along "data". The product of the sizes is the number of ranks. None is `{"data": world.size}`.
Along an axis "stage", ranks are the stages of a pipeline: a training step is cut into parts of about equal cost, and
each rank has one part with its weights; the micro-batches of `train_step(accumulate=…)` follow each other through the
parts (docs/pipeline.md).)")),
      OfStrategy("Mapping[str, Mapping[str, int]] | None", "None",
                 {"split", R"(
States and inputs that the ranks share along an axis, each with the dimension that is split. With
`{"fc1.weight": {"model": 0}, "fc2.weight": {"model": 1}}` each rank holds a part of both weights. What the optimizer
keeps for a state is split with it. Inputs are split along "data" already, as `load_onnx` says.)",
                  TextOfPlacements, AddPlacements}),
      OfStrategy("Mapping[str, Placement] | None", "None",
                 {"placements", R"(
The same for names and patterns: `{"fc1.*": split(0, "model"), "fc*": replicated()}`, with `lockstep.split` and
`lockstep.replicated`. The first entry that matches a state or input counts, and `split` comes before `placements`.
Patterns do not match what the optimizer keeps. A `Plan` of `lockstep.plan` is accepted too; its mesh is then the mesh
of the program (docs/model_parallelism.md).)",
                  NoText, AddPlacements}),
      OfStrategy("bool", "False", Bound("shard_optimizer", &O::shard_optimizer, R"(
True lets the ranks along "data" share what optimizers keep for weights, such as momenta and averages, as the first
stage of ZeRO does. Gradients are reduced to slices, each rank updates the slice whose momentum it has, and the slices
of the new weights are gathered. The number of bytes sent is the same. Results have the same bits, except where norms of
gradients are sums over slices, and where batch normalisation by the statistics of all ranks adds the ranks' means. A
state without a dimension that the ranks can share evenly stays whole. `exe.state` shows the slices of this rank;
checkpoints have all of them.)")),
      OfStrategy("bool", "False",
                 {"shared_weights", R"(
True lets the ranks along "data", which are processes or threads of one host, keep one copy of the weights in shared
memory. It includes `shard_optimizer`: each rank updates its slices of the weights in place, after the last use of the
old ones on any rank, and no new weights are sent. With Adam, n ranks hold n copies of the gradients, and one of the
weights and moments. Results have the bits of `shard_optimizer`, and `exe.memory` counts this rank's share. Frozen
weights and those of an evaluation are shared too. Each rank has its own copy of what ranks cannot share evenly along
the outermost dimension, and of what all of them update alike (batch statistics, plain SGD). Assigning a shared state
waits for the other ranks, which must assign the same value. An error for ranks on several hosts, and on GPUs.)",
                  [](const O& options) { return ToText(options.shared_weights); }, SetSharedWeights}),
      OfMachine("int | None", "None", Number("threads", &O::threads, 1, kMaxThreads, R"(
Threads of this rank, equal on all ranks, at most 1024. None is OMP_NUM_THREADS if that is set, else the cores of this
process divided by the number of ranks on the host that has most.)")),
      OneOf({"all_reduce", "parameter_server"},
            OfStrategy(
                "str | Strategy", "\"all_reduce\"",
                {"strategy", R"(
What updates the trained weights. With "all_reduce", each rank updates them by the sum of all gradients. With
"parameter_server", the servers of the job do (`lockstep launch -n N -s S`): a rank pushes each gradient as soon as it
is computed, the servers run the optimizer, and the new weights come back at the end of the call
(docs/parameter_servers.md). Servers keep what the optimizer keeps, so no rank has it; `exe.state`, `save` and `load`
work as always. Servers need the backend "cpu", and an optimizer whose update needs only its gradient, its states and
its settings; f16 with its scaled loss and `uneven` need "all_reduce", and so do clipping and `accumulate` with
synchronous updates. `wire`, `buckets`, `bucket_bytes` and `factors` are options of all-reduces. A `Strategy`, or its
text such as "mesh={data=2},wire=bf16", gives all the options in it; giving one of them again is an error.)",
                 [](const O& options) -> std::string { return options.servers ? "parameter_server" : "all_reduce"; },
                 SetStrategy})),
      OfStrategy("bool", "False",
                 OfServers(
                     "asynchronous", [](const ServerOptions& s) { return !s.synchronous; }, SetAsynchronous, R"(
An option of "parameter_server". False: an update waits for the gradients of all ranks, and the bits are those of
"all_reduce" in rank order. True: each gradient is an update at once, and no rank waits. The step of a rank is then a
program of its own, with its own batch, loss and number of calls. States are still assigned, saved and loaded by all
ranks together; the values and settings of rank 0 count.)")),
      OfStrategy("int | None", "None",
                 OfServers(
                     "max_staleness", [](const ServerOptions& s) { return s.max_staleness; }, SetMaxStaleness, R"(
An option of asynchronous servers: how many updates a rank may be ahead of the slowest one before it waits, at least 0.
None is any number. When ranks meet, as in `exe.save`, their numbers of calls may differ by this number at most.
`exe.staleness()` says how late gradients were.)")),
      OfStrategy("int | None", "None",
                 OfServers(
                     "bigarray_bound", [](const ServerOptions& s) { return s.bigarray_bound; }, SetBigarrayBound, R"(
An option of "parameter_server": weights of more elements than this are divided evenly among all servers; others are on
one server each. None is a million. Weights of optimizers that update a weight as a whole (LAMB, Muon) are never
divided.)")),
      OfStrategy("int | None", "None", Number("bucket_bytes", &O::bucket_bytes, 1, kAnyNumber, R"(
Gradients are reduced together in buckets of about this size, in bytes. None is 4 MiB.)")),
      OfStrategy("Report | None", "None",
                 {"buckets", R"(
The `exe.report()` of an executable of the same step that ran on these ranks. Buckets are then chosen so that the step
ends as early as possible, from the times at which each gradient was computed, the times of its updates, and the
duration of collectives of different sizes, which is measured now in about a second. Each rank gives its own report; the
latest times of all ranks count, so all ranks choose the same buckets. The step may have had another `wire`, except
"int8", for which gradients have no times. Results have the same bits, except on more than two hosts, where buckets of
other sizes may take routes that add in another order (`order="rank"` keeps one order). What times do not decide follows
`bucket_bytes`: gathers of new weights, and everything along an axis whose ranks share memory. For the backend "cpu"
only.)",
                  [](const O& options) { return ToText(options.measured); },
                  [](O& options, std::string_view text) { return FromText(text, options.measured); }}),
      OneOf({"bf16", "int8"}, OfStrategy("str | None", "None", Bound("wire", &O::wire, R"(
The type as which f32 gradients are sent between ranks. "bf16" takes half the bytes: values are rounded to 8 bits of
significand, added in f32, and the sum is rounded again. "int8" takes a quarter of the bytes: values are integers from
-127 to 127 with a scale for each 256 of them; what rounding removes is kept on each rank, in f32 and as large as the
gradients, and added in the next step (docs/wire.md). It applies to the gradients of `train_step`; the loss, statistics
and norms are sent as they are. An error with `shard_optimizer` and `shared_weights`, whose ranks get slices of
gradients. None sends f32.)"))),
      OfStrategy("bool | float | None", "None",
                 {"factors", R"(
Whether ranks send the factors of a gradient in place of the gradient. The gradient of a layer's weights is a product;
with a batch of few rows and a wide layer, its factors are much smaller than the product. With a number, ranks gather
the factors of all rows and each computes the whole product where the product takes fewer operations than this number
for each byte that is saved. The gradient of an embedding is then computed from the rows that were looked up. The sum
over the batch has the order of one rank, and so has other bits than a sum of ranks' sums. True counts bytes only. False
reduces every gradient. None is 100 where ranks along "data" are on several hosts, and False where all are on one host
or the communicator has `order="rank"`. Gradients of micro-batches, and those that `shard_optimizer` reduces to slices,
are always reduced. With `wire`, the size of a gradient is that which is sent.)",
                  TextOfFactors, SetFactors}),
      OfStrategy("bool", "True", Bound("optimize", &O::optimize, R"(
False runs only the passes that are needed to run the program: no buckets, and no `factors`.)")),
      OfStrategy("bool", "False", Bound("replicated", &O::replicated, R"(
True says that all ranks are meant to get the same inputs. If it is False, a graph that has no input or state split over
several ranks is an error, since every rank would compute the same. Without a `world`, True says that each process of a
job trains a model of its own.)")),
      OfMachine("int", "512", Number("check_every", &O::check_every, 0, kAnyNumber, R"(
Ranks compare the contents of replicated inputs and states every `check_every` calls; 0 is never. Equal on all ranks.)")),
      OfMachine("str", "\"\"", Bound("isa", &O::isa, R"(
What kernels may use of the processor: "sse41", "avx2" or "avx512"; everything that it has if empty. It is meant for
ranks on different processors. It holds for the whole process, so it has to be given to the first `compile`. For the
backend "cuda", the GPU for which code is generated ("h200", "sm_90"); the first one of this machine if empty. A GPU has
to be present when the program is loaded; `lockstep-run --dry` prints the steps for a GPU that is not.)")),
      OfStrategy("bool", "False", Bound("tf32", &O::tf32, R"(
True lets GPUs multiply f32 matrices with significands of 10 bits (TF32), which is several times as fast.)")),
      OfMachine("bool", "False", Bound("tune", &O::tune, R"(
True times cuBLASLt's algorithms for each matrix product on rank 0's GPU; all ranks then use the fastest one. Algorithms
differ in rounding. A file below ~/.cache/lockstep keeps the choices, so that later programs on this machine compute the
same bits. False uses the library's first choice, without a file.)")),
      OfMachine("int | None", "None", Number("memory_limit", &O::memory_limit, 1, kAnyNumber, R"(
Bytes that this rank may hold during and between calls, as `exe.memory` counts them: states, constants, buckets of
collectives and the arena. Inputs and results belong to the caller and are not counted. If a step takes more, values are
recomputed instead of kept, starting with those that cost least for their bytes; results have the same bits.
`exe.recomputed` and `exe.steps` say what that costs. A limit that cannot be kept is an error that names the smallest
limit that was found. Ranks may have different limits.)")),
      OfMachine("bool", "False", Bound("profile", &O::profile, R"(
True runs the steps of a GPU one by one and waits for each, so that `exe.profile` has a time for each step, including
its launch and the wait; calls take longer. Steps of a CPU always run so. Equal on all ranks.)")),
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
