#include "backends/codegen/loop_test_support.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "backends/codegen/host_grid.h"
#include "backends/codegen/loop_compiler.h"
#include "core/check.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep::loop_test {
namespace {

constexpr size_t kGuard = 256;  // bytes before and after a result that must not change
constexpr std::byte kUntouched{0xa5};

LoopCompiler& Compiler() {
  static LoopCompiler* const compiler = LoopCompiler::Create().value().release();
  return *compiler;
}

// Memory for a result, or a copy of an operand that a result overwrites. Aligned as buffers are.
struct Guarded {
  explicit Guarded(size_t size) : size(size), bytes(size + 2 * kGuard + kAlignment, kUntouched) {
    const auto address = reinterpret_cast<uintptr_t>(bytes.data() + kGuard);
    begin = kGuard + (kAlignment - address % kAlignment) % kAlignment;
  }
  std::byte* data() { return bytes.data() + begin; }
  bool intact() const {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if ((i < begin || i >= begin + size) && bytes[i] != kUntouched) return false;
    }
    return true;
  }
  static constexpr size_t kAlignment = 64;
  size_t size, begin;
  std::vector<std::byte> bytes;
};

// Calls a loop with its buffers and its scratch memory.
using CallLoop = std::function<int32_t(void* const* buffers, void* scratch)>;

// Runs the loop. Result r uses the buffer of operand in_place[r], or its own buffer if that is -1.
std::vector<Tensor> RunGuarded(const Graph& body, int64_t scratch_bytes, const std::vector<Tensor>& inputs,
                               const std::vector<int>& in_place, const CallLoop& call) {
  std::vector<Guarded> memory;
  for (const Tensor& input : inputs) {
    memory.emplace_back(input.num_bytes());
    if (input.num_bytes() > 0) std::memcpy(memory.back().data(), input.bytes(), input.num_bytes());
  }
  for (const Result& result : body.results()) memory.emplace_back(result.value.type().num_bytes());
  std::vector<void*> buffers;
  for (size_t i = 0; i < memory.size(); ++i) {
    const int operand = i < inputs.size() ? -1 : in_place[i - inputs.size()];
    buffers.push_back(memory[operand < 0 ? i : static_cast<size_t>(operand)].data());
  }
  Guarded scratch(static_cast<size_t>(scratch_bytes));
  EXPECT_EQ(call(buffers.data(), scratch.data()), kLoopOk);
  for (const Guarded& one : memory) EXPECT_TRUE(one.intact()) << "wrote outside a buffer";
  EXPECT_TRUE(scratch.intact()) << "wrote outside the scratch memory";
  std::vector<Tensor> results;
  for (size_t r = 0; r < body.results().size(); ++r) {
    Tensor& tensor = results.emplace_back(body.results()[r].value.type());
    if (tensor.num_bytes() > 0) std::memcpy(tensor.mutable_bytes(), buffers[inputs.size() + r], tensor.num_bytes());
  }
  return results;
}

using Division = std::function<int32_t(const CompiledLoop&, void* const*, void* scratch)>;

std::vector<Tensor> RunDivided(const Graph& body, const CompiledLoop& loop, const std::vector<Tensor>& inputs,
                               const std::vector<int>& in_place, const Division& division) {
  return RunGuarded(body, loop.info.scratch_bytes, inputs, in_place,
                    [&](void* const* buffers, void* scratch) { return division(loop, buffers, scratch); });
}

int32_t Serially(const CompiledLoop& loop, void* const* buffers, void* scratch) {
  return loop.RunAll(buffers, scratch);
}

int32_t BackwardsOneByOne(const CompiledLoop& loop, void* const* buffers, void* scratch) {
  int32_t error = kLoopOk;
  for (int64_t unit = loop.info.extent; unit-- > 0;)
    error = std::max(error, loop.run(buffers, scratch, unit, unit + 1));
  return std::max(error, loop.finish ? loop.finish(buffers, scratch) : kLoopOk);
}

int32_t OnThreeThreads(const CompiledLoop& loop, void* const* buffers, void* scratch) {
  int32_t errors[3] = {};
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 3; ++i) {
    threads.emplace_back(
        [&, i] { errors[i] = loop.run(buffers, scratch, loop.info.extent * i / 3, loop.info.extent * (i + 1) / 3); });
  }
  for (std::thread& thread : threads) thread.join();
  const int32_t error = std::max({errors[0], errors[1], errors[2]});
  return std::max(error, loop.finish ? loop.finish(buffers, scratch) : kLoopOk);
}

// The bits as an integer that increases with the value; -0.0 is 0.
template <typename Bits>
int64_t Ordered(Bits bits) {
  constexpr Bits kSign = Bits(1) << (sizeof(Bits) * 8 - 1);
  const auto magnitude = static_cast<int64_t>(bits & (kSign - 1));
  return (bits & kSign) ? -magnitude : magnitude;
}

template <typename T, typename Random>
T RandomElement(Values values, int64_t i, Random& random) {
  if constexpr (std::is_same_v<T, bool>) {
    return random() % 2 == 0;
  } else if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    if (values == Values::kNearOne) return static_cast<T>(random() % 3 + 1);
    const T special[] = {T(0), T(1), T(-1), Limits::min(), Limits::max(), T(2), T(-2), T(7)};
    T value = i < 8 ? special[i] : static_cast<T>(random());
    if (i % 3 == 0 && i >= 8) value = static_cast<T>(static_cast<int>(random() % 21) - (std::is_signed_v<T> ? 10 : 0));
    return values == Values::kDivisors && value == T(0) ? T(3) : value;
  } else {
    std::uniform_real_distribution<double> uniform(-1.0, 1.0);
    if (values == Values::kNearOne) return ConvertElement<T>(1.0 + 0.5 * uniform(random));
    const double infinity = std::numeric_limits<double>::infinity();
    const double special[] = {0.0,      -0.0,      infinity,   -infinity,   std::nan(""), 1.0,     -1.0,    0.5,
                              -0.5,     2.0,       1e-40,      -1e-42,      1e-45,        3.4e38,  -3.4e38, 88.7,
                              88.73,    -87.4,     -103.9,     -104.1,      1.2e-38,      1e-7,    -1e-7,   0.34657,
                              -0.34658, 0.7071067, 1.4142136,  9.0,         -9.02,        10.5,    3.9,     4.1,
                              -1e-30,   1e30,      16777216.0, -0.99999994, 6e-8,         65519.0, 65520.0, 5.97e-8,
                              1.5,      2.5,       -2.5,       3e9,         -3e9};
    constexpr int64_t kSpecial = std::size(special);
    if (i < kSpecial) return ConvertElement<T>(special[i]);
    // Most values have moderate size, some have any size.
    if (i % 4 == 0) return ConvertElement<T>(uniform(random) * std::exp2(uniform(random) * 120));
    return ConvertElement<T>(uniform(random) * (i % 4 == 1 ? 1.0 : i % 4 == 2 ? 12.0 : 100.0));
  }
}

}  // namespace

Tensor RandomTensor(const TensorType& type, Values values, uint64_t seed) {
  Tensor tensor(type);
  std::mt19937_64 random(seed);
  DispatchDType(type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t i = static_cast<int64_t>(seed) * 5;  // so that special values of different operands meet
    const auto period = std::max<int64_t>(type.num_elements(), 1);
    for (T& element : tensor.mutable_data<T>()) element = RandomElement<T>(values, i++ % period, random);
  });
  return tensor;
}

int64_t UlpDistance(const Tensor& a, const Tensor& b, int64_t at) {
  return DispatchDType(a.dtype(), [&](auto tag) -> int64_t {
    using T = typename decltype(tag)::type;
    const T x = a.data<T>()[static_cast<size_t>(at)], y = b.data<T>()[static_cast<size_t>(at)];
    if constexpr (std::is_integral_v<T>) {
      return x == y ? 0 : 1;
    } else {
      if (x != x || y != y) return x != x && y != y ? 0 : std::numeric_limits<int64_t>::max();
      using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
      const int64_t i = Ordered(std::bit_cast<Bits>(x)), j = Ordered(std::bit_cast<Bits>(y));
      // The distance between the ends of f64 exceeds the range of int64_t.
      if ((i < 0) != (j < 0) && std::max(std::abs(i), std::abs(j)) > (int64_t{1} << 61))
        return std::numeric_limits<int64_t>::max();
      return std::abs(i - j);
    }
  });
}

std::vector<Tensor> RunLoop(const Graph& body, const std::vector<Tensor>& inputs) {
  const absl::StatusOr<CompiledLoop> loop = Compiler().Compile(body);
  EXPECT_TRUE(loop.ok()) << loop.status();
  return RunDivided(body, *loop, inputs, std::vector<int>(body.results().size(), -1), Serially);
}

namespace {

// Reports results that differ too much. Returns the largest distance.
int64_t ExpectClose(const std::vector<Tensor>& inputs, const std::vector<Tensor>& found,
                    const std::vector<Tensor>& expected, int64_t ulps) {
  int64_t largest = 0;
  for (size_t r = 0; r < found.size(); ++r) {
    int64_t worst = 0, at = 0;
    for (int64_t i = 0; i < found[r].num_elements(); ++i) {
      const int64_t distance = UlpDistance(found[r], expected[r], i);
      if (distance > worst) worst = distance, at = i;
    }
    largest = std::max(largest, worst);
    if (worst <= ulps) continue;
    std::string operands;
    for (const Tensor& input : inputs) {
      if (input.num_elements() == found[r].num_elements()) operands += " " + DoubleToString(input.At(at));
    }
    ADD_FAILURE() << "result " << r << " at " << at << ": " << DoubleToString(found[r].At(at)) << ", expected "
                  << DoubleToString(expected[r].At(at)) << ", " << worst << " ulp; operands" << operands;
  }
  return largest;
}

}  // namespace

std::vector<Tensor> RunGrid(const Graph& body, const std::vector<Tensor>& inputs, const GridSizes& sizes) {
  static auto* const host = new HostGrid();
  const Graph* const bodies[] = {&body};
  const absl::StatusOr<std::vector<CompiledGrid>> compiled =
      GridCompiler(&HostGrid::CreateTarget, sizes).Compile(bodies);
  LOCKSTEP_CHECK(compiled.ok()) << compiled.status();
  const CompiledGrid& grid = compiled->front();
  const auto run = [&](const std::vector<int>& in_place, Order order) {
    const size_t count = body.inputs().size() + body.results().size();
    return RunGuarded(body, grid.scratch_bytes, inputs, in_place, [&](void* const* buffers, void* scratch) {
      const absl::StatusOr<int32_t> error = host->Run(grid, {buffers, buffers + count}, scratch, order);
      EXPECT_TRUE(error.ok()) << error.status();
      return error.value_or(-1);
    });
  };
  const std::vector<int> apart(body.results().size(), -1);
  std::vector<Tensor> found = run(apart, Order::kForwards);
  EXPECT_TRUE(run(apart, Order::kBackwards) == found) << "backwards";
  for (size_t r = 0; r < found.size(); ++r) {
    for (int operand : grid.in_place[r]) {
      std::vector<int> in_place = apart;
      in_place[r] = operand;
      EXPECT_TRUE(run(in_place, Order::kMixed) == found) << "in the place of operand " << operand;
    }
  }
  return found;
}

namespace {

// Runs the same loop as a kernel of a GPU, with sums in f64 and in pairs of f32. The results must be close to the
// interpreter's.
void CheckGrid(const Graph& body, const std::vector<Tensor>& inputs, const std::vector<Tensor>& expected,
               int64_t ulps) {
  SCOPED_TRACE("as a kernel of a GPU");
  if (const absl::Status status = AnalyzeGrid(body).status(); !status.ok()) {
    EXPECT_NE(status.message().find("function of the C library"), std::string::npos) << status;
    return;
  }
  for (const GridSizes& sizes : {GridSizes{}, GridSizes{.sums_in_pairs = true}}) {
    const GridPlan plan = AnalyzeGrid(body, sizes).value();
    const auto in_pairs = [&](const Reduction& reduction) { return plan.IsInPairs(reduction); };
    if (sizes.sums_in_pairs && std::none_of(plan.reductions.begin(), plan.reductions.end(), in_pairs)) continue;
    SCOPED_TRACE(sizes.sums_in_pairs ? "sums in pairs" : "sums in f64");
    ExpectClose(inputs, RunGrid(body, inputs, sizes), expected, ulps);
  }
}

}  // namespace

int64_t CheckLoop(const LoopCase& loop_case) {
  SCOPED_TRACE(loop_case.body);
  absl::StatusOr<Graph> body = ParseGraph(loop_case.body);
  if (!body.ok()) {
    ADD_FAILURE() << body.status();
    return -1;
  }
  std::vector<Tensor> inputs;
  for (const Input& input : body->inputs())
    inputs.push_back(RandomTensor(input.value.type(), loop_case.values, inputs.size()));
  const absl::StatusOr<CompiledLoop> loop = Compiler().Compile(*body);
  const absl::StatusOr<std::vector<Tensor>> expected = InterpretOneRank(*body, inputs);
  if (!loop.ok() || !expected.ok()) {
    ADD_FAILURE() << loop.status() << " " << expected.status();
    return -1;
  }
  const std::vector<int> apart(body->results().size(), -1);
  const std::vector<Tensor> found = RunDivided(*body, *loop, inputs, apart, Serially);
  const int64_t largest = ExpectClose(inputs, found, *expected, loop_case.ulps);
  const auto expect_same_bits = [&](const std::vector<int>& in_place, const Division& division, const char* how) {
    EXPECT_TRUE(RunDivided(*body, *loop, inputs, in_place, division) == found) << how;
  };
  expect_same_bits(apart, BackwardsOneByOne, "unit by unit");
  expect_same_bits(apart, OnThreeThreads, "on three threads");
  for (size_t r = 0; r < found.size(); ++r) {
    for (int operand : loop->info.in_place[r]) {
      std::vector<int> in_place = apart;
      in_place[r] = operand;
      expect_same_bits(in_place, BackwardsOneByOne, "in the place of an operand");
    }
  }
  CheckGrid(*body, inputs, *expected, loop_case.ulps);
  return largest;
}

}  // namespace lockstep::loop_test
