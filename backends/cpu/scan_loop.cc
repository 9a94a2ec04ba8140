#include "backends/cpu/scan_loop.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "backends/cpu/emitters.h"
#include "backends/planning/bind_results.h"
#include "backends/planning/buffer_plan.h"
#include "backends/planning/certificate.h"
#include "backends/planning/emit_steps.h"
#include "backends/planning/rematerialize.h"
#include "backends/planning/reuse_operands.h"
#include "runtime/device.h"

namespace lockstep::cpu {
namespace {

void CopyBytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// --- Sums ------------------------------------------------------------------------------------------------------------

constexpr int64_t kElementsOfAThread = 1 << 16;

template <typename Total, typename T>
void AddTerm(Total* total, const T* term, int64_t count, int threads) {
  const int used = static_cast<int>(std::clamp<int64_t>(count / kElementsOfAThread, 1, threads));
#pragma omp parallel for num_threads(used) schedule(static) if (used > 1)
  for (int64_t i = 0; i < count; ++i) total[i] = static_cast<Total>(total[i] + static_cast<Total>(term[i]));
}

bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Sums of 16-bit floats are in f32, in separate memory. All others are in place.
class Sum {
 public:
  explicit Sum(LoopSum sum) : write_(sum.write), program_(sum.program), type_(std::move(sum.type)) {}

  uint64_t scratch_bytes() const { return IsHalf(type_.dtype) ? static_cast<uint64_t>(type_.num_elements()) * 4 : 0; }
  void set_scratch(uint64_t at) { scratch_ = at; }
  size_t program() const { return program_; }

  void Clear(const KernelArgs& args) const {
    const uint64_t bytes = IsHalf(type_.dtype) ? scratch_bytes() : type_.num_bytes();
    if (bytes > 0) std::memset(TotalOf(args), 0, bytes);
  }
  void Add(const KernelArgs& args, const std::byte* term, int threads) const {
    DispatchDType(type_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using Total = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float, T>;
      if constexpr (!std::is_same_v<T, bool>) {
        AddTerm(reinterpret_cast<Total*>(TotalOf(args)), reinterpret_cast<const T*>(term), type_.num_elements(),
                threads);
      }
    });
  }
  void Finish(const KernelArgs& args) const {
    if (!IsHalf(type_.dtype)) return;
    DispatchDType(type_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto* from = reinterpret_cast<const float*>(TotalOf(args));
      for (int64_t i = 0; i < type_.num_elements(); ++i)
        args.write<T>(write_)[i] = ConvertElement<T>(static_cast<double>(from[i]));
    });
  }

 private:
  std::byte* TotalOf(const KernelArgs& args) const {
    return IsHalf(type_.dtype) ? args.scratch + scratch_ : args.writes[write_];
  }

  size_t write_, program_;
  TensorType type_;
  uint64_t scratch_ = 0;
};

// --- One program for each iteration ----------------------------------------------------------------------------------

// The body's program, planned and certified.
struct BodyProgram {
  StepList steps;
  std::vector<Buffer> buffers;
  std::vector<int32_t> inputs, results;
  std::unique_ptr<Device> device = CreateHostDevice();
  std::vector<std::unique_ptr<DeviceMemory>> constants;
  uint64_t arena_bytes = 0, constant_bytes = 0;
  Recomputation recomputed;  // per iteration
};

absl::StatusOr<BodyProgram> MakeBodyProgram(const Graph& body, const EmitContext& c) {
  ASSIGN_OR_RETURN(Program program, LowerGraph(body, c.target()));
  BindResults(program);
  BodyProgram made;
  if (c.target().body_bytes > 0) made.recomputed = Rematerialize(program, c.target().body_bytes).work;
  ReuseOperands(program);
  const BufferPlan plan = PlanBuffers(program);
  made.steps = EmitSteps(program, plan);
  made.buffers = plan.buffers;
  RETURN_IF_ERROR(CertifyOrder(made.steps, made.buffers, Mesh()).status());
  for (const ValueInfo& input : program.inputs) made.inputs.push_back(input.buffer);
  for (const ValueInfo& result : program.results) made.results.push_back(result.buffer);
  for (const Tensor& constant : program.constants) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, made.device->Allocate(constant.num_bytes(), "a constant"));
    CopyBytes(memory->data(), constant.bytes(), constant.num_bytes());
    made.constant_bytes += constant.num_bytes();
    made.constants.push_back(std::move(memory));
  }
  for (const Buffer& buffer : made.buffers) {
    if (buffer.kind == BufferKind::kArena) made.arena_bytes += AlignUp(buffer.bytes);
  }
  return made;
}

class LoopOfPrograms {
 public:
  LoopOfPrograms(LoopSpec spec, BodyProgram body)
      : spec_(std::move(spec)), body_(std::move(body)), addresses_(body_.buffers.size(), nullptr) {
    for (const LoopSum& sum : spec_.sums) sums_.emplace_back(sum);
    scratch_bytes_ = AlignUp(body_.arena_bytes);  // the body's arena comes first
    for (const Destination& to : spec_.destinations) scratch_of_.push_back(to.stacks.empty() ? Take(to.bytes) : 0);
    for (Sum& sum : sums_) sum.set_scratch(Take(sum.scratch_bytes()));
  }

  uint64_t scratch_bytes() const { return scratch_bytes_; }

  absl::Status operator()(const KernelArgs& args) {
    for (const Sum& sum : sums_) sum.Clear(args);
    SetFixedAddresses(args);
    for (int64_t i = 0; i < spec_.length; ++i) {
      MoveOn(args, i);
      StepContext context(addresses_, *body_.device, {}, {});
      for (const auto& step : body_.steps) RETURN_IF_ERROR(step->Run(context));
      Collect(args, i);
    }
    for (const Sum& sum : sums_) sum.Finish(args);
    StoreCarried(args);
    return absl::OkStatus();
  }

 private:
  uint64_t Take(uint64_t bytes) {
    const uint64_t at = scratch_bytes_;
    scratch_bytes_ += AlignUp(bytes);
    return at;
  }
  std::byte*& InputAddress(size_t i) { return addresses_[static_cast<size_t>(body_.inputs[i])]; }
  std::byte*& ResultAddress(size_t i) { return addresses_[static_cast<size_t>(body_.results[i])]; }
  uint64_t Position(int64_t i) const { return static_cast<uint64_t>(spec_.reverse ? spec_.length - 1 - i : i); }

  void SetFixedAddresses(const KernelArgs& args) {
    for (size_t i = 0; i < body_.inputs.size(); ++i) InputAddress(i) = args.reads[i];
    size_t constants = 0;
    uint64_t arena = 0;
    for (size_t i = 0; i < body_.buffers.size(); ++i) {
      const Buffer& buffer = body_.buffers[i];
      if (buffer.kind == BufferKind::kConstant) addresses_[i] = body_.constants[constants++]->data();
      if (buffer.kind != BufferKind::kArena) continue;
      addresses_[i] = args.scratch + arena;
      arena += AlignUp(buffer.bytes);
    }
  }

  // Carried values are read where the previous iteration wrote them. They are overwritten in the iteration after the
  // next.
  void MoveOn(const KernelArgs& args, int64_t i) {
    if (i > 0) {
      next_.clear();
      for (size_t k = 0; k < spec_.carried; ++k) next_.push_back(ResultAddress(spec_.next[k]));
      for (size_t k = 0; k < spec_.carried; ++k) InputAddress(k) = next_[k];
    }
    for (size_t k = spec_.carried; k < spec_.is_scanned.size(); ++k) {
      if (spec_.is_scanned[k]) InputAddress(k) = args.reads[k] + Position(i) * spec_.input_bytes[k];
    }
    for (size_t k = 0; k < spec_.destinations.size(); ++k) {
      const Destination& to = spec_.destinations[k];
      const bool in_result = to.carried >= 0 && (spec_.length - 1 - i) % 2 == 0;
      if (!to.stacks.empty()) ResultAddress(k) = args.writes[to.stacks[0]] + Position(i) * to.bytes;
      else ResultAddress(k) = in_result ? args.writes[to.carried] : args.scratch + scratch_of_[k];
    }
  }

  // Copies values that are more than one result, and adds sums.
  void Collect(const KernelArgs& args, int64_t i) {
    for (size_t k = 0; k < spec_.destinations.size(); ++k) {
      const Destination& to = spec_.destinations[k];
      for (size_t s = 1; s < to.stacks.size(); ++s)
        CopyBytes(args.writes[to.stacks[s]] + Position(i) * to.bytes, ResultAddress(k), to.bytes);
    }
    for (const Sum& sum : sums_) sum.Add(args, ResultAddress(sum.program()), spec_.threads);
  }

  void StoreCarried(const KernelArgs& args) {
    for (size_t k = 0; k < spec_.carried; ++k) {
      const std::byte* last = spec_.length > 0 ? ResultAddress(spec_.next[k]) : args.reads[k];
      if (last != args.writes[k]) CopyBytes(args.writes[k], last, spec_.input_bytes[k]);
    }
  }

  LoopSpec spec_;
  BodyProgram body_;
  std::vector<Sum> sums_;
  std::vector<uint64_t> scratch_of_;  // by destination; only for those that are not stacked
  uint64_t scratch_bytes_ = 0;
  std::vector<std::byte*> addresses_;  // by buffer of the body's program
  std::vector<std::byte*> next_;       // by carried value
};

}  // namespace

absl::StatusOr<Kernel> LoopKernel(const Graph& body, LoopSpec spec, const EmitContext& c) {
  ASSIGN_OR_RETURN(BodyProgram program, MakeBodyProgram(body, c));
  Kernel kernel;
  kernel.body_bytes = AlignUp(program.arena_bytes);
  kernel.constant_bytes = program.constant_bytes;
  kernel.recomputed = program.recomputed.Times(spec.length);
  LoopOfPrograms loop(std::move(spec), std::move(program));
  kernel.name = "steps.scan";
  kernel.scratch_bytes = loop.scratch_bytes();
  kernel.run = std::move(loop);
  return kernel;
}

}  // namespace lockstep::cpu
