// Tests of random numbers: their ranges, their frequencies, and that draws are independent. Seeds are fixed, so that a
// test that passes once always passes.

#include "test/random/draws.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/interpreter.h"
#include "core/printer.h"
#include "core/random.h"
#include "core/verifier.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kMany = 40000;
constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};

TensorType Many(DType dtype) { return {dtype, {kMany / 8, 8}}; }

double MeanOf(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double VarianceOf(const std::vector<double>& x) {
  const double mean = MeanOf(x);
  double sum = 0;
  for (double each : x) sum += (each - mean) * (each - mean);
  return sum / static_cast<double>(x.size() - 1);
}

double CorrelationOf(const std::vector<double>& x, const std::vector<double>& y) {
  const double mean_x = MeanOf(x), mean_y = MeanOf(y);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (x[i] - mean_x) * (y[i] - mean_y);
  return sum / static_cast<double>(x.size()) / std::sqrt(VarianceOf(x) * VarianceOf(y));
}

// The Kolmogorov-Smirnov statistic times the root of n. It is above 1.95 for one in a thousand samples from the
// distribution with the cumulative distribution function `below`.
double KolmogorovSmirnov(std::vector<double> x, const std::function<double(double)>& below) {
  std::sort(x.begin(), x.end());
  const double n = static_cast<double>(x.size());
  double distance = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = below(x[i]);
    distance = std::max({distance, std::abs(expected - static_cast<double>(i) / n),
                         std::abs(expected - static_cast<double>(i + 1) / n)});
  }
  return distance * std::sqrt(n);
}

// The distance between the mean of x and `mean`, in standard deviations of the mean of samples with `variance`.
double Deviations(const std::vector<double>& x, double mean, double variance) {
  return std::abs(MeanOf(x) - mean) / std::sqrt(variance / static_cast<double>(x.size()));
}

TEST(RandomUniform, IsUniformFromLowToHigh) {
  for (DType dtype : kFloats) {
    SCOPED_TRACE(DTypeName(dtype));
    const auto x = Numbers(DrawOne([&](Builder& b) { return RandomUniform(b, Many(dtype), -1.5, 2.5); }, /*seed=*/1));
    ASSERT_EQ(x.size(), static_cast<size_t>(kMany));
    EXPECT_GE(*std::min_element(x.begin(), x.end()), -1.5);
    EXPECT_LT(*std::min_element(x.begin(), x.end()), -1.48);
    EXPECT_LT(*std::max_element(x.begin(), x.end()), 2.5);
    EXPECT_GT(*std::max_element(x.begin(), x.end()), 2.48 - (dtype == DType::kBF16 ? 0.02 : 0));
    EXPECT_LT(Deviations(x, 0.5, 16.0 / 12), 4 + (dtype == DType::kBF16 ? 4 : 0));
    EXPECT_NEAR(VarianceOf(x), 16.0 / 12, 0.03);
    if (SizeOf(dtype) > 2) {
      EXPECT_LT(KolmogorovSmirnov(x, [](double at) { return (at + 1.5) / 4; }), 1.95);
    }
  }
}

TEST(RandomUniform, IsNeverHighItself) {
  for (DType dtype : kFloats) {
    SCOPED_TRACE(DTypeName(dtype));
    const double epsilon = dtype == DType::kF64   ? 0x1p-52
                           : dtype == DType::kF32 ? 0x1p-23
                           : dtype == DType::kF16 ? 0x1p-10
                                                  : 0x1p-7;
    const auto drawn = [&](double low, double high) {
      return Numbers(DrawOne([&](Builder& b) { return RandomUniform(b, {dtype, {500}}, low, high); }));
    };
    for (double x : drawn(1, 1 + epsilon)) EXPECT_EQ(x, 1);  // there is no number between
    for (double x : drawn(-2, -2)) EXPECT_EQ(x, -2);
    for (double x : drawn(-1, 0)) EXPECT_TRUE(x >= -1 && x < 0) << x;
    // Half of the drawn numbers round to the higher one.
    const auto two = drawn(1, 1 + 2 * epsilon);
    EXPECT_EQ(*std::min_element(two.begin(), two.end()), 1);
    EXPECT_EQ(*std::max_element(two.begin(), two.end()), 1 + epsilon);
  }
}

TEST(RandomUniform, CoversWhatADTypeHas) {
  const double most = std::numeric_limits<float>::max();
  const auto x = Numbers(DrawOne([&](Builder& b) { return RandomUniform(b, {DType::kF32, {2000}}, -most, most); }));
  for (double each : x) EXPECT_TRUE(std::isfinite(each) && each < most);
  EXPECT_LT(*std::min_element(x.begin(), x.end()), -0.99 * most);
  EXPECT_GT(*std::max_element(x.begin(), x.end()), 0.99 * most);
}

TEST(RandomNormal, IsNormal) {
  for (DType dtype : kFloats) {
    SCOPED_TRACE(DTypeName(dtype));
    const auto x = Numbers(DrawOne([&](Builder& b) { return RandomNormal(b, Many(dtype), 2, 0.5); }, /*seed=*/3));
    EXPECT_LT(Deviations(x, 2, 0.25), 4);
    EXPECT_NEAR(VarianceOf(x), 0.25, 0.006);
    EXPECT_GT(*std::max_element(x.begin(), x.end()), 2 + 0.5 * 3.5);
    EXPECT_LT(*std::min_element(x.begin(), x.end()), 2 - 0.5 * 3.5);
    for (double each : x) EXPECT_LT(std::abs(each - 2), 0.5 * 6.8);
    if (SizeOf(dtype) > 2) {
      EXPECT_LT(KolmogorovSmirnov(x, [](double at) { return 0.5 * std::erfc(-(at - 2) / 0.5 / std::sqrt(2.0)); }),
                1.95);
    }
  }
}

// The argument of the logarithm, for the smallest and the largest words.
TEST(RandomDraw, IsAbove0AndBelow1) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    SCOPED_TRACE(DTypeName(dtype));
    Graph graph = GraphOfDraws([&](Builder& b) {
      RandomDraw draw(b, {2});
      return std::vector<Value>{draw.Above0(dtype, 0), draw.Unit(dtype, 0)};
    });
    // The words are an input instead of being drawn.
    const Value words = graph.AddInput("words", {DType::kU32, {2}}).value();
    std::vector<Node*> bits;
    for (Node& node : graph.nodes()) {
      if (node.Is("random_bits")) bits.push_back(&node);
    }
    for (Node* node : bits) graph.ReplaceUses(node->result(), words);
    std::vector<Tensor> inputs;
    for (const Input& input : graph.inputs()) inputs.push_back(Tensor(input.value.type()));
    inputs.back() = Tensor::Of<uint32_t>({2}, {0, ~0u});
    const auto results = InterpretOneRank(graph, inputs);
    ASSERT_TRUE(results.ok()) << results.status();
    std::vector<Tensor> found;
    for (size_t i = 0; i < results->size(); ++i) {
      if (!graph.results()[i].is_state) found.push_back((*results)[i]);
    }
    const bool is_double = dtype == DType::kF64;
    EXPECT_EQ(found[0].At(0), is_double ? 0x1p-65 : 0x1p-33);
    EXPECT_EQ(found[0].At(1), 1);
    EXPECT_EQ(found[1].At(0), 0);
    EXPECT_EQ(found[1].At(1), 1 - (is_double ? 0x1p-53 : 0x1p-24));
  }
}

TEST(RandomBernoulli, IsTrueAsOftenAsTheProbabilitySays) {
  for (DType dtype : kFloats) {
    SCOPED_TRACE(DTypeName(dtype));
    for (double p : {0.0, 0.25, 0.75, 1.0}) {
      const auto x = Numbers(DrawOne([&](Builder& b) { return RandomBernoulli(b, b.Splat(p, Many(dtype))); }, 4));
      EXPECT_LE(std::abs(MeanOf(x) - p) * std::sqrt(static_cast<double>(kMany)), 4 * std::sqrt(p * (1 - p)));
    }
  }
}

TEST(RandomMultinomial, DrawsClassesAsTheSoftmaxSays) {
  const double none = -std::numeric_limits<double>::infinity();
  const std::vector<double> logits = {none, 0.5, -1, 2, none, 0, none};
  double total = 0;
  for (double logit : logits) total += std::exp(logit);
  for (DType dtype : kFloats) {
    SCOPED_TRACE(DTypeName(dtype));
    const Tensor classes = DrawOne(
        [&](Builder& b) {
          const Value row = b.Constant(Tensor::Of<double>({1, 7}, logits).Converted(dtype));
          return RandomMultinomial(b, b.Concat({row, row}, 0), kMany / 2);
        },
        /*seed=*/5);
    EXPECT_EQ(classes.type().ToString(), "i64[2,20000]");
    std::vector<double> found(7, 0);
    for (int64_t drawn : classes.data<int64_t>()) {
      ASSERT_TRUE(drawn >= 0 && drawn < 7) << drawn;
      ++found[static_cast<size_t>(drawn)];
    }
    double chi_square = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = kMany * std::exp(logits[i]) / total;
      if (expected == 0) EXPECT_EQ(found[i], 0) << i;
      else chi_square += (found[i] - expected) * (found[i] - expected) / expected;
    }
    EXPECT_LT(chi_square, 16.3);  // 3 degrees of freedom; exceeded by one in a thousand samples
  }
}

TEST(RandomMultinomial, OfOneClassIsThatClass) {
  const Tensor classes = DrawOne([](Builder& b) { return RandomMultinomial(b, b.Splat(3, {DType::kF32, {4, 1}}), 5); });
  EXPECT_EQ(classes, Tensor(TensorType{DType::kI64, {4, 5}}));
}

// Returns x, the dropout of x with this ratio, and the mask.
std::vector<Tensor> Dropout(double ratio, const TensorType& type, DType of_ratio = DType::kF32) {
  return Draws(
      [&](Builder& b) -> std::vector<Value> {
        const Value x = RandomUniform(b, type, 1, 2);
        const Dropped dropped = RandomDropout(b, x, b.Constant(Tensor::Scalar(of_ratio, ratio)));
        return {x, dropped.result, dropped.mask};
      },
      /*seed=*/6);
}

TEST(RandomDropout, DropsAsOftenAsTheRatioSays) {
  for (DType dtype : kFloats) {
    SCOPED_TRACE(DTypeName(dtype));
    const DType of_ratio = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const std::vector<Tensor> found = Dropout(0.25, Many(dtype), of_ratio);
    int64_t kept = 0;
    const double tolerance = SizeOf(dtype) == 2 ? 2e-2 : 1e-6;  // of numbers up to 2.7
    for (int64_t i = 0; i < kMany; ++i) {
      if (found[2].At(i) != 0) EXPECT_NEAR(found[1].At(i), found[0].At(i) / 0.75, tolerance);
      else EXPECT_EQ(found[1].At(i), 0);
      kept += found[2].At(i) != 0;
    }
    EXPECT_LT(std::abs(static_cast<double>(kept) - 0.75 * kMany), 4 * std::sqrt(kMany * 0.75 * 0.25));
  }
}

TEST(RandomDropout, OfNothingAndOfEverything) {
  const TensorType type = {DType::kF32, {300}};
  const std::vector<Tensor> nothing = Dropout(0, type), everything = Dropout(1, type);
  EXPECT_EQ(nothing[1], nothing[0]);
  EXPECT_EQ(nothing[2], Tensor::Full({DType::kBool, {300}}, 1));
  EXPECT_EQ(everything[1], Tensor(type));
  EXPECT_EQ(everything[2], Tensor(TensorType{DType::kBool, {300}}));
  for (double ratio : {-0.1, 1.5, std::nan("")}) {
    const Tensor found = Dropout(ratio, type)[1];
    for (double x : Numbers(found)) EXPECT_TRUE(std::isnan(x)) << ratio;
  }
}

// --- Independence of draws -------------------------------------------------------------------------------------------

Value SomeUniform(Builder& b) { return RandomUniform(b, Many(DType::kF32), 0, 1); }

void ExpectUnrelated(const Tensor& a, const Tensor& b) {
  EXPECT_NE(a, b);
  EXPECT_LT(std::abs(CorrelationOf(Numbers(a), Numbers(b))) * std::sqrt(static_cast<double>(kMany)), 4);
}

TEST(RandomDraw, DrawsSeedsAndStepsAreUnrelated) {
  const Tensor first = DrawOne(SomeUniform);
  EXPECT_EQ(DrawOne(SomeUniform), first);
  ExpectUnrelated(first, DrawOne(SomeUniform, /*seed=*/1));
  ExpectUnrelated(first, DrawOne(SomeUniform, /*seed=*/-1));
  ExpectUnrelated(first, DrawOne(SomeUniform, /*seed=*/0, /*step=*/1));
  ExpectUnrelated(DrawOne(SomeUniform, 1, 0), DrawOne(SomeUniform, 0, 1));
  ExpectUnrelated(first, DrawOne([](Builder& b) { return RandomUniform(b, Many(DType::kF32), 0, 1, /*salt=*/7); }));
  const auto two = Draws([](Builder& b) { return std::vector<Value>{SomeUniform(b), SomeUniform(b)}; });
  EXPECT_EQ(two[0], first);
  ExpectUnrelated(two[0], two[1]);
}

TEST(RandomDraw, WordsAndNeighboursAreUnrelated) {
  const auto words = Draws([](Builder& b) {
    RandomDraw draw(b, {kMany});
    std::vector<Value> values;
    for (int64_t word = 0; word < 4; ++word) values.push_back(draw.Unit(DType::kF32, word));
    return values;
  });
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < i; ++j) ExpectUnrelated(words[i], words[j]);
  }
  std::vector<double> x = Numbers(words[0]), next(x.begin() + 1, x.end());
  x.pop_back();
  EXPECT_LT(std::abs(CorrelationOf(x, next)) * std::sqrt(static_cast<double>(kMany)), 4);
}

// Draws in the bodies of loops have streams too, which must not be used again.
TEST(RandomDraw, IsNoneOfTheDrawsOfABody) {
  absl::StatusOr<Graph> graph = ParseGraph(R"(
graph @loops(%x: i64[3,2]) -> (y: u32[3,2]) {
  %y = scan %x {carried=0, scanned=1, length=3, body=
    graph @each(%x: i64[2]) -> (bits: u32[2]) {
      %bits = random_bits %x, %x, %x {stream=5} : u32[2]
      return %bits
    }} : u32[3,2]
  return %y
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  Builder b(*graph);
  const Value bits = RandomDraw(b, {4}).Word(0);
  ASSERT_TRUE(b.status().ok()) << b.status();
  EXPECT_EQ(bits.node->attr<int64_t>("stream"), 6);
}

// Each number uses words of its own: f64 also for its low bits, a normal number for its radius and its angle.
TEST(RandomDraw, NoWordServesTwice) {
  using Words = std::vector<int64_t>;
  for (DType dtype : kFloats) {
    SCOPED_TRACE(DTypeName(dtype));
    for (const bool is_normal : {false, true}) {
      const Graph graph = GraphOfDraws([&](Builder& b) {
        return std::vector<Value>{is_normal ? RandomNormal(b, {dtype, {2}}, 0, 1)
                                            : RandomUniform(b, {dtype, {2}}, 0, 1)};
      });
      Words words;
      for (const Node& node : graph.nodes()) {
        if (node.Is("random_bits")) words.push_back(node.attr<int64_t>("word"));
      }
      std::sort(words.begin(), words.end());
      const bool is_double = dtype == DType::kF64;
      if (is_normal) EXPECT_EQ(words, is_double ? Words({0, 1, 2, 3}) : Words({0, 1}));
      else EXPECT_EQ(words, is_double ? Words({0, 1}) : Words({0}));
    }
  }
}

// An element's number depends on its position in row-major order.
TEST(RandomDraw, CountsElementsInTheirOrder) {
  const auto drawn = [](const Shape& shape) {
    return DrawOne([&](Builder& b) { return RandomUniform(b, {DType::kF64, shape}, 0, 1); });
  };
  const Tensor flat = drawn({60});
  EXPECT_EQ(drawn({3, 4, 5}).Reshaped({60}), flat);
  EXPECT_EQ(drawn({1, 60, 1}).Reshaped({60}), flat);
  EXPECT_EQ(drawn({}).At(0), flat.At(0));
  EXPECT_EQ(drawn({1, 1}).At(0), flat.At(0));
  EXPECT_EQ(drawn({0, 4}).num_elements(), 0);
  std::vector<double> sorted = Numbers(flat);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
}

// --- The states ------------------------------------------------------------------------------------------------------

TEST(RandomStates, AreThoseOfAllDraws) {
  const Graph graph = GraphOfDraws([](Builder& b) { return std::vector<Value>{SomeUniform(b), SomeUniform(b)}; });
  EXPECT_EQ(graph.inputs().size(), 2u);
  EXPECT_NE(graph.FindResult(kRandomStep, /*is_state=*/true), nullptr);
  EXPECT_EQ(graph.FindResult(kRandomSeed, /*is_state=*/true), nullptr);
}

// Unused random states are removed.
TEST(RandomStates, GoUnlessSomethingUsesThem) {
  const auto remain = [](const std::string& of) {
    absl::StatusOr<Graph> graph = ParseGraph(R"(
graph @f(%x: i64[], state %random/seed: i64[], state %random/step: i64[]) -> (y: i64[], %random/step: i64[]) {
  %one = constant {value=dense<i64[]: 1>} : i64[]
  %next = add %random/step, %one : i64[]
  %y = add %x, )" + of + R"( : i64[]
  return %y, %next
}
)");
    EXPECT_TRUE(graph.ok()) << graph.status();
    const bool are_removed = RemoveUnusedRandomStates(*graph);
    EXPECT_TRUE(Verify(*graph).ok());
    EXPECT_EQ(are_removed, graph->FindResult(kRandomStep, /*is_state=*/true) == nullptr);
    return graph->inputs().size();
  };
  EXPECT_EQ(remain("%x"), 1u);
  EXPECT_EQ(remain("%random/seed"), 3u);
  EXPECT_EQ(remain("%random/step"), 3u);
}

TEST(RandomStates, NeedTheirNames) {
  Graph graph("taken");
  ASSERT_TRUE(graph.AddInput("random/step", {DType::kF32, {2}}, /*is_state=*/true).ok());
  Builder b(graph);
  SomeUniform(b);
  EXPECT_EQ(b.status().message(), "state %random/step is f32[2]; random numbers need a state of that name, i64[]");
}

TEST(RandomStates, GoWithTheLastDraw) {
  Graph graph = GraphOfDraws([](Builder& b) { return std::vector<Value>{SomeUniform(b)}; });
  EXPECT_FALSE(RemoveUnusedRandomStates(graph));
  for (size_t i = graph.results().size(); i-- > 0;) {
    if (!graph.results()[i].is_state) graph.RemoveResult(i);
  }
  std::vector<Node*> nodes;
  for (Node& node : graph.nodes()) nodes.push_back(&node);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (!graph.IsUsed((*node)->result())) graph.Erase(*node);
  }
  EXPECT_TRUE(RemoveUnusedRandomStates(graph));
  EXPECT_TRUE(graph.inputs().empty());
  EXPECT_TRUE(graph.results().empty());
}

}  // namespace
}  // namespace lockstep
