// Ranks that train a small step on fake GPUs, as processes that mpirun starts or as threads of this one. ranks_test.sh
// starts them and compares their output.
//   rank_main [threads=N] [gpus=N] [model=N] [over=nccl|host] [WHAT=WHERE [run=N]]
// Each rank prints "rank R of N over nccl: weights HASH, L launches of a graph", or its error: "rank R after T s:
// STATUS". `gpus` is the number of GPUs of the machine; `over` is the transport that the ranks must use; `model` splits
// the weights over that many ranks, along an axis of its own. Rank 1
//   kill=WHERE, stop=WHERE  gets SIGKILL or SIGSTOP: `open`, when it opens its GPU; `join`, when it makes NCCL's
//                           communicator; `load`, when it allocates; `between`, before a run; `step`, while its GPU
//                           executes a step;
//   differ=load             loads a program with another learning rate;
//   leave=between           ends before a run, without an error;
//   label=step              gets a label out of range.
// WHERE happens in run number `run`, 0 by default. Run 1 is captured as a CUDA graph where that is possible.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "backends/compile.h"
#include "backends/run_in_process.h"
#include "core/local_part.h"
#include "core/printer.h"
#include "core/status.h"
#include "passes/training/train_step.h"
#include "runtime/comm/mpi/mpi.h"
#include "runtime/execution/executor.h"
#include "runtime/hash.h"
#include "test/fake_cuda/fake_backend.h"
#include "test/fake_cuda/load.h"

namespace lockstep {
namespace {

constexpr int kRuns = 5;
constexpr int kCulprit = 1;
constexpr auto kTimeout = absl::Seconds(2);

struct Plan {
  int threads = 0;  // 0: ranks are processes
  int gpus = 8;
  int model = 1;  // number of ranks along the axis `model`
  std::string over;
  std::string what, where;
  int run = 0;

  bool Does(const char* thing, const char* place) const { return what == thing && where == place; }
};

absl::StatusOr<Graph> MlpStep(double learning_rate, bool splits_weights) {
  const std::string w = splits_weights ? " split(1, model)" : "", u = splits_weights ? " split(0, model)" : "";
  ASSIGN_OR_RETURN(Graph graph, ParseGraph("\ngraph @mlp(%x: f32[12,6] split(0), state %w: f32[6,10]" + w +
                                           ", state %u: f32[10,5]" + u + ") -> (logits: f32[12,5]) {" + R"(
  %z = matmul %x, %w : f32[12,10]
  %h = tanh %z : f32[12,10]
  %logits = matmul %h, %u : f32[12,5]
  return %logits
}
)"));
  passes::TrainStepSpec spec;
  spec.optimizer = {"SGD", {{"learning_rate", learning_rate}, {"momentum", 0.9}}};
  RETURN_IF_ERROR(passes::MakeTrainStep(graph, spec));
  return graph;
}

Tensor Values(const TensorType& type, int salt) {
  Tensor tensor(type);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (type.dtype == DType::kI64) tensor.mutable_data<int64_t>()[i] = (i + salt) % 5;
    else tensor.mutable_data<float>()[i] = static_cast<float>((i * 7 + salt * 3) % 11 - 5) / 7;
  }
  return tensor;
}

// One rank, from its GPU to its weights.
class Rank {
 public:
  Rank(const Plan& plan, const Backend& backend, cuda::FakeDriver& driver, Communicator& world)
      : plan_(plan), backend_(backend), driver_(driver), world_(world), culprit_(world.rank() == kCulprit) {}

  absl::Status Train() {
    if (culprit_ && plan_.where == "open") {
      driver_.OnCall("cuDevicePrimaryCtxRetain", 1, [this] { return Signal(), cuda::CUDA_SUCCESS; });
    }
    if (culprit_ && plan_.where == "join") {
      cuda::TheFakeNccl().OnCall("ncclCommInitRankConfig", 1, [this] { return Signal(), cuda::ncclSuccess; });
    }
    ASSIGN_OR_RETURN(const RankDevice opened, backend_.OpenDevice(world_));
    const std::string& transport = opened.communicator->transport();
    if (!transport.ends_with(plan_.over))
      return Internal() << "the ranks' transport is " << transport << ", not " << plan_.over;
    CompileOptions options;
    options.mesh = plan_.model > 1 ? Mesh({{"data", world_.size() / plan_.model}, {"model", plan_.model}})
                                   : Mesh({{"data", world_.size()}});
    ASSIGN_OR_RETURN(Graph graph, MlpStep(culprit_ && plan_.what == "differ" ? 0.2 : 0.3, plan_.model > 1));
    ASSIGN_OR_RETURN(Executable executable, Compile(std::move(graph), backend_, options));
    if (culprit_ && plan_.where == "load" && plan_.what != "differ") {
      driver_.OnCall("cuMemAlloc", 1, [this] { return Signal(), cuda::CUDA_SUCCESS; });
    }
    ASSIGN_OR_RETURN(const auto executor,
                     Executor::Load(std::move(executable), opened.communicator, opened.device.get()));
    for (const ValueInfo& state : executor->executable().states) {
      const Tensor value = LocalPart(Values(state.global_type, 1), state.placements, options.mesh, world_.rank());
      RETURN_IF_ERROR(executor->AssignState(state.name, {value.type(), value.bytes()}));
    }
    for (int run = 0; run < kRuns; ++run) {
      const bool now = culprit_ && run == plan_.run;
      if (now && plan_.Does("leave", "between")) return absl::OkStatus();
      if (now && plan_.where == "between") Signal();
      if (now && plan_.where == "step" && plan_.what != "label") RETURN_IF_ERROR(SignalInStream(*opened.device));
      RETURN_IF_ERROR(Run(*executor, run, now && plan_.what == "label"));
    }
    return Report(*executor);
  }

 private:
  void Signal() const { kill(getpid(), plan_.what == "stop" ? SIGSTOP : SIGKILL); }
  // Makes the signal arrive when the host has queued the step or is about to.
  absl::Status SignalInStream(Device& device) {
    return device.RunOnHost([this] {
      absl::SleepFor(absl::Milliseconds(100));
      Signal();
      return absl::OkStatus();
    });
  }

  absl::Status Run(Executor& executor, int run, bool bad_label) const {
    const Executable& loaded = executor.executable();
    std::vector<Tensor> parts;
    std::vector<NamedInput> inputs;
    parts.reserve(loaded.inputs.size());
    for (const ValueInfo& input : loaded.inputs) {
      Tensor& part =
          parts.emplace_back(LocalPart(Values(input.global_type, run), input.placements, loaded.mesh, world_.rank()));
      if (bad_label && input.global_type.dtype == DType::kI64) part.mutable_data<int64_t>()[1] = 9;
      inputs.push_back({input.name, {part.type(), part.bytes()}});
    }
    return executor.Run(inputs, {});
  }

  absl::Status Report(Executor& executor) const {
    uint64_t hash = 0;
    for (const ValueInfo& state : executor.executable().states) {
      Tensor value(state.local_type);
      RETURN_IF_ERROR(executor.ReadState(state.name, {value.type(), value.mutable_bytes()}));
      hash = HashBytes(value.bytes(), value.num_bytes(), hash);
    }
    const std::vector<std::string> calls = driver_.calls();
    const auto launches = std::count_if(calls.begin(), calls.end(),
                                        [](const std::string& call) { return call.rfind("cuGraphLaunch", 0) == 0; });
    std::printf("rank %d of %d over %s: weights %016llx, %d launches of a graph\n", world_.rank(), world_.size(),
                plan_.over.c_str(), static_cast<unsigned long long>(hash), static_cast<int>(launches));
    return absl::OkStatus();
  }

  const Plan& plan_;
  const Backend& backend_;
  cuda::FakeDriver& driver_;
  Communicator& world_;
  const bool culprit_;
};

// Prints the status in one line.
void Tell(int rank, absl::Time begin, const absl::Status& status) {
  std::string text = status.ToString();
  std::replace(text.begin(), text.end(), '\n', '|');
  std::printf("rank %d after %.1f s: %s\n", rank, absl::ToDoubleSeconds(absl::Now() - begin), text.c_str());
  std::fflush(stdout);
}

absl::Status RunProcess(const Plan& plan, const Backend& backend, cuda::FakeDriver& driver) {
  WorldOptions options;
  options.communicator.timeout = plan.what == "stop" ? kTimeout : absl::Minutes(2);
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> world, CreateMpi(options));
  ASSIGN_OR_RETURN(const std::vector<std::string> processes,
                   world->AllGatherBytes(std::to_string(getpid()), "processes"));
  const absl::Time begin = absl::Now();
  const absl::Status status = Rank(plan, backend, driver, *world).Train();
  if (status.ok()) return status;
  world->Abort(status);
  Tell(world->rank(), begin, status);
  absl::SleepFor(absl::Seconds(1));  // until all others have printed: mpirun may end them with this rank
  if (plan.what == "stop") kill(std::stoi(processes[kCulprit]), SIGKILL);
  return status;
}

absl::Status RunThreads(const Plan& plan, const Backend& backend, cuda::FakeDriver& driver) {
  const absl::Time begin = absl::Now();
  return ForEachRank(plan.threads, [&](Communicator& world) {
    const absl::Status status = Rank(plan, backend, driver, world).Train();
    if (!status.ok()) Tell(world.rank(), begin, status);
    return status;
  });
}

int Main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const std::string value = argument.substr(std::min(argument.size(), name.size() + 1));
    if (name == "threads") plan.threads = std::atoi(value.c_str());
    else if (name == "gpus") plan.gpus = std::atoi(value.c_str());
    else if (name == "model") plan.model = std::atoi(value.c_str());
    else if (name == "run") plan.run = std::atoi(value.c_str());
    else if (name == "over") plan.over = value;
    else plan.what = name, plan.where = value;
  }
  const std::unique_ptr<Backend> backend = cuda::CreateFakeCudaBackend(plan.gpus);
  cuda::FakeDriver& driver = cuda::TheFakeDriver();
  const absl::Status status =
      plan.threads > 0 ? RunThreads(plan, *backend, driver) : RunProcess(plan, *backend, driver);
  if (plan.what.empty()) {
    for (const std::string& text : driver.misuse()) std::printf("misuse: %s\n", text.c_str());
    for (const std::string& text : driver.leaks()) std::printf("left: %s\n", text.c_str());
    if (!driver.misuse().empty() || !driver.leaks().empty()) return 1;
  }
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
