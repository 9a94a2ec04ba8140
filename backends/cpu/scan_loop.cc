#include "backends/cpu/scan_loop.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "backends/cpu/emitters.h"
#include "backends/planning/body_program.h"
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

class LoopOfPrograms {
 public:
  LoopOfPrograms(LoopSpec spec, BodyProgram body, std::unique_ptr<Device> device,
                 std::vector<std::unique_ptr<DeviceMemory>> constants)
      : spec_(std::move(spec)), body_(std::move(body)), device_(std::move(device)), constants_(std::move(constants)) {
    for (const LoopSum& sum : spec_.sums) sums_.emplace_back(sum);
    scratch_bytes_ = AlignUp(body_.arena_bytes);  // the body's arena comes first
    for (const Destination& to : spec_.destinations) scratch_of_.push_back(to.stacks.empty() ? Take(to.bytes) : 0);
    for (Sum& sum : sums_) sum.set_scratch(Take(sum.scratch_bytes()));
  }

  uint64_t scratch_bytes() const { return scratch_bytes_; }

  absl::Status operator()(const KernelArgs& args) {
    for (const Sum& sum : sums_) sum.Clear(args);
    body_.SetAddresses(args, constants_);
    for (int64_t i = 0; i < spec_.length; ++i) {
      MoveOn(args, i);
      StepContext context(body_.addresses, *device_, {}, {});
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
  uint64_t Position(int64_t i) const { return static_cast<uint64_t>(spec_.reverse ? spec_.length - 1 - i : i); }

  // Carried values are read where the previous iteration wrote them. They are overwritten in the iteration after the
  // next.
  void MoveOn(const KernelArgs& args, int64_t i) {
    if (i > 0) {
      next_.clear();
      for (size_t k = 0; k < spec_.carried; ++k) next_.push_back(body_.result(spec_.next[k]));
      for (size_t k = 0; k < spec_.carried; ++k) body_.input(k) = next_[k];
    }
    for (size_t k = spec_.carried; k < spec_.is_scanned.size(); ++k) {
      if (spec_.is_scanned[k]) body_.input(k) = args.reads[k] + Position(i) * spec_.input_bytes[k];
    }
    for (size_t k = 0; k < spec_.destinations.size(); ++k) {
      const Destination& to = spec_.destinations[k];
      const bool in_result = to.carried >= 0 && (spec_.length - 1 - i) % 2 == 0;
      if (!to.stacks.empty()) body_.result(k) = args.writes[to.stacks[0]] + Position(i) * to.bytes;
      else body_.result(k) = in_result ? args.writes[to.carried] : args.scratch + scratch_of_[k];
    }
  }

  // Copies values that are more than one result, and adds sums.
  void Collect(const KernelArgs& args, int64_t i) {
    for (size_t k = 0; k < spec_.destinations.size(); ++k) {
      const Destination& to = spec_.destinations[k];
      for (size_t s = 1; s < to.stacks.size(); ++s)
        CopyBytes(args.writes[to.stacks[s]] + Position(i) * to.bytes, body_.result(k), to.bytes);
    }
    for (const Sum& sum : sums_) sum.Add(args, body_.result(sum.program()), spec_.threads);
  }

  void StoreCarried(const KernelArgs& args) {
    for (size_t k = 0; k < spec_.carried; ++k) {
      const std::byte* last = spec_.length > 0 ? body_.result(spec_.next[k]) : args.reads[k];
      if (last != args.writes[k]) CopyBytes(args.writes[k], last, spec_.input_bytes[k]);
    }
  }

  LoopSpec spec_;
  BodyProgram body_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<DeviceMemory>> constants_;
  std::vector<Sum> sums_;
  std::vector<uint64_t> scratch_of_;  // by destination; only for those that are not stacked
  uint64_t scratch_bytes_ = 0;
  std::vector<std::byte*> next_;  // by carried value
};

}  // namespace

absl::StatusOr<Kernel> LoopKernel(const Graph& body, LoopSpec spec, const EmitContext& c) {
  ASSIGN_OR_RETURN(Program lowered, LowerGraph(body, c.target()));
  ASSIGN_OR_RETURN(BodyProgram program, PlanBody(std::move(lowered), c.target().body_bytes));
  Kernel kernel;
  std::unique_ptr<Device> device = CreateHostDevice();
  std::vector<std::unique_ptr<DeviceMemory>> constants;
  for (const Tensor& constant : program.constants) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, device->Allocate(constant.num_bytes(), "a constant"));
    CopyBytes(memory->data(), constant.bytes(), constant.num_bytes());
    kernel.constant_bytes += constant.num_bytes();
    constants.push_back(std::move(memory));
  }
  program.constants.clear();
  kernel.body_bytes = AlignUp(program.arena_bytes);
  kernel.recomputed = program.recomputed.Times(spec.length);
  LoopOfPrograms loop(std::move(spec), std::move(program), std::move(device), std::move(constants));
  kernel.name = "steps.scan";
  kernel.scratch_bytes = loop.scratch_bytes();
  kernel.run = std::move(loop);
  return kernel;
}

}  // namespace lockstep::cpu
