// Sums of f32 in pairs of f32 agree with sums in f64 to well below the rounding of f32, also if they cancel. Single
// additions have the error that the header states.

#include "backends/codegen/float_pair.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backends/codegen/loop_test_support.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/LLVMContext.h"

namespace lockstep::loop_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr GridSizes kInPairs = {.sums_in_pairs = true};

// A sum of rows, of columns, or of everything. The shapes are such that the sums of a thread's lanes, of a warp, of the
// block's memory and of chunks are all needed by some of them.
struct Shape {
  int64_t rows, columns;
  const char* dims;
  const char* result;
};
const std::vector<Shape>& Shapes() {
  static const auto* const shapes = new std::vector<Shape>{
      {3, 7, "1", "3"}, {64, 100, "1", "64"}, {4, 20000, "1", "4"}, {1, 300000, "0,1", ""},
      {7, 3, "0", "3"}, {100, 64, "0", "64"}, {20000, 8, "0", "8"}, {1, 1, "1", "1"},
  };
  return *shapes;
}

Graph SumOf(const Shape& shape) {
  const std::string from = "f32[" + std::to_string(shape.rows) + "," + std::to_string(shape.columns) + "]";
  const std::string to = "f32[" + std::string(shape.result) + "]";
  return ParseGraph("graph @sum(%x: " + from + ") -> (y: " + to + ") {\n  %y = reduce_sum %x {dims=[" + shape.dims +
                    "]} : " + to + "\n  return %y\n}\n")
      .value();
}

// Values of magnitudes from 2^-20 to 2^20, where every second one is the negated previous one, apart from its last
// bits.
Tensor Cancelling(const TensorType& type, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> exponent(-20, 20), near(1 - 1e-6f, 1 + 1e-6f);
  Tensor tensor(type);
  const auto values = tensor.mutable_data<float>();
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    values[i] = i % 2 == 0 ? std::exp2(exponent(random)) : -values[i - 1] * near(random);
    if (random() % 16 == 0) values[i] = -values[i];
  }
  return tensor;
}

TEST(FloatPair, CancellingSumsAreThoseOfF64) {
  int64_t sums = 0, different = 0;
  for (const Shape& shape : Shapes()) {
    const Graph body = SumOf(shape);
    for (uint64_t seed : {1, 2}) {
      const std::vector<Tensor> inputs = {Cancelling(body.inputs()[0].value.type(), seed)};
      const Tensor in_f64 = RunGrid(body, inputs, {})[0], in_pairs = RunGrid(body, inputs, kInPairs)[0];
      for (int64_t i = 0; i < in_f64.num_elements(); ++i) {
        double magnitude = 0;  // of the sum's elements
        const bool of_rows = std::string(shape.dims) == "1";
        for (int64_t e = 0; e < inputs[0].num_elements(); ++e) {
          const int64_t kept = of_rows ? e / shape.columns : e % shape.columns;
          if (in_f64.num_elements() == 1 || kept == i) magnitude += std::abs(inputs[0].At(e));
        }
        // Both are rounded to f32 once, so they differ by the rounding of the result, or not at all.
        const double rounding = std::abs(in_f64.At(i)) * std::exp2(-23);
        EXPECT_LE(std::abs(in_pairs.At(i) - in_f64.At(i)), rounding + magnitude * std::exp2(-42))
            << body.name() << " of " << shape.rows << " x " << shape.columns << ", element " << i;
        ++sums;
        different += in_pairs.At(i) != in_f64.At(i) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(sums, 200);
  EXPECT_LE(different, sums / 50);
}

// In f32, the sum would be 0.
TEST(FloatPair, BitsBelowTheLargestElementAreKept) {
  for (const Shape& shape : Shapes()) {
    if (shape.rows * shape.columns < 3 || std::string(shape.dims) != "0,1") continue;
    const Graph body = SumOf(shape);
    Tensor x(body.inputs()[0].value.type());
    const auto values = x.mutable_data<float>();
    values[0] = 1e8f, values[1000] = 1.25f, values[x.num_elements() - 1] = -1e8f;
    EXPECT_EQ(RunGrid(body, {x}, kInPairs)[0].At(0), 1.25);
  }
}

TEST(FloatPair, InfinitiesAndNanAreKept) {
  const Graph body = SumOf({1, 64, "1", "1"});
  const auto sum_with = [&](const std::vector<float>& some) {
    Tensor x = Tensor::Full(body.inputs()[0].value.type(), 0.5);
    std::copy(some.begin(), some.end(), x.mutable_data<float>().begin());
    return RunGrid(body, {x}, kInPairs)[0].At(0);
  };
  EXPECT_EQ(sum_with({1, 2}), 34);
  EXPECT_EQ(sum_with({1, kInfinity, 2}), kInfinity);
  EXPECT_EQ(sum_with({-kInfinity, 2}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum_with({kInfinity, 1, -kInfinity})));
  EXPECT_TRUE(std::isnan(sum_with({std::nanf("")})));
  EXPECT_EQ(sum_with({3e38f, 3e38f}), kInfinity);
}

// Products and maxima have their own accumulators, also in a loop that sums.
TEST(FloatPair, OtherReductionsAreAsWithoutPairs) {
  const Graph body = ParseGraph(R"(
graph @f(%x: f32[8,300]) -> (p: f32[8], s: f32[8], m: f32[8]) {
  %p = reduce_prod %x {dims=[1]} : f32[8]
  %s = reduce_sum %x {dims=[1]} : f32[8]
  %m = reduce_max %x {dims=[1]} : f32[8]
  return %p, %s, %m
}
)")
                         .value();
  const std::vector<Tensor> inputs = {RandomTensor(body.inputs()[0].value.type(), Values::kNearOne, 1)};
  const std::vector<Tensor> in_f64 = RunGrid(body, inputs, {}), in_pairs = RunGrid(body, inputs, kInPairs);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(in_pairs[0].At(i), in_f64[0].At(i));
    EXPECT_LE(UlpDistance(in_pairs[1], in_f64[1], i), 1);
    EXPECT_EQ(in_pairs[2].At(i), in_f64[2].At(i));
  }
}

// --- Single additions ------------------------------------------------------------------------------------------------

using Exact = __float128;  // sums of the values below are exact in its 113 bits

struct Floats {
  float high, low;

  bool operator==(const Floats&) const = default;
  Exact sum() const { return static_cast<Exact>(high) + low; }
};

// Computes with constants, which the builder of the code does itself.
class FloatPairOfConstants : public testing::Test {
 protected:
  llvm::Value* Make(float x) { return llvm::ConstantFP::get(b_.getFloatTy(), x); }
  FloatPair Make(const Floats& pair) { return {Make(pair.high), Make(pair.low)}; }
  static float FloatOf(llvm::Value* x) { return llvm::cast<llvm::ConstantFP>(x)->getValueAPF().convertToFloat(); }
  static Floats FloatsOf(const FloatPair& pair) { return {FloatOf(pair.high), FloatOf(pair.low)}; }
  Floats Add(const Floats& x, float y) { return FloatsOf(AddToPair(b_, Make(x), Make(y))); }
  Floats Add(const Floats& x, const Floats& y) { return FloatsOf(AddPairs(b_, Make(x), Make(y))); }

  llvm::LLVMContext context_;
  llvm::IRBuilder<> b_{context_};
};

void ExpectSum(const Floats& found, Exact expected) {
  const auto size = [](Exact x) { return static_cast<double>(x < 0 ? -x : x); };
  EXPECT_LE(size(found.sum() - expected), size(expected) * std::exp2(-46)) << static_cast<double>(expected);
  EXPECT_EQ(found.high + found.low, found.high) << "the low part is more than half a unit of the high part";
}

// Half of the sums cancel, down to the low parts.
TEST_F(FloatPairOfConstants, AnAdditionHasTheStatedErrorInBothOrders) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> exponent(-16, 16), part(-1, 1);
  const auto with_high = [&](float high) {
    const float low = part(random) * std::abs(high) * std::exp2(-25.0f);
    return Floats{high, high + low == high ? low : 0};
  };
  for (int i = 0; i < 1000; ++i) {
    const Floats x = with_high(std::exp2(exponent(random)) * (random() % 2 == 0 ? 1 : -1));
    const int64_t units = static_cast<int64_t>(random() % 9) - 4;
    const Floats y =
        with_high(i % 2 == 0 ? std::exp2(exponent(random)) : -x.high * (1 + static_cast<float>(units) * 0x1p-23f));
    ExpectSum(Add(x, y.high), x.sum() + y.high);
    ExpectSum(Add(x, y), x.sum() + y.sum());
    EXPECT_EQ(Add(x, y), Add(y, x));
  }
}

TEST_F(FloatPairOfConstants, ASumThatIsNotFiniteHasNoLowPart) {
  EXPECT_EQ(Add({3e38f, 1e30f}, 3e38f), (Floats{kInfinity, 0}));
  EXPECT_EQ(Add({3e38f, 1e30f}, Floats{3e38f, 1e30f}), (Floats{kInfinity, 0}));
  EXPECT_EQ(Add({kInfinity, 0}, -3e38f), (Floats{kInfinity, 0}));
  EXPECT_EQ(Add({1, 0}, Floats{-kInfinity, 0}), (Floats{-kInfinity, 0}));
  for (const Floats& sum : {Add({kInfinity, 0}, -kInfinity), Add({kInfinity, 0}, Floats{-kInfinity, 0})}) {
    EXPECT_TRUE(std::isnan(sum.high));
    EXPECT_EQ(sum.low, 0);
  }
}

TEST_F(FloatPairOfConstants, APairIsKeptInAnInteger) {
  const Floats pair{-1.5f, 0x1p-26f};
  EXPECT_EQ(FloatsOf(UnpackPair(b_, PackPair(b_, Make(pair)))), pair);
  EXPECT_EQ(FloatsOf(UnpackPair(b_, b_.getInt64(0))), (Floats{0, 0}));
}

}  // namespace
}  // namespace lockstep::loop_test
