#include "backends/simulated_device.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "core/check.h"
#include "runtime/buffer.h"

namespace lockstep {
namespace {

constexpr size_t kBytes = size_t{64} << 20;  // of a device

class SimulatedMemory final : public DeviceMemory {
 public:
  SimulatedMemory(SimulatedDevice& device, std::byte* data, size_t bytes)
      : DeviceMemory(data, bytes), device_(device) {}
  ~SimulatedMemory() override { device_.Free(data()); }

 private:
  SimulatedDevice& device_;
};

std::byte* Map(int rights) {
  void* memory = mmap(nullptr, kBytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LOCKSTEP_CHECK(memory != MAP_FAILED) << "no " << kBytes << " bytes of addresses";
  return static_cast<std::byte*>(memory);
}

}  // namespace

absl::Status Stream::Drain() {
  while (!queue_.empty()) {
    const Work work = std::move(queue_.front());
    queue_.pop_front();
    const absl::Status status = work();
    if (status.ok()) continue;
    queue_.clear();
    return status;
  }
  return absl::OkStatus();
}

SimulatedDevice::SimulatedDevice()
    : Device("simulated", /*is_host=*/false),
      stream_(*this),
      addresses_(Map(PROT_NONE)),
      contents_(Map(PROT_READ | PROT_WRITE)) {}

SimulatedDevice::~SimulatedDevice() {
  munmap(addresses_, kBytes);
  munmap(contents_, kBytes);
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> SimulatedDevice::Allocate(size_t bytes, std::string_view label) {
  const size_t size = AlignUp(bytes + 1);  // no two pieces begin at one address
  if (size > kBytes - used_) {
    return ErrorStream(absl::StatusCode::kResourceExhausted) << name() << " has no " << bytes << " bytes for " << label;
  }
  live_.emplace(used_, bytes);
  std::byte* data = addresses_ + used_;
  used_ += size;
  return std::make_unique<SimulatedMemory>(*this, data, bytes);
}

void SimulatedDevice::Free(std::byte* address) {
  LOCKSTEP_CHECK(live_.erase(static_cast<size_t>(address - addresses_)) == 1) << "freed twice";
}

absl::StatusOr<std::byte*> SimulatedDevice::Find(const void* address, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(address);
  if (at >= addresses_ && at < addresses_ + kBytes) {
    const auto offset = static_cast<size_t>(at - addresses_);
    auto piece = live_.upper_bound(offset);
    if (piece != live_.begin()) {
      --piece;
      if (offset + bytes <= piece->first + piece->second) return contents_ + offset;
    }
  }
  return InvalidArgument() << "address " << address << ", " << bytes << " bytes: not memory of the device " << name();
}

absl::Status SimulatedDevice::CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) {
  ASSIGN_OR_RETURN(std::byte * to, Find(device, bytes));
  stream_.Enqueue([to, host, bytes] {
    if (bytes > 0) std::memcpy(to, host, bytes);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status SimulatedDevice::CopyToHost(std::byte* host, const std::byte* device, size_t bytes) {
  ASSIGN_OR_RETURN(const std::byte* from, Find(device, bytes));
  stream_.Enqueue([host, from, bytes] {
    if (bytes > 0) std::memcpy(host, from, bytes);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status SimulatedDevice::CopyWithin(std::byte* to, const std::byte* from, size_t bytes) {
  ASSIGN_OR_RETURN(const std::byte* source, Find(from, bytes));
  return CopyToDevice(to, source, bytes);
}

// --- The backend --------------------------------------------------------------------------------------------------

namespace {

using RunKernel = absl::AnyInvocable<absl::Status(const KernelArgs&)>;

// What one call of a kernel works on, as the host finds it.
struct Operands {
  std::vector<std::byte*> reads, writes;
  std::byte* scratch = nullptr;
};

absl::StatusOr<std::vector<std::byte*>> FindAll(const SimulatedDevice& device, std::byte* const* addresses,
                                                size_t count) {
  std::vector<std::byte*> found(count);
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(found[i], device.Find(addresses[i], 0));
  }
  return found;
}

// Queues the kernel: nothing of the arguments but the addresses in them outlives the call.
RunKernel OnDevice(RunKernel run, size_t reads, size_t writes, uint64_t scratch_bytes) {
  auto shared = std::make_shared<RunKernel>(std::move(run));
  return [=](const KernelArgs& args) -> absl::Status {
    if (args.stream == nullptr) return Internal() << "a kernel of a simulated device was called without a stream";
    const SimulatedDevice& device = args.stream->device();
    Operands operands;
    ASSIGN_OR_RETURN(operands.reads, FindAll(device, args.reads, reads));
    ASSIGN_OR_RETURN(operands.writes, FindAll(device, args.writes, writes));
    if (scratch_bytes > 0) {
      ASSIGN_OR_RETURN(operands.scratch, device.Find(args.scratch, scratch_bytes));
    }
    args.stream->Enqueue([shared, operands, coordinate = args.coordinate] {
      return (*shared)({operands.reads.data(), operands.writes.data(), operands.scratch, nullptr, coordinate});
    });
    return absl::OkStatus();
  };
}

class SimulatedBackend final : public Backend {
 public:
  explicit SimulatedBackend(std::unique_ptr<Backend> cpu) : cpu_(std::move(cpu)) {}

  std::string_view name() const override { return "simulated"; }
  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override { return cpu_->MakeTarget(options); }
  absl::StatusOr<std::unique_ptr<Device>> MakeDevice() const override { return std::make_unique<SimulatedDevice>(); }
  bool Supports(const Node& node) const override { return cpu_->Supports(node); }

  absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const override {
    ASSIGN_OR_RETURN(Program program, cpu_->Lower(graph, target));
    for (Instruction& instruction : program.instructions) {
      if (instruction.kind != Instruction::Kind::kKernel) continue;
      Kernel& kernel = instruction.kernel;
      kernel.run =
          OnDevice(std::move(kernel.run), instruction.reads.size(), instruction.writes.size(), kernel.scratch_bytes);
    }
    return program;
  }

 private:
  const std::unique_ptr<Backend> cpu_;
};

// --- The communicator ---------------------------------------------------------------------------------------------

class SimulatedRegistered final : public RegisteredMemory {
 public:
  explicit SimulatedRegistered(std::unique_ptr<DeviceMemory> memory)
      : RegisteredMemory(memory->data(), memory->bytes()), memory_(std::move(memory)) {}

 private:
  const std::unique_ptr<DeviceMemory> memory_;
};

std::vector<std::string> HostsOf(const Communicator& communicator) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < communicator.size(); ++rank) hosts.push_back(communicator.host(rank));
  return hosts;
}

class SimulatedCommunicator final : public Communicator {
 public:
  SimulatedCommunicator(Communicator& host, SimulatedDevice& device, int* splits)
      : Communicator(host.rank(), HostsOf(host), "simulated", /*is_host=*/false),
        host_(host),
        device_(device),
        splits_(splits) {}
  SimulatedCommunicator(std::unique_ptr<Communicator> host, SimulatedDevice& device)
      : SimulatedCommunicator(*host, device, nullptr) {
    own_ = std::move(host);
  }

  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) override {
    RETURN_IF_ERROR(host_.Allocate(0, label).status());  // all ranks call it
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, device_.Allocate(bytes, label));
    return std::make_unique<SimulatedRegistered>(std::move(memory));
  }

  absl::StatusOr<Ticket> StartAllReduce(const void* input, void* output, int64_t count, DType dtype, ReduceKind kind,
                                        const Call& call) override {
    return Queue({input, BytesOf(count, dtype)}, {output, BytesOf(count, dtype)}, call,
                 [=, this](const void* in, void* out, const Call& c) {
                   return host_.StartAllReduce(in, out, count, dtype, kind, c);
                 });
  }
  absl::StatusOr<Ticket> StartBroadcast(const void* input, void* output, int64_t count, DType dtype, int root,
                                        const Call& call) override {
    return Queue({input, rank() == root ? BytesOf(count, dtype) : 0}, {output, BytesOf(count, dtype)}, call,
                 [=, this](const void* in, void* out, const Call& c) {
                   return host_.StartBroadcast(in, out, count, dtype, root, c);
                 });
  }
  absl::StatusOr<Ticket> StartAllGather(const void* input, void* output, int64_t count, DType dtype,
                                        const Call& call) override {
    return Queue(
        {input, BytesOf(count, dtype)}, {output, BytesOf(count * size(), dtype)}, call,
        [=, this](const void* in, void* out, const Call& c) { return host_.StartAllGather(in, out, count, dtype, c); });
  }
  absl::StatusOr<Ticket> StartReduceScatter(const void* input, void* output, int64_t count, DType dtype,
                                            ReduceKind kind, const Call& call) override {
    return Queue({input, BytesOf(count * size(), dtype)}, {output, BytesOf(count, dtype)}, call,
                 [=, this](const void* in, void* out, const Call& c) {
                   return host_.StartReduceScatter(in, out, count, dtype, kind, c);
                 });
  }

  absl::Status Wait(Ticket ticket, Stream* stream) override {
    const auto flying = flying_.find(ticket.id);
    if (flying == flying_.end()) return FailedPrecondition() << "ticket " << ticket.id << " is not in flight";
    if (stream != device_.stream()) return InvalidArgument() << "a wait in another stream than its device's";
    stream->Enqueue([this, flying]() -> absl::Status {
      const Flight& flight = flying->second;
      RETURN_IF_ERROR(host_.Wait(flight.ticket));
      ASSIGN_OR_RETURN(std::byte * to, FindOperand(flight.output));
      if (flight.output.bytes > 0) std::memcpy(to, flight.result.data(), flight.output.bytes);
      flying_.erase(flying);
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  absl::Status Barrier(std::string_view label) override { return host_.Barrier(label); }
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) override {
    return host_.AllGatherBytes(bytes, label);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) override {
    if (splits_ != nullptr) ++*splits_;
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part, host_.Split(color, label));
    return std::make_unique<SimulatedCommunicator>(std::move(part), device_);
  }
  void Abort(const absl::Status& cause) override { host_.Abort(cause); }

 private:
  struct Operand {
    const void* address;
    size_t bytes;
  };
  // A collective from its start until it is waited for, or this is destroyed: peers may use its memory.
  struct Flight {
    Operand output;
    std::vector<std::byte> taken, result;
    Ticket ticket;
  };
  using Start = std::function<absl::StatusOr<Ticket>(const void* input, void* output, const Call& call)>;

  static size_t BytesOf(int64_t count, DType dtype) { return static_cast<size_t>(count) * SizeOf(dtype); }

  absl::StatusOr<std::byte*> FindOperand(const Operand& operand) const {
    if (operand.bytes == 0) return static_cast<std::byte*>(nullptr);
    return device_.Find(operand.address, operand.bytes);
  }

  absl::StatusOr<Ticket> Queue(const Operand& input, const Operand& output, const Call& call, Start start) {
    if (call.stream != device_.stream()) return InvalidArgument() << "a start in another stream than its device's";
    ASSIGN_OR_RETURN(std::byte * from, FindOperand(input));
    RETURN_IF_ERROR(FindOperand(output).status());
    const Ticket ticket{next_++};
    Flight& flight = flying_[ticket.id];
    flight = {output, std::vector<std::byte>(input.bytes), std::vector<std::byte>(output.bytes), {}};
    call.stream->Enqueue([=, &flight, label = std::string(call.label), evidence = call.evidence]() -> absl::Status {
      if (!flight.taken.empty()) std::memcpy(flight.taken.data(), from, flight.taken.size());
      ASSIGN_OR_RETURN(flight.ticket, start(flight.taken.data(), flight.result.data(), {label, nullptr, evidence}));
      return absl::OkStatus();
    });
    return ticket;
  }

  std::map<uint64_t, Flight> flying_;  // before own_, which peers use until it is destroyed
  std::unique_ptr<Communicator> own_;  // of a part
  Communicator& host_;
  SimulatedDevice& device_;
  int* const splits_;
  uint64_t next_ = 0;
};

}  // namespace

std::unique_ptr<Backend> CreateSimulatedBackend() {
  absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend("cpu");
  LOCKSTEP_CHECK(cpu.ok()) << cpu.status();
  return std::make_unique<SimulatedBackend>(*std::move(cpu));
}

std::unique_ptr<Communicator> CreateSimulatedCommunicator(Communicator& host, SimulatedDevice& device, int* splits) {
  return std::make_unique<SimulatedCommunicator>(host, device, splits);
}

}  // namespace lockstep
