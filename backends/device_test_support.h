// Where the tests of programs on devices run them: on the host, on a simulated device, and on GPUs of a fake driver. No
// machine needs one.

#pragma once

#include <memory>
#include <string>

#include "backends/backend.h"
#include "core/graph.h"
#include "core/tensor.h"
#include "runtime/execution/executor.h"
#include "test/fake_cuda/load.h"

namespace lockstep {

// kStep of executor_test_support.h, for so many ranks.
Graph SmallStep(int ranks);

enum class Machine { kHost, kSimulated, kCuda, kLazyCuda };
std::string Name(Machine machine);

// Where ranks run. GPUs are those of a fake driver: a rank has its own, and the kernels of the CPU run in its stream, a
// thread that runs late. At its end nothing of the driver's is left, and nothing was misused.
class Machines {
 public:
  Machines(Machine machine, int ranks);
  ~Machines();

  bool is_host() const { return machine_ == Machine::kHost; }
  absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(int rank) const;
  // Where the host finds bytes of a GPU.
  std::byte* FindOnGpu(const std::byte* address, size_t bytes) const;
  // What a device's stream holds; for a GPU 1 if it holds anything.
  size_t Queued(Device& device) const;

 private:
  const Machine machine_;
  std::unique_ptr<cuda::LoadedFakeDriver> fake_;
};

// One rank of a program.
class Rank {
 public:
  static absl::StatusOr<std::unique_ptr<Rank>> Load(const Graph& graph, const Mesh& mesh, const Machines& machines,
                                                    Communicator& world, const ExecutorOptions& options = {});

  explicit Rank(const Machines& of) : machines(of) {}
  size_t queued() const { return machines.Queued(*opened.device); }

  const Machines& machines;
  RankDevice opened;
  std::unique_ptr<Executor> executor;
};

// Values that depend on the type and `salt`; whole numbers are classes.
Tensor Values(const TensorType& type, int salt);

}  // namespace lockstep
