// Chains of ops on integers of 8 and 16 bits: results that wrap, minima and maxima must be compared, converted and
// shifted like in the interpreter. Only NVIDIA's assembler is known to get this wrong (backends/codegen/widen_ptx.h).

#include <functional>
#include <limits>

#include "backends/conformance/compare_with_interpreter.h"
#include "core/builder.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

struct Operands {
  Value x, y, zero, small;  // small: 0 to 7
};

struct First {
  const char* name;
  std::function<Value(Builder& b, const Operands& o)> compute;
};

std::vector<First> Firsts(DType dtype) {
  std::vector<First> firsts = {
      {"sub from 0", [](Builder& b, const Operands& o) { return b.Op("sub", {o.zero, o.x}); }},
      {"relu", [](Builder& b, const Operands& o) { return b.Op("max", {o.x, o.zero}); }},
      {"min with 0", [](Builder& b, const Operands& o) { return b.Op("min", {o.x, o.zero}); }},
      {"clip", [](Builder& b, const Operands& o) { return b.Op("min", {b.Op("max", {o.x, o.zero}), o.y}); }},
  };
  if (IsSigned(dtype)) {
    for (const char* op : {"neg", "abs"})
      firsts.push_back({op, [op](Builder& b, const Operands& o) { return b.Op(op, {o.x}); }});
    firsts.push_back({"neg of abs", [](Builder& b, const Operands& o) { return b.Neg(b.Op("abs", {o.x})); }});
  }
  for (const char* op : {"add", "sub", "mul", "max", "min", "and", "or", "xor"})
    firsts.push_back({op, [op](Builder& b, const Operands& o) { return b.Op(op, {o.x, o.y}); }});
  for (const char* op : {"pow", "shift_left", "shift_right"})
    firsts.push_back({op, [op](Builder& b, const Operands& o) { return b.Op(op, {o.x, o.small}); }});
  return firsts;
}

// Returns all pairs of numbers at the ends of the range and around 0.
template <typename T>
std::vector<Tensor> Inputs() {
  const T low = std::numeric_limits<T>::lowest(), high = std::numeric_limits<T>::max();
  const T each[] = {low, static_cast<T>(low + 1), static_cast<T>(-1), 0, 1, 2, 7, static_cast<T>(high - 1), high};
  std::vector<T> x, y, small;
  for (const T a : each) {
    for (const T b : each) {
      x.push_back(a);
      y.push_back(b);
      small.push_back(static_cast<T>(b & 7));
    }
  }
  const Shape shape = {static_cast<int64_t>(x.size())};
  return {Tensor::Of<T>(shape, x), Tensor::Of<T>(shape, y), Tensor::Of<T>(shape, small)};
}

// Returns a graph that compares the first op's result with both operands and 0 in all directions, converts it, shifts
// it and computes with it.
Graph Chain(const First& first, const TensorType& type) {
  Graph graph("chain");
  Operands o;
  o.x = graph.AddInput("x", type).value();
  o.y = graph.AddInput("y", type).value();
  o.small = graph.AddInput("small", type).value();
  Builder b(graph);
  o.zero = b.Splat(0, type);
  const Value v = first.compute(b, o);
  std::vector<Value> results = {v};
  for (const char* direction : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    for (const Value& other : {o.zero, o.x, o.y}) results.push_back(b.Compare(v, other, direction));
  }
  for (DType dtype : {DType::kI32, DType::kU32, DType::kF32}) results.push_back(b.Convert(v, dtype));
  for (const char* op : {"shift_right", "max", "min"}) results.push_back(b.Op(op, {v, o.small}));
  if (IsSigned(type.dtype)) results.push_back(b.Op("abs", {v}));
  EXPECT_TRUE(b.status().ok()) << b.status();
  for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(graph.AddResult("r" + std::to_string(i), results[i]).ok());
  return graph;
}

template <typename T>
void ExpectChainsAgree() {
  const std::vector<Tensor> inputs = Inputs<T>();
  for (const First& first : Firsts(inputs[0].dtype())) {
    SCOPED_TRACE(first.name);
    ExpectAgreesWithInterpreter(Chain(first, inputs[0].type()), {inputs}, 0, {});
  }
}

TEST(NarrowIntegers, ChainsOfI8) { ExpectChainsAgree<int8_t>(); }
TEST(NarrowIntegers, ChainsOfI16) { ExpectChainsAgree<int16_t>(); }
TEST(NarrowIntegers, ChainsOfU8) { ExpectChainsAgree<uint8_t>(); }
TEST(NarrowIntegers, ChainsOfU16) { ExpectChainsAgree<uint16_t>(); }

}  // namespace
}  // namespace lockstep
