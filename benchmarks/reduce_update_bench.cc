// Compares the reduction of a gradient and the update by Adam with MPI_Allreduce and a plain loop, under mpirun:
//   mpirun -np 2 reduce_update_bench [--json] [--mib=100] [--rounds=15]
// One weight has so many MiB of f32. Three contestants alternate within one run: Lockstep, where each rank updates the
// whole weight; Lockstep with a sharded optimizer, where each rank updates a slice; and MPI_Allreduce followed by a
// loop that the compiler vectorises for the processor. Each begins with a gradient that has just been written; in
// Lockstep a kernel of the program writes it, whose time is subtracted. The time of a round is that of the slowest
// rank, measured from a barrier. Prints medians, and medians of the ratios of neighbouring rounds.

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "backends/compile.h"
#include "core/graph.h"
#include "core/printer.h"
#include "core/status.h"
#include "runtime/comm/mpi/mpi.h"
#include "runtime/execution/executor.h"

namespace lockstep {
namespace {

constexpr double kRate = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Get(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double OfSlowestRank(double seconds) {
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

// Row i of x is the gradient of rank i.
std::string Program(int ranks, int64_t count) {
  return absl::StrFormat(R"(
graph @update(%%x: f32[%d,%d] split(0), state %%w: f32[%d], state %%step: i64[], state %%w/m: f32[%d],
              state %%w/v: f32[%d]) -> (%%step: i64[], %%w: f32[%d], %%w/m: f32[%d], %%w/v: f32[%d]) {
  %%g = reduce_sum %%x {dims=[0]} : f32[%d]
  %%one = constant {value=dense<i64[]: 1>} : i64[]
  %%next = add %%step, %%one : i64[]
  %%w1, %%m1, %%v1 = adam %%w, %%w/m, %%w/v, %%next, %%g {learning_rate=0.001} : f32[%d], f32[%d], f32[%d]
  return %%next, %%w1, %%m1, %%v1
}
)",
                         ranks, count, count, count, count, count, count, count, count, count, count, count);
}

class Lockstep {
 public:
  Lockstep(Communicator& world, int64_t count, bool shares_states) : x_(static_cast<size_t>(count)), count_(count) {
    Graph graph = Get(ParseGraph(Program(world.size(), count)));
    CompileOptions options;
    options.mesh = Mesh({{std::string(kDataAxis), world.size()}});
    options.shard_optimizer = shares_states;
    backend_ = Get(CreateBackend("cpu"));
    opened_ = Get(backend_->OpenDevice(world));
    Executable executable = Get(Compile(std::move(graph), *backend_, options));
    executor_ = Get(Executor::Load(std::move(executable), opened_.communicator, opened_.device.get()));
  }

  // Returns the seconds of a call without its first kernel, which writes the gradient.
  double Run(int round) {
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>((i + static_cast<size_t>(round)) % 1000) * 1e-3f;
    const NamedInput x{"x", {{DType::kF32, Shape({1, count_})}, x_.data()}};
    executor_->ResetCounters();
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    Check(executor_->Run({&x, 1}, {}));
    const double seconds = MPI_Wtime() - begin;
    double writing = 0;
    for (const StepProfile& step : executor_->profile()) {
      if (step.step->collective) break;
      writing += step.seconds;
    }
    return OfSlowestRank(seconds - writing);
  }

  std::vector<float> Weights() {
    std::vector<float> w(x_.size());
    Check(executor_->ReadState("w", {{DType::kF32, Shape({count_})}, w.data()}));
    return w;
  }

 private:
  std::vector<float> x_;
  int64_t count_;
  std::unique_ptr<Backend> backend_;
  RankDevice opened_;
  std::unique_ptr<Executor> executor_;
};

// Adam as a hand-written loop. GCC compiles a version of it for each kind of processor.
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) void PlainAdam(
    float* __restrict w, float* __restrict m, float* __restrict v, const float* __restrict g, size_t count, float size,
    float correction) {
  constexpr float beta1 = kBeta1, beta2 = kBeta2, epsilon = kEpsilon;
  for (size_t i = 0; i < count; ++i) {
    m[i] = beta1 * m[i] + (1 - beta1) * g[i];
    v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    w[i] -= size * m[i] / (std::sqrt(v[i]) * correction + epsilon);
  }
}

class Plain {
 public:
  explicit Plain(size_t count) : g_(count), w_(count), m_(count), v_(count) {}

  double Run(int round) {
    for (size_t i = 0; i < g_.size(); ++i) g_[i] = static_cast<float>((i + static_cast<size_t>(round)) % 1000) * 1e-3f;
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, g_.data(), static_cast<int>(g_.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    ++step_;
    const double size = kRate / (1 - std::pow(kBeta1, step_)), correction = 1 / std::sqrt(1 - std::pow(kBeta2, step_));
    PlainAdam(w_.data(), m_.data(), v_.data(), g_.data(), g_.size(), static_cast<float>(size),
              static_cast<float>(correction));
    return OfSlowestRank(MPI_Wtime() - begin);
  }

  const std::vector<float>& weights() const { return w_; }

 private:
  std::vector<float> g_, w_, m_, v_;
  int step_ = 0;
};

void CheckEqual(const std::vector<float>& actual, const std::vector<float>& expected, const char* who) {
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::abs(actual[i] - expected[i]) <= 1e-5f * std::max(1.0f, std::abs(expected[i]))) continue;
    std::fprintf(stderr, "%s: element %zu is %g, expected %g\n", who, i, actual[i], expected[i]);
    std::exit(1);
  }
}

struct Options {
  bool json = false;
  int mib = 100;
  int rounds = 15;
};

void Compare(Communicator& world, const Options& options) {
  const int64_t count = int64_t{options.mib} * (1 << 20) / 4;
  Lockstep whole(world, count, false), shared(world, count, true);
  Plain plain(static_cast<size_t>(count));
  std::vector<double> whole_ms, shared_ms, plain_ms, whole_ratios, shared_ratios;
  for (int round = 0; round < options.rounds + 2; ++round) {
    const double a = whole.Run(round) * 1e3, b = shared.Run(round) * 1e3, c = plain.Run(round) * 1e3;
    if (round < 2) continue;
    whole_ms.push_back(a), shared_ms.push_back(b), plain_ms.push_back(c);
    whole_ratios.push_back(c / a), shared_ratios.push_back(c / b);
  }
  CheckEqual(whole.Weights(), plain.weights(), "Lockstep");
  CheckEqual(shared.Weights(), plain.weights(), "Lockstep, states shared");
  if (world.rank() != 0) return;
  const char* form = options.json
                         ? "{\"ranks\": %d, \"mib\": %d, \"whole_ms\": %.2f, \"shared_ms\": %.2f, "
                           "\"plain_ms\": %.2f, \"whole_ratio\": %.3f, \"shared_ratio\": %.3f}\n"
                         : "%d ranks, %d MiB: Lockstep %.2f ms, its states shared %.2f ms, MPI_Allreduce and a "
                           "loop %.2f ms: %.2f and %.2f times as long\n";
  std::printf(form, world.size(), options.mib, Median(whole_ms), Median(shared_ms), Median(plain_ms),
              Median(whole_ratios), Median(shared_ratios));
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") options.json = true;
    else if (argument.rfind("--mib=", 0) == 0) options.mib = std::atoi(argument.c_str() + 6);
    else if (argument.rfind("--rounds=", 0) == 0) options.rounds = std::atoi(argument.c_str() + 9);
    else return std::fprintf(stderr, "usage: mpirun -np N reduce_update_bench [--json] [--mib=M] [--rounds=R]\n"), 2;
  }
  if (options.mib < 1 || options.rounds < 1) return std::fprintf(stderr, "--mib and --rounds are at least 1\n"), 2;
  const auto world = Get(CreateMpi());
  Compare(*world, options);
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
