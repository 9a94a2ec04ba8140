// Compares compiled loops of one function each, over 1M elements on one thread, with plain loops that call the C
// library for each element (or, for powers of integers, square and multiply). `ratio` is the time of the plain loop
// divided by that of the compiled one, as the median of alternating passes, so that other load on the machine affects
// both.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "backends/codegen/loop_compiler.h"
#include "benchmark/benchmark.h"
#include "core/builder.h"

namespace lockstep {
namespace {

constexpr int64_t kElements = 1 << 20;

// Operands are drawn uniformly from [low, high].
struct Range {
  double low, high;
};

float PowerOfIntegers(int32_t x, int32_t y) {
  uint32_t power = 1, base = static_cast<uint32_t>(x);
  for (auto rest = static_cast<uint32_t>(y); rest != 0; rest /= 2, base *= base) power *= rest % 2 != 0 ? base : 1;
  return static_cast<float>(power);
}

struct Row {
  const char* op;
  DType dtype;
  Range x, y;                  // y is not used by functions of one operand
  float (*one)(float);         // the function of the C library, if it has one operand
  float (*two)(float, float);  // the function of the C library, if it has two operands
};

const std::vector<Row>& Rows() {
  constexpr DType kF32 = DType::kF32;
  static const std::vector<Row> rows = {
      {"exp", kF32, {-20, 20}, {}, std::exp, nullptr},
      {"sin", kF32, {-20, 20}, {}, std::sin, nullptr},
      {"asin", kF32, {-1, 1}, {}, std::asin, nullptr},
      {"acos", kF32, {-1, 1}, {}, std::acos, nullptr},
      {"atan", kF32, {-5, 5}, {}, std::atan, nullptr},
      {"sinh", kF32, {-5, 5}, {}, std::sinh, nullptr},
      {"cosh", kF32, {-5, 5}, {}, std::cosh, nullptr},
      {"asinh", kF32, {-5, 5}, {}, std::asinh, nullptr},
      {"acosh", kF32, {1, 10}, {}, std::acosh, nullptr},
      {"atanh", kF32, {-1, 1}, {}, std::atanh, nullptr},
      {"pow", kF32, {0, 10}, {-5, 5}, nullptr, std::pow},
      {"fmod", kF32, {-10, 10}, {1, 3}, nullptr, std::fmod},
      {"fmod", kF32, {-1e20, 1e20}, {1, 3}, nullptr, std::fmod},
      {"pow", DType::kI32, {-10, 10}, {0, 9}, nullptr, nullptr},
      {"pow", DType::kI8, {-10, 10}, {0, 9}, nullptr, nullptr},
  };
  return rows;
}

Tensor Drawn(DType dtype, const Range& range, std::mt19937& random) {
  std::uniform_real_distribution<double> uniform(range.low, range.high);
  Tensor drawn(TensorType{DType::kF64, {kElements}});
  for (double& element : drawn.mutable_data<double>()) element = uniform(random);
  return drawn.Converted(dtype);
}

void RunPlain(const Row& row, const std::vector<Tensor>& tensors, std::vector<float>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (row.one) results[i] = row.one(tensors[0].data<float>()[i]);
    else if (row.two) results[i] = row.two(tensors[0].data<float>()[i], tensors[1].data<float>()[i]);
    else if (row.dtype == DType::kI32)
      results[i] = PowerOfIntegers(tensors[0].data<int32_t>()[i], tensors[1].data<int32_t>()[i]);
    else results[i] = PowerOfIntegers(tensors[0].data<int8_t>()[i], tensors[1].data<int8_t>()[i]);
  }
}

void Function(benchmark::State& state, const Row& row) {
  const TensorType type{row.dtype, {kElements}};
  const size_t operands = row.one ? 1 : 2;
  Graph body("f");
  Builder b(body);
  std::vector<Value> values;
  std::vector<Tensor> tensors;
  std::mt19937 random(1);
  for (size_t i = 0; i < operands; ++i) {
    tensors.push_back(Drawn(row.dtype, i == 0 ? row.x : row.y, random));
    values.push_back(body.AddInput(i == 0 ? "x" : "y", type).value());
  }
  if (!body.AddResult("z", b.Op(row.op, values)).ok()) return state.SkipWithError("no such op");
  tensors.emplace_back(type);
  std::vector<void*> buffers;
  for (Tensor& tensor : tensors) buffers.push_back(tensor.mutable_bytes());
  auto compiler = LoopCompiler::Create().value();
  const CompiledLoop loop = compiler->Compile(body).value();
  std::vector<float> results(static_cast<size_t>(kElements));
  const auto seconds = [](const auto& run) {
    const auto before = std::chrono::steady_clock::now();
    run();
    benchmark::ClobberMemory();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  };
  std::vector<double> ratios;
  for (auto _ : state) {
    const double once = seconds([&] {
      if (loop.RunAll(buffers.data(), nullptr) != kLoopOk) state.SkipWithError("failed");
    });
    state.SetIterationTime(once);
    ratios.push_back(seconds([&] { RunPlain(row, tensors, results); }) / once);
  }
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
  state.counters["ratio"] = ratios[ratios.size() / 2];
  state.SetItemsProcessed(state.iterations() * kElements);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  for (const lockstep::Row& row : lockstep::Rows()) {
    const std::string name =
        std::string(row.op) + "/" + std::string(lockstep::DTypeName(row.dtype)) + (row.x.high > 1e10 ? "/large" : "");
    benchmark::RegisterBenchmark(name.c_str(), [&row](benchmark::State& state) { lockstep::Function(state, row); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
