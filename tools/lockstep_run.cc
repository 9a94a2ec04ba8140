// lockstep-run: runs a graph in text form on a backend, with all ranks in this process. See kUsage.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "backends/roofline.h"
#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "core/local_types.h"
#include "core/printer.h"
#include "core/random.h"
#include "core/random_tensor.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/split_inputs.h"
#include "passes/dump.h"
#include "tools/command_line.h"

ABSL_FLAG(std::string, backend, "cpu", "the backend to run on");
ABSL_FLAG(int, ranks, 1, "ranks in this process; a graph without a mesh is distributed over {data=ranks}");
ABSL_FLAG(int, threads, 1, "threads of each rank");
ABSL_FLAG(std::string, strategy, "", "options that ranks share (docs/options.md), such as wire=bf16,optimize=false");
ABSL_FLAG(std::string, isa, "", "the instruction set that kernels may use, or the GPU to compile for (\"h200\")");
ABSL_FLAG(bool, tune, false,
          "products and convolutions on GPUs use the fastest algorithm, found by timing when the program is loaded");
ABSL_FLAG(bool, dry, false, "only compile and print the steps, which needs no such machine");
ABSL_FLAG(bool, roofline, false,
          "print the least time of each step on the machine that is compiled for, by its operations and bytes");
ABSL_FLAG(bool, compare, false, "compare every result of every rank with the interpreter");
ABSL_FLAG(double, tolerance, 1e-4, "largest difference for --compare, relative to the largest magnitude of a result");
ABSL_FLAG(bool, print_graph, false, "print the graph that is given to the backend");
ABSL_FLAG(bool, brief, false, "with --print-graph: one line for each node, and no sources");
ABSL_FLAG(bool, print_steps, false, "print the executable's steps");
ABSL_FLAG(bool, print_results, false, "print the results of rank 0");
ABSL_FLAG(int, repeat, 0, "time this many runs, after a tenth as many to warm up");
ABSL_FLAG(bool, profile, false, "with --repeat: print the time of each step on rank 0; GPUs then wait after each step");
ABSL_FLAG(uint64_t, seed, 1, "the seed of the random inputs, and of random numbers in the graph");

namespace lockstep {
namespace {

constexpr char kUsage[] = R"(runs a graph in text form on a backend, with random inputs.

  lockstep-run [flags] [FILE]            FILE or '-' or nothing: standard input

  lockstep-run step.ir --compare                        run once, compare with the interpreter
  lockstep-run step.ir --ranks=4 --compare              the same on 4 ranks, which are threads
  lockstep-run step.ir --strategy=mesh={data=2,model=2} the same on a mesh, with other options of compile
  lockstep-run step.ir --threads=2 --repeat=100         time it
  lockstep-run step.ir --repeat=20 --profile            time each of its steps
  lockstep-run step.ir --repeat=20 --profile --roofline ... with the least time that this machine needs for it
  lockstep-run step.ir --print-graph --brief            the compiled graph, a line for each node
  lockstep-run step.ir --print-steps                    the compiled steps
  lockstep-run step.ir --backend=cuda --isa=h200 --dry  the compiled steps for a GPU that this machine lacks
  lockstep-run step.ir --backend=cuda --isa=h200 --dry --roofline  the least time of each on that GPU

With LOCKSTEP_DUMP=DIR in the environment the graph after each pass that changed it goes to DIR/<graph>/.
Floats are uniform in [-1, 1], integers 0 to 4; --seed decides these and random numbers in the graph. Errors and
differences give exit code 1.)";

// The largest difference between two results, relative to the largest expected magnitude.
double RelativeDifference(const Tensor& actual, const Tensor& expected) {
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    const double a = actual.At(i), e = expected.At(i);
    largest = std::max(largest, std::abs(e));
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    difference = std::isfinite(a - e) ? std::max(difference, std::abs(a - e)) : HUGE_VAL;
  }
  return largest > 0 ? difference / largest : difference;
}

absl::Status Compare(const Graph& graph, const std::vector<std::vector<Tensor>>& inputs,
                     const std::vector<std::vector<Tensor>>& actual) {
  ASSIGN_OR_RETURN(const auto expected, Interpret(graph, inputs));
  bool equal = true;
  for (size_t i = 0; i < graph.results().size(); ++i) {
    double worst = 0;
    for (size_t rank = 0; rank < actual.size(); ++rank)
      worst = std::max(worst, RelativeDifference(actual[rank][i], expected[rank][i]));
    const Result& result = graph.results()[i];
    const bool close = worst <= absl::GetFlag(FLAGS_tolerance);
    std::printf("%s %s%s %s: difference %.2g\n", close ? "equal  " : "DIFFERS", result.is_state ? "state " : "",
                result.name.c_str(), result.value.type().ToString().c_str(), worst);
    equal = equal && close;
  }
  if (!equal) return InvalidArgument() << "results differ from the interpreter's";
  return absl::OkStatus();
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// With a roofline, the second column is the least time of each step, as a share of the measured time.
void PrintProfile(const Executor& executor, int runs, const std::optional<Roofline>& roofline) {
  std::map<const StepInfo*, double> least;
  if (roofline) {
    for (const StepFloor& floor : roofline->steps) least[floor.step] = floor.seconds();
  }
  std::vector<StepProfile> profile = executor.profile();
  std::stable_sort(profile.begin(), profile.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  for (const StepProfile& step : profile) {
    const double seconds = step.seconds / runs;
    const auto floor = least.find(step.step);
    const std::string share = floor == least.end() ? "" : absl::StrFormat("%4.0f %%  ", 100 * floor->second / seconds);
    std::printf("%10.1f us  %s%s\n", seconds * 1e6, share.c_str(), step.step->ToString().c_str());
  }
}

absl::Status Time(Executor& executor, const Graph& graph, const std::vector<Tensor>& inputs, bool print) {
  const int repeat = absl::GetFlag(FLAGS_repeat);
  std::vector<NamedInput> named;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = graph.inputs()[i];
    if (input.is_data()) named.push_back({input.name(), {inputs[i].type(), inputs[i].bytes()}});
  }
  for (int i = 0; i <= repeat / 10; ++i) RETURN_IF_ERROR(executor.Run(named, {}));
  executor.ResetCounters();
  std::vector<double> seconds;
  for (int i = 0; i < repeat; ++i) {
    const double begin = Now();
    RETURN_IF_ERROR(executor.Run(named, {}));
    seconds.push_back(Now() - begin);
  }
  if (!print) return absl::OkStatus();
  std::sort(seconds.begin(), seconds.end());
  const ExecutorCounters& counters = executor.counters();
  std::printf(
      "%d runs: median %.3f ms, best %.3f ms; mean %.3f ms, of which kernels %.1f %%, communication %.1f %%, executor "
      "%.2f %%\n",
      repeat, seconds[seconds.size() / 2] * 1e3, seconds[0] * 1e3, counters.total / repeat * 1e3,
      100 * counters.kernels / counters.total, 100 * counters.communication / counters.total,
      100 * counters.outside_kernels() / counters.total);
  return absl::OkStatus();
}

absl::Status PrintCompiledGraph(const Executable& executable) {
  if (!absl::GetFlag(FLAGS_brief)) {
    std::printf("%s\n", executable.graph_text.c_str());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Graph graph, ParseGraph(executable.graph_text));
  std::printf("%s\n", PrintGraph(graph, {.brief = true}).c_str());
  return absl::OkStatus();
}

// Prints the roofline if the flag asks for it, and returns it.
absl::StatusOr<std::optional<Roofline>> PrintRoofline(const Executable& executable) {
  if (!absl::GetFlag(FLAGS_roofline)) return std::nullopt;
  ASSIGN_OR_RETURN(const Ceilings ceilings, executable.ceilings());
  const Roofline roofline = RooflineOf(executable, ceilings);
  std::printf("%s", roofline.ToString(/*most_steps=*/roofline.steps.size()).c_str());
  return roofline;
}

// Compiles and prints once: the output is the same for all ranks.
absl::Status CompileOnly(const Graph& graph, const Backend& backend, const CompileOptions& options) {
  ASSIGN_OR_RETURN(const Executable executable, Compile(graph.Clone(), backend, options));
  if (absl::GetFlag(FLAGS_print_graph)) RETURN_IF_ERROR(PrintCompiledGraph(executable));
  if (absl::GetFlag(FLAGS_roofline)) return PrintRoofline(executable).status();
  std::printf("%s\n", executable.ToString().c_str());
  return absl::OkStatus();
}

struct Programs {
  Graph compiled;
  Graph of_rank;  // with the types of a rank, as the interpreter runs it
};

// Distributes a graph without a mesh over that of the options. Virtual ranks are ranks only to Compile, which then
// distributes the graph itself.
absl::StatusOr<Programs> MakePrograms(Graph graph, CompileOptions& options) {
  std::optional<Graph> compiled;
  if (options.virtual_ranks > 0) compiled = graph.Clone();
  if (graph.mesh().empty() && !options.mesh.empty()) {
    const Mesh sharing = options.shard_optimizer ? options.mesh : Mesh();
    RETURN_IF_ERROR(passes::RunPasses({passes::SplitInputs(options.placements, options.mesh),
                                       passes::ShardOptimizers(sharing), passes::Distribute(options.mesh)},
                                      graph, {}));
  }
  ASSIGN_OR_RETURN(Graph of_rank, ToLocalTypes(graph));
  if (compiled) return Programs{*std::move(compiled), std::move(of_rank)};
  options.placements = {}, options.shard_optimizer = false, options.mesh = of_rank.mesh();
  return Programs{of_rank.Clone(), std::move(of_rank)};
}

absl::Status RunRank(Communicator& communicator, const Programs& programs, const Backend& backend,
                     const CompileOptions& options, const std::vector<Tensor>& inputs, std::vector<Tensor>& results) {
  const bool print = communicator.rank() == 0;
  const double begin = Now();
  // All ranks run the same graph, so only one dumps it.
  CompileOptions own_options = options;
  if (!print) own_options.debug = {};
  ASSIGN_OR_RETURN(Executable executable, Compile(programs.compiled.Clone(), backend, own_options));
  if (print) std::printf("compiled in %.0f ms\n", (Now() - begin) * 1e3);
  if (print && absl::GetFlag(FLAGS_print_graph)) RETURN_IF_ERROR(PrintCompiledGraph(executable));
  if (print && absl::GetFlag(FLAGS_print_steps)) std::printf("%s\n", executable.ToString().c_str());
  ASSIGN_OR_RETURN(const RankDevice opened, backend.OpenDevice(communicator));
  ExecutorOptions executor_options;
  executor_options.profile = absl::GetFlag(FLAGS_profile);
  ASSIGN_OR_RETURN(const auto executor,
                   Executor::Load(std::move(executable), opened.communicator, opened.device.get(), executor_options));
  ASSIGN_OR_RETURN(results, RunOnce(*executor, programs.of_rank, inputs));
  if (absl::GetFlag(FLAGS_repeat) > 0) RETURN_IF_ERROR(Time(*executor, programs.of_rank, inputs, print));
  if (!print) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<Roofline> roofline, PrintRoofline(executor->executable()));
  if (absl::GetFlag(FLAGS_repeat) > 0 && absl::GetFlag(FLAGS_profile))
    PrintProfile(*executor, absl::GetFlag(FLAGS_repeat), roofline);
  return absl::OkStatus();
}

// True if the flags ask for something that needs a run.
bool NeedsRun() {
  return absl::GetFlag(FLAGS_compare) || absl::GetFlag(FLAGS_repeat) > 0 || absl::GetFlag(FLAGS_profile) ||
         absl::GetFlag(FLAGS_print_results);
}

// The inputs of each rank. A graph that draws random numbers (core/random.h) uses the flag as its seed, and starts at
// step 0.
std::vector<std::vector<Tensor>> InputsOfRanks(const Graph& graph) {
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  std::vector<std::vector<Tensor>> inputs = RandomInputs(graph, seed);
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    if (!input.is_state || input.value.type() != TensorType{DType::kI64, Shape()}) continue;
    for (std::vector<Tensor>& of_rank : inputs) {
      if (input.name() == kRandomSeed) of_rank[i] = Tensor::Of<int64_t>({}, {static_cast<int64_t>(seed)});
      if (input.name() == kRandomStep) of_rank[i] = Tensor::Of<int64_t>({}, {0});
    }
  }
  return inputs;
}

absl::Status Main(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadInput(path));
  ASSIGN_OR_RETURN(Graph graph, ParseGraph(text));
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(absl::GetFlag(FLAGS_backend)));
  const int ranks = absl::GetFlag(FLAGS_ranks), threads = absl::GetFlag(FLAGS_threads);
  if (ranks < 1 || threads < 1) return InvalidArgument() << "--ranks and --threads must be at least 1";
  if (absl::GetFlag(FLAGS_dry) && NeedsRun()) {
    return InvalidArgument() << "--dry runs nothing: leave out --compare, --repeat, --profile and --print_results";
  }
  CompileOptions options;
  ASSIGN_OR_RETURN(static_cast<Strategy&>(options), Strategy::Parse(absl::GetFlag(FLAGS_strategy)));
  if (options.mesh.empty() && ranks > 1) options.mesh = Mesh({{std::string(kDataAxis), ranks}});
  ASSIGN_OR_RETURN(const Programs programs, MakePrograms(std::move(graph), options));
  options.threads = threads;
  options.isa = absl::GetFlag(FLAGS_isa);
  options.tune = absl::GetFlag(FLAGS_tune);
  if (const std::string directory = passes::DumpDirectoryFromEnvironment(); !directory.empty()) {
    ASSIGN_OR_RETURN(options.debug, passes::DumpTo(directory, programs.of_rank.name()));
  }
  if (absl::GetFlag(FLAGS_dry)) return CompileOnly(programs.compiled, *backend, options);
  const std::vector<std::vector<Tensor>> inputs = InputsOfRanks(programs.of_rank);
  std::vector<std::vector<Tensor>> results(inputs.size());
  RETURN_IF_ERROR(ForEachRank(static_cast<int>(inputs.size()), [&](Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    return RunRank(communicator, programs, *backend, options, inputs[rank], results[rank]);
  }));
  for (size_t i = 0; absl::GetFlag(FLAGS_print_results) && i < programs.of_rank.results().size(); ++i) {
    std::printf("%s = %s\n", programs.of_rank.results()[i].name.c_str(), results[0][i].ToString().c_str());
  }
  return absl::GetFlag(FLAGS_compare) ? Compare(programs.of_rank, inputs, results) : absl::OkStatus();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::RunTool(argc, argv, "lockstep_run", lockstep::kUsage, lockstep::Main);
}
