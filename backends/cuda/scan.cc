// Loops with a body. The body is a separate program, whose steps the host queues in the stream for each iteration.
// Scanned and stacked values are not copied: the addresses of the program's inputs and results advance. Unlike on CPUs,
// matrix products are not moved out of the loop.

#include "core/ops/scan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <unordered_map>

#include "backends/cuda/emitters.h"
#include "backends/cuda/kernels/copy.h"
#include "backends/cuda/kernels/sum.h"
#include "backends/planning/body_program.h"
#include "runtime/device.h"

namespace lockstep::cuda {
namespace {

// Slices of scanned or stacked values are adjacent in memory, so the size of a slice limits their alignment.
uint32_t AlignmentOf(const Graph& body, uint64_t most) {
  uint64_t alignment = most;
  const auto limit = [&](const TensorType& type) { alignment = std::gcd(alignment, type.num_bytes()); };
  for (const Input& input : body.inputs()) limit(input.value.type());
  for (const Result& result : body.results()) limit(result.value.type());
  return static_cast<uint32_t>(alignment);
}

absl::StatusOr<BodyProgram> MakeBodyProgram(const Graph& body, const EmitContext& c) {
  LoweringContext with = c.with();
  with.alignment = AlignmentOf(body, with.alignment);
  ASSIGN_OR_RETURN(Program program, LowerGraph(body, with));
  return PlanBody(std::move(program), c.target().body_bytes);
}

// The destination of a result of the body's program: the first stack that contains it, or else alternately one of two
// places in scratch memory, because the next iteration reads the value that this one carries.
struct Destination {
  uint64_t bytes = 0;
  std::vector<size_t> stacks;         // results of the node
  std::array<uint64_t, 2> scratch{};  // offsets of the two places
};

struct IterationSum {
  size_t result, program;  // the index in the node's results, and in those of the body's program
  int64_t count;
  uint64_t totals;  // offset in scratch memory
  DeviceKernel kernel;
};

class Loop {
 public:
  static absl::StatusOr<Kernel> Make(const Node& node, EmitContext& c) {
    const ScanForm form(node);
    auto loop = std::make_shared<Loop>(form, c);
    Graph body = form.body->Clone();
    std::vector<Value> values;
    for (const Result& result : body.results()) values.push_back(result.value);
    while (!body.results().empty()) body.RemoveResult(body.results().size() - 1);
    std::unordered_map<Value, size_t, ValueHash> numbers;  // by value, because one value may be several results
    for (const Value& value : values) {
      const auto [it, is_new] = numbers.emplace(value, numbers.size());
      if (is_new) RETURN_IF_ERROR(body.AddResult("r" + std::to_string(it->second), value));
      loop->program_of_.push_back(it->second);
    }
    ASSIGN_OR_RETURN(loop->body_, MakeBodyProgram(body, c));
    loop->PlanScratch(node, body, c);
    Kernel kernel;
    kernel.name = "cuda.scan";
    kernel.scratch_bytes = loop->scratch_bytes_;
    kernel.body_bytes = loop->body_bytes_;
    for (const Tensor& constant : loop->body_.constants) kernel.constant_bytes += constant.num_bytes();
    kernel.recomputed = loop->body_.recomputed.Times(loop->length_);
    kernel.run = [loop](const KernelArgs& args) { return loop->Run(args); };
    return kernel;
  }

  Loop(const ScanForm& form, EmitContext& c)
      : carried_(form.carried),
        first_constant_(form.first_constant()),
        first_summed_(form.first_summed()),
        length_(form.length),
        reverse_(form.reverse),
        wide_copy_(c.KernelOf("copy", "copy_b16")),
        byte_copy_(c.KernelOf("copy", "copy_b1")),
        clear_(c.KernelOf("copy", "pad_b1")) {
    for (const Input& input : form.body->inputs()) input_bytes_.push_back(input.value.type().num_bytes());
  }

 private:
  void PlanScratch(const Node& node, const Graph& body, EmitContext& c) {
    Take(body_.arena_bytes);  // comes first, as SetAddresses requires
    body_bytes_ = scratch_bytes_;
    for (const Result& result : body.results()) destinations_.push_back({result.value.type().num_bytes(), {}, {}});
    for (size_t i = carried_; i < first_summed_; ++i) destinations_[program_of_[i]].stacks.push_back(i);
    for (Destination& to : destinations_) {
      if (to.stacks.empty()) to.scratch = {Take(to.bytes), Take(to.bytes)};
    }
    for (size_t i = first_summed_; i < program_of_.size(); ++i) {
      const TensorType& type = node.type(i);
      sums_.push_back({i, program_of_[i], type.num_elements(), Take(static_cast<uint64_t>(type.num_elements()) * 8),
                       c.KernelOf("sum", NameFor("sum", type.dtype))});
      sum_bytes_.push_back(type.num_bytes());
    }
  }
  uint64_t Take(uint64_t bytes) {
    const uint64_t at = scratch_bytes_;
    scratch_bytes_ += AlignUp(bytes);
    return at;
  }

  absl::Status Run(const KernelArgs& args) {
    CudaStream& stream = StreamOf(args);
    RETURN_IF_ERROR(LoadConstants(stream.device()));
    body_.SetAddresses(args, constants_);
    for (int64_t i = 0; i < length_; ++i) {
      MoveOn(args, i);
      StepContext context(body_.addresses, stream.device(), {}, {});
      for (const auto& step : body_.steps) RETURN_IF_ERROR(step->Run(context));
      RETURN_IF_ERROR(Collect(stream, args, i));
    }
    return Finish(stream, args);
  }

  absl::Status LoadConstants(CudaDevice& device) {
    while (constants_.size() < body_.constants.size()) {
      const Tensor& constant = body_.constants[constants_.size()];
      ASSIGN_OR_RETURN(auto memory, device.Allocate(constant.num_bytes(), "a constant of a loop"));
      RETURN_IF_ERROR(
          device.CopyToDevice(memory->data(), static_cast<const std::byte*>(constant.bytes()), constant.num_bytes()));
      constants_.push_back(std::move(memory));
    }
    return absl::OkStatus();
  }

  uint64_t Position(int64_t i) const { return static_cast<uint64_t>(reverse_ ? length_ - 1 - i : i); }

  void MoveOn(const KernelArgs& args, int64_t i) {
    std::vector<std::byte*> carried;
    for (size_t k = 0; k < carried_; ++k) carried.push_back(i > 0 ? body_.result(program_of_[k]) : args.reads[k]);
    for (size_t k = 0; k < carried_; ++k) body_.input(k) = carried[k];
    for (size_t k = carried_; k < first_constant_; ++k) body_.input(k) = args.reads[k] + Position(i) * input_bytes_[k];
    for (size_t k = 0; k < destinations_.size(); ++k) {
      const Destination& to = destinations_[k];
      body_.result(k) = to.stacks.empty() ? args.scratch + to.scratch[static_cast<size_t>(i % 2)]
                                          : args.writes[to.stacks[0]] + Position(i) * to.bytes;
    }
  }

  // Copies values that are stacked more than once, and adds sums.
  absl::Status Collect(CudaStream& stream, const KernelArgs& args, int64_t i) {
    for (size_t k = 0; k < destinations_.size(); ++k) {
      const Destination& to = destinations_[k];
      for (size_t s = 1; s < to.stacks.size(); ++s) {
        RETURN_IF_ERROR(Copy(stream, args.writes[to.stacks[s]] + Position(i) * to.bytes, body_.result(k), to.bytes));
      }
    }
    for (IterationSum& sum : sums_) {
      const SumArgs given{body_.result(sum.program), args.scratch + sum.totals, args.writes[sum.result], sum.count,
                          i == 0 ? 1U : 0U};
      RETURN_IF_ERROR(sum.kernel.Run(stream, sum.count, given));
    }
    return absl::OkStatus();
  }

  // Copies carried values to the node's results. Without iterations these are the operands, and sums are zero.
  absl::Status Finish(CudaStream& stream, const KernelArgs& args) {
    for (size_t k = 0; k < carried_; ++k) {
      const std::byte* last = length_ > 0 ? body_.result(program_of_[k]) : args.reads[k];
      RETURN_IF_ERROR(Copy(stream, args.writes[k], last, input_bytes_[k]));
    }
    for (size_t k = 0; length_ == 0 && k < sums_.size(); ++k) {
      PadArgs zeros{};
      zeros.y = args.writes[sums_[k].result];
      zeros.rank = 1;
      zeros.total = zeros.y_extents[0] = static_cast<int64_t>(sum_bytes_[k]);
      RETURN_IF_ERROR(clear_.Run(stream, zeros.total, zeros));
    }
    return absl::OkStatus();
  }

  absl::Status Copy(CudaStream& stream, std::byte* to, const std::byte* from, uint64_t bytes) {
    const bool is_wide = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % 16 == 0;
    const auto count = static_cast<int64_t>(is_wide ? bytes / 16 : bytes);
    return (is_wide ? wide_copy_ : byte_copy_).Run(stream, count, CopyArgs{from, to, 1, 1, count, 0, 0, 0, 0});
  }

  size_t carried_, first_constant_, first_summed_;
  int64_t length_;
  bool reverse_;
  DeviceKernel wide_copy_, byte_copy_, clear_;
  std::vector<uint64_t> input_bytes_, sum_bytes_;
  std::vector<size_t> program_of_;  // by result of the node: the result of the body's program
  BodyProgram body_;
  std::vector<std::unique_ptr<DeviceMemory>> constants_;  // on the GPU, copied at the first run
  std::vector<Destination> destinations_;                 // by result of the body's program
  std::vector<IterationSum> sums_;
  uint64_t scratch_bytes_ = 0, body_bytes_ = 0;
};

}  // namespace

bool SupportsScan(const Node& node) {
  const Graph& body = *ScanForm(node).body;
  return std::all_of(body.nodes().begin(), body.nodes().end(), Supports);
}

absl::Status EmitScan(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(Kernel kernel, Loop::Make(node, c));
  std::vector<int> writes;
  for (size_t i = 0; i < node.num_results(); ++i) writes.push_back(c.Write(node, i));
  c.Add(node, std::move(kernel), c.ReadAll(node), std::move(writes));
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
