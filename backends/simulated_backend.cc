#include "backends/simulated_backend.h"

#include <utility>
#include <vector>

#include "core/check.h"
#include "core/status.h"
#include "runtime/simulated_device.h"

namespace lockstep {
namespace {

using RunKernel = absl::AnyInvocable<absl::Status(const KernelArgs&)>;

// The operands of one call of a kernel, at host addresses.
struct Operands {
  std::vector<std::byte*> reads, writes;
  std::byte* scratch = nullptr;
};

absl::StatusOr<std::vector<std::byte*>> FindAll(const SimulatedMachine& machine, const Device& device,
                                                std::byte* const* addresses, size_t count) {
  std::vector<std::byte*> found(count);
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(found[i], machine.find(device, addresses[i], 0));
  }
  return found;
}

// Queues the kernel. Only the addresses in the arguments outlive the call.
RunKernel OnDevice(std::shared_ptr<const SimulatedMachine> machine, RunKernel run, size_t reads, size_t writes,
                   uint64_t scratch_bytes) {
  auto shared = std::make_shared<RunKernel>(std::move(run));
  return [=](const KernelArgs& args) -> absl::Status {
    if (args.stream == nullptr) return Internal() << "a kernel of a simulated device was called without a stream";
    Device& device = machine->device_of(*args.stream);
    Operands operands;
    ASSIGN_OR_RETURN(operands.reads, FindAll(*machine, device, args.reads, reads));
    ASSIGN_OR_RETURN(operands.writes, FindAll(*machine, device, args.writes, writes));
    if (scratch_bytes > 0) {
      ASSIGN_OR_RETURN(operands.scratch, machine->find(device, args.scratch, scratch_bytes));
    }
    return device.RunOnHost([shared, operands, coordinate = args.coordinate] {
      return (*shared)({operands.reads.data(), operands.writes.data(), operands.scratch, nullptr, coordinate});
    });
  };
}

class SimulatedBackend final : public Backend {
 public:
  SimulatedBackend(std::unique_ptr<Backend> cpu, SimulatedMachine machine)
      : cpu_(std::move(cpu)), machine_(std::make_shared<const SimulatedMachine>(std::move(machine))) {}

  std::string_view name() const override { return "simulated"; }
  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override { return cpu_->MakeTarget(options); }
  absl::StatusOr<RankDevice> OpenDevice(Communicator& world) const override {
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device, machine_->make_device());
    return OpenStagedDevice(std::move(device), world);
  }

  absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const override {
    ASSIGN_OR_RETURN(Program program, cpu_->Lower(graph, target));
    for (Instruction& instruction : program.instructions) {
      if (instruction.kind != Instruction::Kind::kKernel) continue;
      Kernel& kernel = instruction.kernel;
      kernel.run = OnDevice(machine_, std::move(kernel.run), instruction.reads.size(), instruction.writes.size(),
                            kernel.scratch_bytes);
    }
    return program;
  }

 private:
  const std::unique_ptr<Backend> cpu_;
  const std::shared_ptr<const SimulatedMachine> machine_;  // shared with the kernels, which may outlive the backend
};

}  // namespace

std::unique_ptr<Backend> CreateSimulatedBackend(SimulatedMachine machine) {
  absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend("cpu");
  LOCKSTEP_CHECK(cpu.ok()) << cpu.status();
  return std::make_unique<SimulatedBackend>(*std::move(cpu), std::move(machine));
}

std::unique_ptr<Backend> CreateSimulatedBackend() {
  return CreateSimulatedBackend(
      {.make_device = [] { return std::make_unique<SimulatedDevice>(); },
       .device_of = [](Stream& stream) -> Device& { return static_cast<SimulatedStream&>(stream).device(); },
       .find = [](const Device& device, const void* address,
                  size_t bytes) { return static_cast<const SimulatedDevice&>(device).Find(address, bytes); }});
}

}  // namespace lockstep
