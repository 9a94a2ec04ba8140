// The machines on which tests run programs: the host, a simulated device, and GPUs of a fake driver. None of them needs
// a GPU.

#pragma once

#include <memory>
#include <string>

#include "backends/backend.h"
#include "core/graph.h"
#include "core/tensor.h"
#include "runtime/execution/executor.h"
#include "test/fake_cuda/load.h"

namespace lockstep {

// kStep of executor_test_support.h for this many ranks.
Graph SmallStep(int ranks);

enum class Machine { kHost, kSimulated, kCuda, kLazyCuda };
std::string Name(Machine machine);

// The machine on which ranks run. GPUs are those of a fake driver: each rank has its own, and the CPU's kernels run in
// its stream, a thread that runs late. The destructor checks that no object of the driver is left and that nothing was
// misused.
class Machines {
 public:
  Machines(Machine machine, int ranks);
  ~Machines();

  bool is_host() const { return machine_ == Machine::kHost; }
  absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(int rank) const;
  // Returns the host's address of bytes of a GPU.
  std::byte* FindOnGpu(const std::byte* address, size_t bytes) const;
  // The number of entries in a device's stream; for a GPU, 1 if there are any.
  size_t Queued(Device& device) const;

 private:
  const Machine machine_;
  std::unique_ptr<cuda::LoadedFakeDriver> fake_;
};

// One rank that runs a program.
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

// Returns values that depend on the type and `salt`; integers are class labels.
Tensor Values(const TensorType& type, int salt);

}  // namespace lockstep
