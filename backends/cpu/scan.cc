// Loops with a body. The body is compiled as a separate program, which one kernel runs once per iteration. Scanned and
// stacked values are not copied: the addresses of the program's inputs and results advance. A carried value is written
// to its place in the stack, if it is stacked; otherwise alternately to the result and to a second buffer.
//
// Matrix products that do not depend on other iterations are computed as one large product for all iterations: before
// the loop if a scanned value is multiplied by a constant; after it if the product is stacked, and for a sum over
// iterations such as the gradient of a weight, where the sum over t of a[t]' b[t] is a' b of all rows. This needs
// memory for all iterations, so it is not done in loops whose iterations must run one at a time.

#include "core/ops/scan.h"

#include <map>
#include <set>
#include <unordered_map>

#include "backends/cpu/emitters.h"
#include "backends/cpu/scan_loop.h"
#include "core/builder.h"

namespace lockstep::cpu {
namespace {

// The maximum size of values stored for all iterations so that a matrix product can be computed for all of them.
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
    ASSIGN_OR_RETURN(Kernel kernel, LoopKernel(body_, spec_, c_));
    c_.Add(node_, std::move(kernel), reads_, writes_);
    for (Product& product : products_)
      c_.Add(node_, std::move(product.kernel), {product.a, product.b}, {c_.Write(node_, product.result)});
    return absl::OkStatus();
  }

 private:
  // A product for all iterations, after the loop.
  struct Product {
    Kernel kernel;
    size_t result = 0;
    int a = -1, b = -1;  // storages
  };

  void AddInput(Value input, bool is_scanned) {
    spec_.input_bytes.push_back(input.type().num_bytes());
    spec_.is_scanned.push_back(is_scanned);
  }
  // Returns the position of `value` among the body's inputs, or -1.
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
    return form_.length > 0 && !node_.attr<bool>("one_at_a_time") && bytes > 0 &&
           bytes <= kMostStacked / static_cast<uint64_t>(form_.length);
  }
  // True for y = a b with rows a of an iteration and a constant b: for all iterations it is one product.
  bool IsProductWithConstant(const Node& node) const {
    return node.Is("matmul") && !node.attr<bool>("transpose_a") && node.type().shape.rank() == 2 &&
           IsConstant(node.operand(1)) && MayStack(node.operand(0)) && MayStack(const_cast<Node&>(node).result());
  }
  bool IsSumOfProducts(Value value) const {
    const Node& node = *value.node;
    return node.Is("matmul") && node.attr<bool>("transpose_a") && !node.attr<bool>("transpose_b") &&
           node.operand(0).shape().rank() == 2 && MayStack(value) && MayStack(node.operand(0)) &&
           MayStack(node.operand(1));
  }

  // Moves products of scanned values and constants before the loop, which then scans their results.
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
  // Returns the storage of a hoisted value: that of its stack, if it is stacked.
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
  // True if `value` is needed for only one result and nothing else in the loop.
  bool IsOnlyResult(Value value) const {
    int count = 0;
    for (const Result& result : results_) count += result.value == value;
    return count == 1 && value.node->users().empty();
  }

  // Returns the index of the result of the body's program that is `value`.
  absl::StatusOr<size_t> ProgramResult(Value value) {
    const auto [it, is_new] = program_results_.emplace(value, spec_.destinations.size());
    if (is_new) {
      RETURN_IF_ERROR(body_.AddResult("r" + std::to_string(spec_.destinations.size()), value));
      spec_.destinations.push_back({value.type().num_bytes(), {}, -1});
    }
    return it->second;
  }

  // Returns the storage of the values of all iterations, in the order of scanned values.
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

  // Erases nodes that were replaced by products for all iterations.
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

  // Returns the kernel of a product in the body, with the rows of all iterations instead of one.
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
  std::vector<Result> results_;  // of the body; replaced by those that the loop computes
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
