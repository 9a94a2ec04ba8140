#include "test/random_graph/random_graph.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/op_def.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// splitmix64 of Steele, Lea and Flood (2014): unlike the standard library's distributions it is the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du) {}
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound)); }
  bool Chance(int percent) { return Below(100) < percent; }
  double In(double low, double high) { return low + (high - low) * static_cast<double>(Next() >> 11) * 0x1p-53; }
  template <typename T>
  const T& Of(const std::vector<T>& list) {
    return list[static_cast<size_t>(Below(static_cast<int64_t>(list.size())))];
  }

 private:
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

// Sums come twice.
std::vector<std::string> Reductions() {
  std::vector<std::string> names;
  for (const OpDef* op : AllOps()) {
    if (op->reduction()) names.push_back(op->name());
    if (op->reduction() == ReduceKind::kSum) names.push_back(op->name());
  }
  return names;
}

// How far from a jump a value of this dtype must be, so that rounding does not carry it across.
double Margin(DType dtype) {
  if (dtype == DType::kF16 || dtype == DType::kBF16) return 0.1;
  return IsFloat(dtype) ? 1e-3 : 0.5;
}

class Generator {
 public:
  Generator(uint64_t seed, const RandomGraphOptions& options)
      : random_(seed), options_(options), graph_("random"), b_(graph_) {}

  RandomProgram Make() {
    const int64_t inputs = 1 + random_.Below(4);
    for (int64_t i = 0; i < inputs; ++i) AddInput();
    const size_t target =
        static_cast<size_t>(options_.min_nodes + random_.Below(options_.max_nodes - options_.min_nodes + 1));
    for (int tries = 0; graph_.nodes().size() < target && tries < 400; ++tries) AddNode();
    AddResults();
    return {std::move(graph_), std::move(inputs_)};
  }

 private:
  void AddInput() {
    static const std::vector<DType> dtypes = {DType::kF32, DType::kF32, DType::kF32,  DType::kF64,
                                              DType::kF64, DType::kF16, DType::kBF16, DType::kI32,
                                              DType::kI64, DType::kU8,  DType::kBool};
    TensorType type{random_.Of(dtypes), RandomShape()};
    const bool is_state = random_.Chance(30);
    PlacementMap placements;
    const bool is_batch = type.shape.rank() > 0 && options_.batch > 0 && type.shape[0] == options_.batch;
    // A state that is split needs a next value that is split, and not every value of its type is.
    if (is_batch && !is_state && random_.Chance(80)) placements["data"] = Placement::Split(0);
    if (options_.model > 0 && random_.Chance(80)) SplitAlongModel(type.shape, placements);
    const absl::StatusOr<Value> value =
        graph_.AddInput("x" + std::to_string(inputs_.size()), type, is_state, placements);
    LOCKSTEP_CHECK(value.ok()) << value.status();
    Tensor tensor(type);
    DispatchDType(type.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (T& element : tensor.mutable_data<T>()) element = ConvertElement<T>(RandomElement(type.dtype));
    });
    inputs_.push_back(tensor);
    Remember(*value, std::move(tensor));
  }

  void SplitAlongModel(const Shape& shape, PlacementMap& placements) {
    Ints dims;
    for (int64_t dim = placements.empty() ? 0 : 1; dim < shape.rank(); ++dim) {
      if (shape[dim] % options_.model == 0) dims.push_back(dim);
    }
    if (!dims.empty()) placements["model"] = Placement::Split(random_.Of(dims));
  }

  double RandomElement(DType dtype) {
    if (dtype == DType::kBool) return static_cast<double>(random_.Below(2));
    if (!IsFloat(dtype)) return std::floor(random_.In(IsSigned(dtype) ? -5 : 0, 6));
    return random_.In(-2, 2);
  }

  int64_t RandomExtent() {
    if (options_.model == 0 || random_.Chance(20)) return 1 + random_.Below(options_.max_extent);
    return options_.model * (1 + random_.Below(options_.max_extent / options_.model));
  }

  Shape RandomShape() {
    Ints extents;
    const int64_t rank = random_.Below(4);
    for (int64_t i = 0; i < rank; ++i) extents.push_back(RandomExtent());
    if (options_.batch > 0 && rank > 0 && random_.Chance(60)) extents[0] = options_.batch;
    return Shape(extents);
  }

  // --- Choosing operands ---------------------------------------------------------------------------------------------

  using Filter = std::function<bool(Value)>;
  Value Pick(const Filter& filter) {
    std::vector<Value> fitting;
    for (Value value : values_) {
      if (filter(value)) fitting.push_back(value);
    }
    if (fitting.empty()) return Value();
    // Often one of the latest, so that chains grow.
    if (random_.Chance(50))
      return fitting[fitting.size() - 1 -
                     static_cast<size_t>(random_.Below(std::min<int64_t>(3, static_cast<int64_t>(fitting.size()))))];
    return random_.Of(fitting);
  }
  Value PickOf(const TensorType& type) {
    return Pick([&](Value value) { return value.type() == type; });
  }
  Value PickFloat() {
    return Pick([](Value value) { return IsFloat(value.dtype()); });
  }
  Value PickNumber() {
    return Pick([](Value value) { return value.dtype() != DType::kBool; });
  }
  Value PickAny() {
    return Pick([](Value) { return true; });
  }

  double Smallest(Value value) const {
    return Extreme(value, [](double a, double b) { return std::min(a, b); });
  }
  double Largest(Value value) const {
    return Extreme(value, [](double a, double b) { return std::max(a, b); });
  }
  double Extreme(Value value, double (*choose)(double, double)) const {
    const Tensor& tensor = tensors_.at(value);
    double found = tensor.num_elements() > 0 ? tensor.At(0) : 0;
    for (int64_t i = 1; i < tensor.num_elements(); ++i) found = choose(found, tensor.At(i));
    return found;
  }
  // Whether the op is defined and not steep for these operands.
  bool InDomain(const OpDef& op, const std::vector<Value>& operands) const {
    std::vector<ValueRange> ranges;
    for (Value operand : operands) ranges.push_back({Smallest(operand), Largest(operand)});
    return op.InDomain(ranges);
  }
  // Whether rounding could carry an element across a multiple of 1/2 (an integer, for floor and for conversion).
  bool NearJump(Value value) const {
    const Tensor& tensor = tensors_.at(value);
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      if (std::abs(tensor.At(i) - std::round(tensor.At(i))) < Margin(value.dtype())) return true;
    }
    return false;
  }
  bool NearlyEqual(Value x, Value y) const {
    const Tensor &a = tensors_.at(x), &b = tensors_.at(y);
    for (int64_t i = 0; i < a.num_elements(); ++i) {
      if (std::abs(a.At(i) - b.At(i)) < Margin(x.dtype())) return true;
    }
    return false;
  }

  // --- Making nodes --------------------------------------------------------------------------------------------------

  // Each returns a new value, or null if there were no fitting operands.
  Value Unary() {
    static const std::vector<std::string> ops = ElementwiseOpsOfFloats(1);
    const OpDef& op = GetOp(random_.Of(ops));
    const Value x = Pick([&](Value value) {
      const TensorType type = value.type();
      return op.InferTypes({&type, 1}, {}).ok();
    });
    if (!x || !InDomain(op, {x})) return Value();
    if (op.has_trait(kSteps) && IsFloat(x.dtype()) && NearJump(x)) return Value();
    return b_.Unary(op.name(), x);
  }

  Value Binary() {
    static const std::vector<std::string> ops = ElementwiseOpsOfFloats(2);
    const OpDef& op = GetOp(random_.Of(ops));
    const Value x = PickNumber();
    if (!x) return x;
    Value y = random_.Chance(40) ? Constant(x.type()) : PickOf(x.type());
    if (random_.Chance(50) && InDomain(op, {y, x})) return b_.Op(op.name(), {y, x});
    return InDomain(op, {x, y}) ? b_.Op(op.name(), {x, y}) : Value();
  }

  // A splat of a number that rules look for, or other elements.
  Value Constant(const TensorType& type) {
    static const std::vector<double> numbers = {0, 1, -1, 2, 0.5, 4, 0.3, 3};
    double number = random_.Of(numbers);
    if (!IsSigned(type.dtype) || type.dtype == DType::kBool) number = std::abs(number);
    Value value;
    if (random_.Chance(80)) {
      value = b_.Splat(number, type);
    } else {
      Tensor tensor(type);
      DispatchDType(type.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        for (T& element : tensor.mutable_data<T>()) element = ConvertElement<T>(RandomElement(type.dtype));
      });
      value = b_.Constant(std::move(tensor));
    }
    EvaluateNewNodes();
    return value;
  }

  Value Logic() {
    const auto is_bool = [](Value value) { return value.dtype() == DType::kBool; };
    switch (random_.Below(4)) {
      case 0: {
        const Value x = Pick(is_bool);
        return x ? b_.Op("not", {x}) : x;
      }
      case 1: {
        const Value x = Pick(is_bool);
        if (!x) return x;
        const Value y = random_.Chance(30) ? Constant(x.type()) : PickOf(x.type());
        return b_.Op(random_.Chance(50) ? "and" : "or", {x, y});
      }
      case 2: {
        static const std::vector<std::string> directions = {"eq", "ne", "lt", "le", "gt", "ge"};
        const Value x = PickNumber();
        if (!x) return x;
        const Value y = random_.Chance(40) ? Constant(x.type()) : PickOf(x.type());
        if (x != y && IsFloat(x.dtype()) && NearlyEqual(x, y)) return Value();
        return b_.Compare(x, y, random_.Of(directions));
      }
      default: {
        const Value condition = Pick(is_bool);
        if (!condition) return condition;
        const Value yes =
            Pick([&](Value value) { return value.shape() == condition.shape() && value.dtype() != DType::kBool; });
        if (!yes) return yes;
        return b_.Select(condition, yes, random_.Chance(30) ? Constant(yes.type()) : PickOf(yes.type()));
      }
    }
  }

  Value Convert() {
    static const std::vector<DType> dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                                              DType::kI32, DType::kI64, DType::kI8,  DType::kU8};
    const Value x = PickAny();
    const DType to = random_.Of(dtypes);
    if (IsFloat(x.dtype()) && !IsFloat(to) && (NearJump(x) || Smallest(x) < (IsSigned(to) ? -100 : 0))) return Value();
    return b_.Op("convert", {x}, {{"dtype", to}});
  }

  Value Move() {
    const Value x = PickAny();
    const Shape& shape = x.shape();
    switch (random_.Below(6)) {
      case 0: {
        Ints extents = shape.dims();
        if (random_.Chance(50)) extents.insert(extents.begin() + random_.Below(shape.rank() + 1), 1);
        else if (shape.rank() >= 2) extents[0] *= extents[1], extents.erase(extents.begin() + 1);
        return b_.Op("reshape", {x}, {{"shape", extents}});
      }
      case 1: {
        Ints permutation;
        for (int64_t i = 0; i < shape.rank(); ++i) permutation.insert(permutation.begin() + random_.Below(i + 1), i);
        return b_.Transpose(x, permutation);
      }
      case 2: {
        if (shape.rank() > 3) return Value();
        Ints extents = shape.dims(), dims;
        const int64_t at = random_.Below(shape.rank() + 1);
        extents.insert(extents.begin() + at, 1 + random_.Below(options_.max_extent));
        for (int64_t i = 0; i < shape.rank(); ++i) dims.push_back(i < at ? i : i + 1);
        return b_.Op("broadcast", {x}, {{"shape", extents}, {"dims", dims}});
      }
      case 3: {
        if (shape.rank() == 0) return Value();
        const int64_t dim = random_.Below(shape.rank());
        std::vector<Value> xs = {x};
        for (int64_t i = random_.Below(3); i > 0; --i) {
          xs.push_back(Pick([&](Value value) {
            return value.dtype() == x.dtype() && value.shape().rank() == shape.rank() &&
                   value.shape().Without({dim}) == shape.Without({dim});
          }));
        }
        return b_.Concat(xs, dim);
      }
      case 4: {
        Ints start, limit, stride;
        for (int64_t extent : shape.dims()) {
          start.push_back(random_.Chance(50) ? 0 : random_.Below(extent));
          limit.push_back(random_.Chance(50) ? extent : start.back() + 1 + random_.Below(extent - start.back()));
          stride.push_back(1 + random_.Below(2));
        }
        return b_.Slice(x, start, limit, stride);
      }
      default: {
        if (x.dtype() == DType::kBool) return Value();
        Ints low, high;
        for (int64_t i = 0; i < shape.rank(); ++i) low.push_back(random_.Below(2)), high.push_back(random_.Below(2));
        return b_.Pad(x, low, high, static_cast<double>(random_.Below(2)));
      }
    }
  }

  Value Reduce() {
    static const std::vector<std::string> ops = Reductions();
    const Value x = PickNumber();
    if (!x) return x;
    Ints dims;
    for (int64_t i = 0; i < x.shape().rank(); ++i) {
      if (random_.Chance(60)) dims.push_back(i);
    }
    return b_.Op(random_.Of(ops), {x}, {{"dims", dims}});
  }

  Value MatMul() {
    const Value x = Pick([](Value value) { return IsFloat(value.dtype()) && value.shape().rank() >= 2; });
    if (!x) return x;
    const bool transpose_a = random_.Chance(30), transpose_b = random_.Chance(30);
    const int64_t rank = x.shape().rank(), summed = x.shape()[transpose_a ? rank - 2 : rank - 1];
    const Value y = Pick([&](Value value) {
      return value.dtype() == x.dtype() && value.shape().rank() == rank &&
             value.shape()[transpose_b ? rank - 1 : rank - 2] == summed &&
             value.shape().Without({rank - 2, rank - 1}) == x.shape().Without({rank - 2, rank - 1});
    });
    return y ? b_.MatMul(x, y, transpose_a, transpose_b) : y;
  }

  // Ops that are taken apart by legalize.
  Value Composite() {
    const Value x = PickFloat();
    if (!x) return x;
    if (random_.Chance(30)) {
      // On a mesh the first operand must be a variable: a sum that is not reduced yet is refused.
      if (options_.batch > 0 && !x.node->Is("input")) return Value();
      const Value g = PickOf(x.type());
      return b_.Op("sgd", {x, g}, {{"learning_rate", 0.5}, {"weight_decay", random_.Chance(50) ? 0.25 : 0.0}});
    }
    if (x.shape().rank() == 0) return Value();
    return b_.Op(random_.Chance(50) ? "softmax" : "log_softmax", {x}, {{"dim", random_.Below(x.shape().rank())}});
  }

  Value Iota() {
    Shape shape = RandomShape();
    if (shape.rank() == 0) return Value();
    static const std::vector<DType> dtypes = {DType::kF32, DType::kF64, DType::kI32, DType::kI64};
    return b_.Iota({random_.Of(dtypes), shape}, random_.Below(shape.rank()));
  }

  void AddNode() {
    const int64_t kind = random_.Below(100);
    if (kind < 22) Unary();
    else if (kind < 52) Binary();
    else if (kind < 60) Logic();
    else if (kind < 66) Convert();
    else if (kind < 80) Move();
    else if (kind < 89) Reduce();
    else if (kind < 94) MatMul();
    else if (kind < 97) Composite();
    else Iota();
    LOCKSTEP_CHECK(b_.status().ok()) << b_.status();
    EvaluateNewNodes();
  }

  // Evaluates what was inserted since the last call; nodes with wild values are erased.
  void EvaluateNewNodes() {
    for (auto it = graph_.nodes().begin(); it != graph_.nodes().end();) {
      Node& node = *it++;
      if (tensors_.contains(node.result())) continue;
      std::vector<const Tensor*> operands;
      for (Value operand : node.operands()) operands.push_back(&tensors_.at(operand));
      absl::StatusOr<std::vector<Tensor>> results = EvaluateNode(node, operands);
      LOCKSTEP_CHECK(results.ok()) << results.status();
      bool tame = true;
      for (const Tensor& tensor : *results) tame = tame && IsTame(tensor);
      if (!tame) {
        graph_.Erase(&node);
        continue;
      }
      for (size_t i = 0; i < results->size(); ++i) Remember(node.result(i), std::move((*results)[i]));
    }
  }

  bool IsTame(const Tensor& tensor) const {
    if (tensor.num_elements() > 512) return false;
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      if (!(std::abs(tensor.At(i)) < 100)) return false;
    }
    return true;
  }

  void Remember(Value value, Tensor tensor) {
    values_.push_back(value);
    tensors_.emplace(value, std::move(tensor));
  }

  // Every state gets a next value if there is one of its type; values that nobody uses are results, and some others.
  void AddResults() {
    for (const Input& input : graph_.inputs()) {
      if (!input.is_state) continue;
      const Value next = PickOf(input.value.type());
      LOCKSTEP_CHECK(graph_.AddStateResult(input.name(), next).ok()) << input.name();
    }
    int64_t count = 0;
    for (Value value : values_) {
      if (value.node->Is("input") || (graph_.IsUsed(value) && !random_.Chance(10)) || random_.Chance(10)) continue;
      LOCKSTEP_CHECK(graph_.AddResult("y" + std::to_string(count++), value).ok()) << count;
    }
  }

  Random random_;
  const RandomGraphOptions options_;
  Graph graph_;
  Builder b_;
  std::vector<Tensor> inputs_;
  std::vector<Value> values_;
  std::unordered_map<Value, Tensor, ValueHash> tensors_;
};

}  // namespace

RandomProgram MakeRandomProgram(uint64_t seed, const RandomGraphOptions& options) {
  return Generator(seed, options).Make();
}

}  // namespace lockstep
