// Checks the traits of elementwise ops on all special numbers: f(f(x)), f(x, y) = f(y, x), steps, and the domain of f.

#include <cmath>
#include <limits>
#include <set>

#include "core/builder.h"
#include "core/interpreter.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

// The special values that a dtype has.
Tensor SpecialValues(DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double numbers[] = {0,    -0.0,      1,          -1,   2,     -3, 0.5,  -0.5, 1.5,   -2.5,
                            1e30, kInfinity, -kInfinity, 1e-7, 65504, 88, -104, NAN,  1e-40, 127};
  Tensor tensor(TensorType{dtype, Shape({std::size(numbers)})});
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    size_t i = 0;
    for (T& element : tensor.mutable_data<T>()) element = ConvertElement<T>(numbers[i++]);
  });
  return tensor;
}

// Calls check with special values of each dtype that `make` accepts, and the results of `make` for them. Returns the
// number of dtypes.
template <typename Make, typename Check>
int ForEachDType(const Make& make, const Check& check) {
  int accepted = 0;
  for (DType dtype : kAllDTypes) {
    Graph graph("g");
    const Tensor x = SpecialValues(dtype);
    Builder b(graph);
    const std::vector<Value> results = make(b, graph.AddInput("x", x.type()).value());
    if (!b.status().ok()) continue;
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(graph.AddResult("r" + std::to_string(i), results[i]).ok());
    const absl::StatusOr<std::vector<Tensor>> found = InterpretOneRank(graph, {x});
    EXPECT_TRUE(found.ok()) << found.status();
    SCOPED_TRACE(DTypeName(dtype));
    if (found.ok()) check(x, *found);
    ++accepted;
  }
  return accepted;
}

TEST(ElementwiseTraits, IdempotentAndInvolution) {
  int ops = 0;
  for (const OpDef* op : AllOps()) {
    const bool is_idempotent = op->has_trait(kIdempotent), is_involution = op->has_trait(kInvolution);
    if (!is_idempotent && !is_involution) continue;
    SCOPED_TRACE(op->name());
    const int dtypes = ForEachDType(
        [&](Builder& b, Value x) {
          const Value once = b.Op(op->name(), {x});
          return std::vector<Value>{once, b.status().ok() ? b.Op(op->name(), {once}) : once};
        },
        [&](const Tensor& x, const std::vector<Tensor>& found) {
          if (is_idempotent) {
            EXPECT_EQ(found[1], found[0]);
          }
          if (is_involution) {
            EXPECT_EQ(found[1], x);
          }
        });
    EXPECT_GT(dtypes, 0);
    ++ops;
  }
  EXPECT_GE(ops, 7);
}

TEST(ElementwiseTraits, CommutativeOpsTakeTheirOperandsInEitherOrder) {
  for (const OpDef* op : AllOps()) {
    if (!op->has_trait(kCommutative)) continue;
    SCOPED_TRACE(op->name());
    const int dtypes = ForEachDType(
        [&](Builder& b, Value x) {
          // Pairs each value with its neighbour.
          const int64_t last = x.shape()[0] - 1;
          const Value rotated = b.Concat({b.Slice(x, {1}, {last + 1}), b.Slice(x, {0}, {1})}, 0);
          return std::vector<Value>{b.Op(op->name(), {x, rotated}), b.Op(op->name(), {rotated, x})};
        },
        [](const Tensor&, const std::vector<Tensor>& found) {
          for (int64_t i = 0; i < found[0].num_elements(); ++i) {
            const double a = found[0].At(i), b = found[1].At(i);
            EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << "element " << i << ": " << a << " and " << b;
          }
        });
    EXPECT_GT(dtypes, 0);
  }
}

// f of reordered operands is f, reordered.
TEST(ElementwiseTraits, ElementsAreComputedOnTheirOwn) {
  const auto backwards = [](const Tensor& x) {
    Tensor y(x.type());
    const size_t size = SizeOf(x.dtype()), count = static_cast<size_t>(x.num_elements());
    for (size_t i = 0; i < count; ++i)
      std::copy_n(x.bytes() + i * size, size, y.mutable_bytes() + (count - 1 - i) * size);
    return y;
  };
  int rows = 0;
  for (const OpCase& row : AcceptedOpCases()) {
    if (!GetOp(row.op).has_trait(kElementwise)) continue;
    const Graph graph = CaseGraph(row).value();
    std::vector<Tensor> inputs = CaseInputs(row), reversed;
    for (const Tensor& input : inputs) {
      EXPECT_EQ(input.shape(), graph.results()[0].value.shape()) << row.ToString();
      reversed.push_back(backwards(input));
    }
    const Tensor expected = backwards(InterpretOneRank(graph, inputs).value()[0]);
    EXPECT_EQ(InterpretOneRank(graph, reversed).value()[0], expected) << row.ToString();
    ++rows;
  }
  EXPECT_GT(rows, 50);
}

double Call(const OpDef& op, const std::vector<double>& operands) {
  Graph graph("g");
  Builder b(graph);
  std::vector<Tensor> inputs;
  std::vector<Value> values;
  for (double operand : operands) {
    inputs.push_back(Tensor::Scalar(DType::kF64, operand));
    values.push_back(graph.AddInput("x" + std::to_string(values.size()), inputs.back().type()).value());
  }
  EXPECT_TRUE(graph.AddResult("y", b.Op(op.name(), values)).ok());
  return InterpretOneRank(graph, inputs).value()[0].At(0);
}

TEST(ElementwiseTraits, StepsAreConstantBetweenHalves) {
  int ops = 0;
  for (const std::string& name : ElementwiseOpsOfFloats(1)) {
    const OpDef& op = GetOp(name);
    bool constant = true;
    for (double low = -3; low < 3; low += 0.5) {
      for (double part : {0.01, 0.3, 0.49}) constant = constant && Call(op, {low + part}) == Call(op, {low + 0.2});
    }
    EXPECT_EQ(constant, op.has_trait(kSteps)) << name;
    ops += constant;
  }
  EXPECT_GE(ops, 4);
}

// Inside its domain an op is finite, and a small change of an operand changes the result little.
TEST(ElementwiseTraits, InTheirDomainOpsAreDefinedAndNotSteep) {
  const std::vector<double> numbers = {-3, -1.5, -0.75, -0.25, 0, 0.1, 0.3, 1, 1.3, 2, 2.9};
  const auto check = [](const OpDef& op, std::vector<double> operands) {
    std::vector<ValueRange> ranges;
    for (double operand : operands) ranges.push_back({operand, operand});
    if (!op.InDomain(ranges)) return 0;
    const double result = Call(op, operands);
    EXPECT_TRUE(std::isfinite(result)) << op.name() << " of " << operands.front() << ", " << operands.back();
    if (op.has_trait(kSteps)) return 1;
    for (double& operand : operands) operand += 1e-6;
    EXPECT_NEAR(Call(op, operands), result, 2e-4) << op.name() << " of " << operands.front();
    return 1;
  };
  std::set<std::string> ops;
  for (const std::string& name : ElementwiseOpsOfFloats(1)) {
    int tried = 0;
    for (double x : numbers) tried += check(GetOp(name), {x});
    EXPECT_GE(tried, 3) << name;
    ops.insert(name);
  }
  for (const std::string& name : ElementwiseOpsOfFloats(2)) {
    int tried = 0;
    for (double x : numbers) {
      for (double y : numbers) tried += check(GetOp(name), {x, y});
    }
    EXPECT_GE(tried, 9) << name;
    ops.insert(name);
  }
  for (const OpDef* op : AllOps())
    EXPECT_TRUE(ops.contains(op->name()) || !op->has_domain()) << op->name() << " has a domain that no case tested";
}

}  // namespace
}  // namespace lockstep
