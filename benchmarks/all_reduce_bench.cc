// all_reduce of f32 sums against MPI_Allreduce, under mpirun, from 4 KiB to 100 MiB a rank:
//   mpirun -np 2 all_reduce_bench [--json] [--seconds=S] [--route=NAME]
// NAME is a route between hosts (runtime/comm/routes/route.h); by default the route is chosen automatically.
// Both reduce in place, and alternate within one run, so that other load on the machine affects both. Each call uses
// the next of several buffers, written again before the call as gradients are, so that caches contain the same as in
// training. The time of a call is that of the slowest rank, measured from a barrier. The table shows medians.

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "core/check.h"
#include "runtime/comm/mpi/mpi.h"

namespace lockstep {
namespace {

constexpr size_t kSizes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 100 << 20};
constexpr size_t kRotated = 256 << 20;  // bytes of a rank's buffers together, at most
constexpr int kMaxBuffers = 16;

struct Row {
  size_t bytes;
  int calls;
  double ours_ms, mpi_ms;  // medians
};

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Dirty(float* x, size_t count, int call, int rank) {
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>((i + call) % 1000 + rank);
}

// Seconds of the slowest rank.
template <typename F>
double Time(F&& call) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  call();
  double seconds = MPI_Wtime() - begin;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

Row Measure(Communicator& world, size_t bytes, double seconds) {
  const size_t count = bytes / sizeof(float);
  const int buffers = static_cast<int>(std::clamp<size_t>(kRotated / bytes, 2, kMaxBuffers));
  std::vector<std::unique_ptr<RegisteredMemory>> ours;
  std::vector<std::vector<float>> theirs(buffers, std::vector<float>(count));
  for (int b = 0; b < buffers; ++b) {
    auto memory = world.Allocate(bytes, "bench");
    Check(memory.status());
    ours.push_back(*std::move(memory));
  }
  std::vector<double> our_times, mpi_times;
  const double begin = MPI_Wtime();
  int more = 1;
  for (int call = 0; more; ++call) {
    float* a = reinterpret_cast<float*>(ours[call % buffers]->data());
    float* b = theirs[call % buffers].data();
    Dirty(a, count, call, world.rank());
    const double our_time = Time([&] {
      Check(world.Run(Collective::AllReduce(static_cast<int64_t>(count), DType::kF32, ReduceKind::kSum), a, a,
                      {.label = "bench"}));
    });
    Dirty(b, count, call, world.rank());
    const double mpi_time =
        Time([&] { MPI_Allreduce(MPI_IN_PLACE, b, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    for (size_t i : {size_t{0}, count / 2, count - 1})
      LOCKSTEP_CHECK(a[i] == b[i]) << "element " << i << ": " << a[i] << ", " << b[i];
    if (call >= buffers) {  // every buffer has been touched once
      our_times.push_back(our_time);
      mpi_times.push_back(mpi_time);
    }
    more = our_times.size() < 5 || (MPI_Wtime() - begin < seconds && our_times.size() < 1000);
    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  return {bytes, static_cast<int>(our_times.size()), Median(our_times) * 1e3, Median(mpi_times) * 1e3};
}

int Main(int argc, char** argv) {
  bool json = false;
  double seconds = 2;
  WorldOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") json = true;
    else if (argument.rfind("--seconds=", 0) == 0) seconds = std::atof(argument.c_str() + 10);
    else if (argument.rfind("--route=", 0) == 0) options.preferred_route = RouteNamed(argument.substr(8));
    else return std::fprintf(stderr, "usage: mpirun -np N all_reduce_bench [--json] [--seconds=S] [--route=NAME]\n"), 2;
  }
  auto created = CreateMpi(options);
  Check(created.status());
  Communicator& world = **created;
  const bool speaks = world.rank() == 0;
  if (speaks && json) std::printf("{\"ranks\": %d, \"dtype\": \"f32\", \"rows\": [", world.size());
  if (speaks && !json)
    std::printf("%d ranks\n%12s %8s %12s %14s %8s\n", world.size(), "bytes", "calls", "ours, ms", "MPI_Allreduce",
                "ratio");
  bool first = true;
  for (size_t bytes : kSizes) {
    const Row row = Measure(world, bytes, seconds);
    if (!speaks) continue;
    if (json) {
      std::printf("%s\n  {\"bytes\": %zu, \"calls\": %d, \"ours_ms\": %.5f, \"mpi_ms\": %.5f}", first ? "" : ",",
                  row.bytes, row.calls, row.ours_ms, row.mpi_ms);
    } else {
      std::printf("%12zu %8d %12.4f %14.4f %8.2f\n", row.bytes, row.calls, row.ours_ms, row.mpi_ms,
                  row.mpi_ms / row.ours_ms);
    }
    std::fflush(stdout);
    first = false;
  }
  if (speaks && json) std::printf("\n]}\n");
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
