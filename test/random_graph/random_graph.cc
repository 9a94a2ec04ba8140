#include "test/random_graph/random_graph.h"

#include "core/op_def.h"
#include "test/op_cases/op_case_graph.h"
#include "test/random_graph/draft.h"
#include "test/random_graph/op_nodes.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Sums occur twice, to be drawn more often.
std::vector<std::string> Reductions() {
  std::vector<std::string> names;
  for (const OpDef* op : AllOps()) {
    if (op->reduction()) names.push_back(op->name());
    if (op->reduction() == ReduceKind::kSum) names.push_back(op->name());
  }
  return names;
}

// Adds nodes of ops whose attributes depend on the shape of a random value.
class Generator {
 public:
  Generator(uint64_t seed, const RandomGraphOptions& options)
      : draft_(seed, options), random_(draft_.random()), options_(draft_.options()), b_(draft_.b()) {}

  RandomProgram Make() {
    const int64_t inputs = 1 + random_.Below(4);
    for (int64_t i = 0; i < inputs; ++i) AddInput();
    const size_t target =
        static_cast<size_t>(options_.min_nodes + random_.Below(options_.max_nodes - options_.min_nodes + 1));
    for (int tries = 0; draft_.graph().nodes().size() < target && tries < 400; ++tries) AddNode();
    return draft_.Finish();
  }

 private:
  void AddInput() {
    static const std::vector<DType> dtypes = {DType::kF32, DType::kF32, DType::kF32,  DType::kF64,
                                              DType::kF64, DType::kF16, DType::kBF16, DType::kI32,
                                              DType::kI64, DType::kU8,  DType::kBool};
    const TensorType type{random_.Of(dtypes), draft_.RandomShape()};
    const double low = IsFloat(type.dtype) ? -2 : IsSigned(type.dtype) ? -5 : 0;
    const double high = IsFloat(type.dtype) ? 2 : type.dtype == DType::kBool ? 1 : 5;
    draft_.AddInput(draft_.RandomTensor(type, low, high));
  }

  // Each of these returns a new value, or null if there were no fitting operands.
  Value Unary() {
    static const std::vector<std::string> ops = ElementwiseOpsOfFloats(1);
    const OpDef& op = GetOp(random_.Of(ops));
    const Value x = draft_.Pick([&](Value value) {
      const TensorType type = value.type();
      return op.InferTypes({&type, 1}, {}).ok();
    });
    return x ? b_.Unary(op.name(), x) : x;
  }

  Value Binary() {
    static const std::vector<std::string> ops = ElementwiseOpsOfFloats(2);
    const OpDef& op = GetOp(random_.Of(ops));
    const Value x = draft_.Pick([&](Value value) {
      const TensorType types[] = {value.type(), value.type()};
      return value.dtype() != DType::kBool && op.InferTypes(types, {}).ok();
    });
    if (!x) return x;
    const Value y = random_.Chance(40) ? draft_.Constant(x.type()) : draft_.PickOf(x.type());
    return random_.Chance(50) ? b_.Op(op.name(), {y, x}) : b_.Op(op.name(), {x, y});
  }

  Value Logic() {
    const auto is_bool = [](Value value) { return value.dtype() == DType::kBool; };
    switch (random_.Below(4)) {
      case 0: {
        const Value x = draft_.Pick(is_bool);
        return x ? b_.Op("not", {x}) : x;
      }
      case 1: {
        const Value x = draft_.Pick(is_bool);
        if (!x) return x;
        const Value y = random_.Chance(30) ? draft_.Constant(x.type()) : draft_.PickOf(x.type());
        return b_.Op(random_.Chance(50) ? "and" : "or", {x, y});
      }
      case 2: {
        static const std::vector<std::string> directions = {"eq", "ne", "lt", "le", "gt", "ge"};
        const Value x = draft_.PickNumber();
        if (!x) return x;
        const Value y = random_.Chance(40) ? draft_.Constant(x.type()) : draft_.PickOf(x.type());
        return b_.Compare(x, y, random_.Of(directions));
      }
      default: {
        const Value condition = draft_.Pick(is_bool);
        if (!condition) return condition;
        const Value yes = draft_.Pick(
            [&](Value value) { return value.shape() == condition.shape() && value.dtype() != DType::kBool; });
        if (!yes) return yes;
        return b_.Select(condition, yes, random_.Chance(30) ? draft_.Constant(yes.type()) : draft_.PickOf(yes.type()));
      }
    }
  }

  Value Convert() {
    static const std::vector<DType> dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                                              DType::kI32, DType::kI64, DType::kI8,  DType::kU8};
    const Value x = draft_.Pick([](Value) { return true; });
    const DType to = random_.Of(dtypes);
    // The conversion of a number outside of the integers' range is undefined.
    if (IsFloat(x.dtype()) && !IsFloat(to) && !IsSigned(to) && SmallestOf(draft_.TensorOf(x)) < 0) return Value();
    return b_.Op("convert", {x}, {{"dtype", to}});
  }

  Value Move() {
    const Value x = draft_.Pick([](Value) { return true; });
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
          xs.push_back(draft_.Pick([&](Value value) {
            return value.dtype() == x.dtype() && value.shape().rank() == shape.rank() &&
                   value.shape().Without({dim}) == shape.Without({dim});
          }));
        }
        return b_.Concat(xs, dim);
      }
      case 4: {
        Ints start, limit, stride;
        for (int64_t extent : shape.dims()) {
          start.push_back(extent == 0 || random_.Chance(50) ? 0 : random_.Below(extent));
          const int64_t rest = extent - start.back();
          limit.push_back(rest == 0 || random_.Chance(50) ? extent : start.back() + 1 + random_.Below(rest));
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
    const Value x = draft_.PickNumber();
    if (!x) return x;
    Ints dims;
    for (int64_t i = 0; i < x.shape().rank(); ++i) {
      if (random_.Chance(60)) dims.push_back(i);
    }
    return b_.Op(random_.Of(ops), {x}, {{"dims", dims}});
  }

  Value MatMul() {
    const Value x = draft_.Pick([](Value value) { return IsFloat(value.dtype()) && value.shape().rank() >= 2; });
    if (!x) return x;
    const bool transpose_a = random_.Chance(30), transpose_b = random_.Chance(30);
    const int64_t rank = x.shape().rank(), summed = x.shape()[transpose_a ? rank - 2 : rank - 1];
    const Value y = draft_.Pick([&](Value value) {
      return value.dtype() == x.dtype() && value.shape().rank() == rank &&
             value.shape()[transpose_b ? rank - 1 : rank - 2] == summed &&
             value.shape().Without({rank - 2, rank - 1}) == x.shape().Without({rank - 2, rank - 1});
    });
    return y ? b_.MatMul(x, y, transpose_a, transpose_b) : y;
  }

  Value Iota() {
    Shape shape = draft_.RandomShape();
    if (shape.rank() == 0) return Value();
    static const std::vector<DType> dtypes = {DType::kF32, DType::kF64, DType::kI32, DType::kI64};
    return b_.Iota({random_.Of(dtypes), shape}, random_.Below(shape.rank()));
  }

  void AddNode() {
    const int64_t kind = random_.Below(100);
    if (kind < 18) Unary();
    else if (kind < 42) Binary();
    else if (kind < 48) Logic();
    else if (kind < 52) Convert();
    else if (kind < 63) Move();
    else if (kind < 70) Reduce();
    else if (kind < 74) MatMul();
    else if (kind < 77) Iota();
    else if (kind < 91) AddNodeOfRow(draft_);
    else AddGradient(draft_);
    draft_.KeepSteadyNodes();
  }

  Draft draft_;
  Random& random_;
  const RandomGraphOptions& options_;
  Builder& b_;
};

}  // namespace

RandomProgram MakeRandomProgram(uint64_t seed, const RandomGraphOptions& options) {
  return Generator(seed, options).Make();
}

}  // namespace lockstep
