#include "backends/cpu/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "backends/cpu/onednn.h"
#include "backends/cpu/processor.h"
#include "backends/cpu/scoped_threads.h"

namespace lockstep::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastRuns = 5;
constexpr std::chrono::milliseconds kPreparation(50), kMeasurement(100);

// Runs count from one time to another, which are the same for all threads.
struct Window {
  Clock::time_point begin = Clock::now() + kPreparation;
  Clock::time_point end = begin + kMeasurement;
};

// The runs are short, so that some are not interrupted by other programs of a busy host.
double BestSeconds(const Window& window, const std::function<void()>& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int counted = 0; counted < kLeastRuns || Clock::now() < window.end;) {
    const Clock::time_point begin = Clock::now();
    work();
    if (begin < window.begin) continue;
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    ++counted;
  }
  return best;
}

// Returns the sum of the rates of threads that run at one time. Each works by itself: a thread that is interrupted
// delays no other.
absl::StatusOr<double> SumOfThreads(int threads, const std::function<absl::StatusOr<double>(const Window&)>& rate) {
  std::vector<absl::StatusOr<double>> rates(static_cast<size_t>(threads), 0.0);
  std::vector<std::thread> running;
  const Window window;
  for (absl::StatusOr<double>& of_thread : rates) {
    running.emplace_back([&] {
      const ScopedThreads one(1);
      of_thread = rate(window);
    });
  }
  for (std::thread& thread : running) thread.join();
  double sum = 0;
  for (const absl::StatusOr<double>& of_thread : rates) {
    RETURN_IF_ERROR(of_thread.status());
    sum += *of_thread;
  }
  return sum;
}

double BytesPerSecond(const Window& window) {
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes);
  return 2 * kBytes / BestSeconds(window, [&] { std::memcpy(to.data(), from.data(), kBytes); });
}

absl::StatusOr<double> OperationsPerSecond(DType dtype, const Window& window) {
  constexpr int64_t kExtent = 512;
  return CallOneDnn("matmul", [&] {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const dnnl::memory::desc desc = RowMajor({dtype, Shape({kExtent, kExtent})});
    dnnl::memory a(desc, engine), b(desc, engine), y(desc, engine);
    for (const dnnl::memory* const operand : {&a, &b}) std::memset(operand->get_data_handle(), 0, desc.get_size());
    const dnnl::matmul matmul(dnnl::matmul::primitive_desc(engine, desc, desc, desc));
    const double seconds = BestSeconds(window, [&] {
      matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, y}});
      stream.wait();
    });
    return 2.0 * kExtent * kExtent * kExtent / seconds;
  });
}

absl::StatusOr<double> OperationsPerSecond(DType dtype, int threads) {
  return SumOfThreads(threads, [&](const Window& window) { return OperationsPerSecond(dtype, window); });
}

}  // namespace

absl::StatusOr<Ceilings> MeasureCeilings(int threads) {
  ASSIGN_OR_RETURN(const double f32, OperationsPerSecond(DType::kF32, threads));
  double bf16 = f32;
  if (HasFastProducts(DType::kBF16)) {
    ASSIGN_OR_RETURN(bf16, OperationsPerSecond(DType::kBF16, threads));
  }
  ASSIGN_OR_RETURN(const double bytes, SumOfThreads(threads, BytesPerSecond));
  return Ceilings{
      .machine = std::to_string(threads) + (threads == 1 ? " thread" : " threads") + " of this processor, measured",
      .bytes_per_second = bytes,
      .operations_per_second = {f32, f32 / 2, f32, std::max(f32, bf16)}};
}

}  // namespace lockstep::cpu
