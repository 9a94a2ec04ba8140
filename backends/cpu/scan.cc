// Loops with a body: the body is compiled as a program of its own, which one kernel runs once for each iteration.
// Nothing that is scanned or stacked is copied: the program's inputs and results are addresses, which move on. A
// carried value is written where it is stacked, if it is, else by turns into the result and into a buffer beside it.
//
// Products of matrices that need no value of another iteration are one large product for all of them: before the loop
// where what is scanned is multiplied with a constant, after it where the product is stacked, and for a sum over
// iterations, as the gradient of a weight is: sum over t of a[t]' b[t] is a' b of all rows.

#include "core/ops/scan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include "backends/cpu/emitters.h"
#include "backends/planning/bind_results.h"
#include "backends/planning/buffer_plan.h"
#include "backends/planning/certificate.h"
#include "backends/planning/emit_steps.h"
#include "backends/planning/reuse_operands.h"
#include "core/builder.h"
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

// A sum of one result over iterations: of halves in f32, in memory of its own, and of all others in place.
struct Sum {
  size_t write = 0;    // of the kernel
  size_t program = 0;  // result of the body's program
  TensorType type;
  uint64_t total = 0;  // where in scratch memory, of a half

  uint64_t scratch_bytes() const { return IsHalf(type.dtype) ? static_cast<uint64_t>(type.num_elements()) * 4 : 0; }
  std::byte* TotalOf(const KernelArgs& args) const {
    return IsHalf(type.dtype) ? args.scratch + total : args.writes[write];
  }
  void Clear(const KernelArgs& args) const {
    const uint64_t bytes = IsHalf(type.dtype) ? scratch_bytes() : type.num_bytes();
    if (bytes > 0) std::memset(TotalOf(args), 0, bytes);
  }
  void Add(const KernelArgs& args, const std::byte* term, int threads) const {
    DispatchDType(type.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using Total = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float, T>;
      if constexpr (!std::is_same_v<T, bool>) {
        AddTerm(reinterpret_cast<Total*>(TotalOf(args)), reinterpret_cast<const T*>(term), type.num_elements(),
                threads);
      }
    });
  }
  void Finish(const KernelArgs& args) const {
    if (!IsHalf(type.dtype)) return;
    DispatchDType(type.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto* from = reinterpret_cast<const float*>(TotalOf(args));
      for (int64_t i = 0; i < type.num_elements(); ++i)
        args.write<T>(write)[i] = ConvertElement<T>(static_cast<double>(from[i]));
    });
  }
};

// --- One program for each iteration ----------------------------------------------------------------------------------

// Where a result of the body's program goes. If it is stacked, there; else, if it is carried, into the kernel's result
// and scratch memory by turns; else into scratch memory.
struct Destination {
  uint64_t bytes = 0;
  std::vector<size_t> stacks;  // writes of the kernel
  int carried = -1;            // write of the kernel
  uint64_t scratch = 0;
};

struct LoopSpec {
  int64_t length = 0;
  bool reverse = false;
  size_t carried = 0;                     // of the reads
  std::vector<uint64_t> input_bytes;      // by input of the body
  std::vector<bool> is_scanned;           // the same
  std::vector<Destination> destinations;  // by result of the body's program
  std::vector<size_t> next;               // by carried value: the result of the program that it goes on as
  std::vector<Sum> sums;
  uint64_t arena = 0;  // where in scratch memory the body's lies
  int threads = 1;
};

// The body's program, planned and checked.
struct BodyProgram {
  StepList steps;
  std::vector<Buffer> buffers;
  std::vector<int32_t> inputs, results;
  std::unique_ptr<Device> device = CreateHostDevice();
  std::vector<std::unique_ptr<DeviceMemory>> constants;
  uint64_t arena_bytes = 0;
};

absl::StatusOr<BodyProgram> MakeBodyProgram(const Graph& body, const EmitContext& c) {
  ASSIGN_OR_RETURN(Program program, LowerGraph(body, c.target()));
  BindResults(program);
  ReuseOperands(program);
  const BufferPlan plan = PlanBuffers(program);
  BodyProgram made;
  made.steps = EmitSteps(program, plan);
  made.buffers = plan.buffers;
  RETURN_IF_ERROR(CertifyOrder(made.steps, made.buffers, Mesh()).status());
  for (const ValueInfo& input : program.inputs) made.inputs.push_back(input.buffer);
  for (const ValueInfo& result : program.results) made.results.push_back(result.buffer);
  for (const Tensor& constant : program.constants) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, made.device->Allocate(constant.num_bytes(), "a constant"));
    CopyBytes(memory->data(), constant.bytes(), constant.num_bytes());
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
      : spec_(std::move(spec)), body_(std::move(body)), addresses_(body_.buffers.size(), nullptr) {}

  absl::Status operator()(const KernelArgs& args) {
    for (const Sum& sum : spec_.sums) sum.Clear(args);
    SetFixedAddresses(args);
    for (int64_t i = 0; i < spec_.length; ++i) {
      MoveOn(args, i);
      StepContext context(addresses_, *body_.device, {}, {});
      for (const auto& step : body_.steps) RETURN_IF_ERROR(step->Run(context));
      Collect(args, i);
    }
    for (const Sum& sum : spec_.sums) sum.Finish(args);
    StoreCarried(args);
    return absl::OkStatus();
  }

 private:
  std::byte*& InputAddress(size_t i) { return addresses_[static_cast<size_t>(body_.inputs[i])]; }
  std::byte*& ResultAddress(size_t i) { return addresses_[static_cast<size_t>(body_.results[i])]; }
  uint64_t Position(int64_t i) const { return static_cast<uint64_t>(spec_.reverse ? spec_.length - 1 - i : i); }

  void SetFixedAddresses(const KernelArgs& args) {
    for (size_t i = 0; i < body_.inputs.size(); ++i) InputAddress(i) = args.reads[i];
    size_t constants = 0;
    uint64_t arena = spec_.arena;
    for (size_t i = 0; i < body_.buffers.size(); ++i) {
      const Buffer& buffer = body_.buffers[i];
      if (buffer.kind == BufferKind::kConstant) addresses_[i] = body_.constants[constants++]->data();
      if (buffer.kind != BufferKind::kArena) continue;
      addresses_[i] = args.scratch + arena;
      arena += AlignUp(buffer.bytes);
    }
  }

  // Carried values are read where the iteration before has written them; before they are overwritten, the next but one
  // begins.
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
      else ResultAddress(k) = in_result ? args.writes[to.carried] : args.scratch + to.scratch;
    }
  }

  // What is more than one result.
  void Collect(const KernelArgs& args, int64_t i) {
    for (size_t k = 0; k < spec_.destinations.size(); ++k) {
      const Destination& to = spec_.destinations[k];
      for (size_t s = 1; s < to.stacks.size(); ++s)
        CopyBytes(args.writes[to.stacks[s]] + Position(i) * to.bytes, ResultAddress(k), to.bytes);
    }
    for (const Sum& sum : spec_.sums) sum.Add(args, ResultAddress(sum.program), spec_.threads);
  }

  void StoreCarried(const KernelArgs& args) {
    for (size_t k = 0; k < spec_.carried; ++k) {
      const std::byte* last = spec_.length > 0 ? ResultAddress(spec_.next[k]) : args.reads[k];
      if (last != args.writes[k]) CopyBytes(args.writes[k], last, spec_.input_bytes[k]);
    }
  }

  LoopSpec spec_;
  BodyProgram body_;
  std::vector<std::byte*> addresses_;  // by buffer of the body's program
  std::vector<std::byte*> next_;       // by carried value
};

// --- From the node to the loop ---------------------------------------------------------------------------------------

// What is stored of all iterations so that a product of matrices can be one for all of them, at most.
constexpr uint64_t kMostStacked = uint64_t{1} << 28;

class ScanEmitter {
 public:
  ScanEmitter(const Node& node, EmitContext& c) : node_(node), c_(c), form_(node), body_(form_.body->Clone()) {}

  absl::Status Emit() {
    ASSIGN_OR_RETURN(reads_, c_.ReadAll(node_));
    spec_.length = form_.length;
    spec_.reverse = form_.reverse;
    spec_.carried = form_.carried;
    spec_.threads = c_.threads();
    for (size_t i = 0; i < form_.num_inputs(); ++i) AddInput(body_.inputs()[i].value, form_.is_scanned(i));
    RETURN_IF_ERROR(HoistProducts());
    results_ = body_.results();
    while (!body_.results().empty()) body_.RemoveResult(body_.results().size() - 1);
    for (size_t i = 0; i < form_.num_results(); ++i) RETURN_IF_ERROR(AddResult(i));
    EraseDead();
    ASSIGN_OR_RETURN(BodyProgram program, MakeBodyProgram(body_, c_));
    const uint64_t arena_bytes = program.arena_bytes;
    Kernel kernel;
    kernel.name = "steps.scan";
    kernel.scratch_bytes = PlanScratch(arena_bytes);
    kernel.run = LoopOfPrograms(spec_, std::move(program));
    c_.Add(node_, std::move(kernel), reads_, writes_);
    for (Product& product : products_)
      c_.Add(node_, std::move(product.kernel), {product.a, product.b}, {c_.Write(node_, product.result)});
    return absl::OkStatus();
  }

 private:
  // One for all iterations, after the loop.
  struct Product {
    Kernel kernel;
    size_t result = 0;
    int a = -1, b = -1;  // storages
  };

  void AddInput(Value input, bool is_scanned) {
    spec_.input_bytes.push_back(input.type().num_bytes());
    spec_.is_scanned.push_back(is_scanned);
  }
  // The position of `value` among the body's inputs, or -1.
  int InputOf(Value value) const {
    for (size_t i = 0; i < form_.num_inputs(); ++i) {
      if (body_.inputs()[i].value == value) return static_cast<int>(i);
    }
    return -1;
  }
  bool IsConstant(Value value) const { return InputOf(value) >= static_cast<int>(form_.first_constant()); }
  bool IsScanned(Value value) const {
    const int i = InputOf(value);
    return i >= 0 && form_.is_scanned(static_cast<size_t>(i));
  }
  bool MayStack(Value value) const {
    const uint64_t bytes = value.type().num_bytes();
    return form_.length > 0 && bytes > 0 && bytes <= kMostStacked / static_cast<uint64_t>(form_.length);
  }
  // y = a b for rows a of an iteration and a constant b: for all iterations it is one product.
  bool IsProductWithConstant(const Node& node) const {
    return node.Is("matmul") && !node.attr<bool>("transpose_a") && node.type().shape.rank() == 2 &&
           IsConstant(node.operand(1)) && MayStack(node.operand(0)) && MayStack(const_cast<Node&>(node).result());
  }
  bool IsSumOfProducts(Value value) const {
    const Node& node = *value.node;
    return node.Is("matmul") && node.attr<bool>("transpose_a") && !node.attr<bool>("transpose_b") &&
           node.type().shape.rank() == 2 && MayStack(value) && MayStack(node.operand(0)) && MayStack(node.operand(1));
  }

  // Before the loop: products of what is scanned with constants. The loop scans their results.
  absl::Status HoistProducts() {
    for (auto it = body_.nodes().begin(); it != body_.nodes().end();) {
      Node& node = *it++;
      if (!IsProductWithConstant(node) || !IsScanned(node.operand(0))) continue;
      const int a = reads_[static_cast<size_t>(InputOf(node.operand(0)))];
      const int b = reads_[static_cast<size_t>(InputOf(node.operand(1)))];
      const int y = StorageOfHoisted(node.result());
      ASSIGN_OR_RETURN(Kernel kernel, ProductOfAll(node, /*is_sum=*/false));
      c_.Add(node_, std::move(kernel), {a, b}, {y});
      const std::string name = "hoisted/" + node.result_name() + "/" + std::to_string(reads_.size());
      ASSIGN_OR_RETURN(const Value input, body_.AddInput(name, node.type()));
      body_.ReplaceUses(node.result(), input);
      body_.Erase(&node);
      AddInput(input, /*is_scanned=*/true);
      reads_.push_back(y);
    }
    return absl::OkStatus();
  }
  // Where it is stacked anyway, if it is.
  int StorageOfHoisted(Value value) {
    for (size_t i = form_.carried; i < form_.first_summed(); ++i) {
      if (body_.results()[i].value != value || !done_.insert(i).second) continue;
      return c_.Write(node_, i);
    }
    return Temporary(value);
  }
  int Temporary(Value value) {
    return c_.builder().DefineTemporary(node_.result_name() + "/" + value.name(), value.dtype(), "",
                                        static_cast<uint64_t>(form_.length) * value.type().num_bytes());
  }

  absl::Status AddResult(size_t i) {
    const Value value = results_[i].value;
    if (done_.contains(i)) return absl::OkStatus();
    const bool is_sum = i >= form_.first_summed() && IsSumOfProducts(value);
    const bool is_last = form_.is_stacked(i) && IsProductWithConstant(*value.node) && IsOnlyResult(value);
    if (is_sum || is_last) {
      ASSIGN_OR_RETURN(Kernel kernel, ProductOfAll(*value.node, is_sum));
      Product product{std::move(kernel), i, -1, -1};
      ASSIGN_OR_RETURN(product.a, StackOf(value.node->operand(0)));
      if (is_last) {
        product.b = reads_[static_cast<size_t>(InputOf(value.node->operand(1)))];
      } else {
        ASSIGN_OR_RETURN(product.b, StackOf(value.node->operand(1)));
      }
      products_.push_back(std::move(product));
      return absl::OkStatus();
    }
    const size_t write = writes_.size();
    written_[i] = c_.Write(node_, i);
    writes_.push_back(written_[i]);
    ASSIGN_OR_RETURN(const size_t at, ProgramResult(value));
    if (i < form_.carried) {
      spec_.next.push_back(at);
      if (spec_.destinations[at].carried < 0) spec_.destinations[at].carried = static_cast<int>(write);
    } else if (form_.is_stacked(i)) {
      spec_.destinations[at].stacks.push_back(write);
    } else {
      spec_.sums.push_back({write, at, value.type()});
    }
    return absl::OkStatus();
  }
  // Whether nothing else in the loop needs it.
  bool IsOnlyResult(Value value) const {
    int count = 0;
    for (const Result& result : results_) count += result.value == value;
    return count == 1 && value.node->users().empty();
  }

  // The result of the body's program that `value` is.
  absl::StatusOr<size_t> ProgramResult(Value value) {
    const auto [it, is_new] = program_results_.emplace(value, spec_.destinations.size());
    if (is_new) {
      RETURN_IF_ERROR(body_.AddResult("r" + std::to_string(spec_.destinations.size()), value));
      spec_.destinations.push_back({value.type().num_bytes(), {}, -1, 0});
    }
    return it->second;
  }

  // The storage of all values that `value` has, in the order of what is scanned.
  absl::StatusOr<int> StackOf(Value value) {
    for (size_t i = 0; i < body_.inputs().size(); ++i) {
      if (spec_.is_scanned[i] && body_.inputs()[i].value == value) return reads_[i];
    }
    for (const auto& [i, storage] : written_) {
      if (form_.is_stacked(i) && results_[i].value == value) return storage;
    }
    if (const auto it = stacks_.find(value); it != stacks_.end()) return it->second;
    ASSIGN_OR_RETURN(const size_t at, ProgramResult(value));
    const int storage = Temporary(value);
    spec_.destinations[at].stacks.push_back(writes_.size());
    writes_.push_back(storage);
    stacks_.emplace(value, storage);
    return storage;
  }

  // What products for all iterations have taken the place of.
  void EraseDead() {
    for (auto it = body_.nodes().end(); it != body_.nodes().begin();) {
      Node& node = *--it;
      bool is_used = false;
      for (size_t i = 0; i < node.num_results(); ++i) is_used = is_used || body_.IsUsed(node.result(i));
      if (is_used) continue;
      ++it;
      body_.Erase(&node);
    }
  }

  uint64_t PlanScratch(uint64_t arena_bytes) {
    uint64_t bytes = AlignUp(arena_bytes);
    const auto take = [&](uint64_t size) {
      const uint64_t at = bytes;
      bytes += AlignUp(size);
      return at;
    };
    for (Destination& to : spec_.destinations) {
      if (to.stacks.empty()) to.scratch = take(to.bytes);
    }
    for (Sum& sum : spec_.sums) sum.total = take(sum.scratch_bytes());
    return bytes;
  }

  // The kernel of a product in the body, with the rows of all iterations in the place of those of one.
  absl::StatusOr<Kernel> ProductOfAll(const Node& node, bool is_sum) const {
    const auto rows = [&](const TensorType& type) {
      return TensorType{type.dtype, Shape({form_.length * type.shape[0], type.shape[1]})};
    };
    const TensorType of_b = node.operand(1).type();
    Graph graph("product");
    ASSIGN_OR_RETURN(const Value left, graph.AddInput("a", rows(node.operand(0).type())));
    ASSIGN_OR_RETURN(const Value right, graph.AddInput("b", is_sum ? rows(of_b) : of_b));
    Builder builder(graph, nullptr, node.source());
    const Value product = builder.Op("matmul", {left, right}, node.attributes());
    RETURN_IF_ERROR(builder.status());
    return MatMulKernel(*product.node, c_);
  }

  const Node& node_;
  EmitContext& c_;
  const ScanForm form_;
  Graph body_;
  std::vector<Result> results_;  // of the body, which are then chosen anew
  LoopSpec spec_;
  std::vector<int> reads_, writes_;  // storages
  std::map<size_t, int> written_;    // by result of the node that the loop writes
  std::set<size_t> done_;            // results of the node that a product before the loop has written
  std::unordered_map<Value, size_t, ValueHash> program_results_;
  std::unordered_map<Value, int, ValueHash> stacks_;
  std::vector<Product> products_;
};

}  // namespace

absl::Status EmitScan(const Node& node, EmitContext& c) { return ScanEmitter(node, c).Emit(); }

}  // namespace lockstep::cpu
