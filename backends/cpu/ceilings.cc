#include "backends/cpu/ceilings.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "backends/cpu/onednn.h"
#include "backends/cpu/processor.h"
#include "backends/cpu/scoped_threads.h"

namespace lockstep::cpu {
namespace {

constexpr int kRuns = 5;

double BestSeconds(const std::function<void()>& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

double BytesPerSecond(int threads) {
  constexpr size_t kBytes = size_t{64} << 20;  // of each thread
  const size_t bytes = kBytes * static_cast<size_t>(threads);
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes);
  const double seconds = BestSeconds([&] {
#pragma omp parallel num_threads(threads)
    {
      const size_t begin = kBytes * static_cast<size_t>(omp_get_thread_num());
      std::memcpy(to.data() + begin, from.data() + begin, kBytes);
    }
  });
  return 2 * static_cast<double>(bytes) / seconds;
}

absl::StatusOr<double> OperationsPerSecond(DType dtype) {
  constexpr int64_t kExtent = 1024;
  return CallOneDnn("matmul", [&] {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const dnnl::memory::desc desc = RowMajor({dtype, Shape({kExtent, kExtent})});
    dnnl::memory a(desc, engine), b(desc, engine), y(desc, engine);
    for (const dnnl::memory* const operand : {&a, &b}) std::memset(operand->get_data_handle(), 0, desc.get_size());
    const dnnl::matmul matmul(dnnl::matmul::primitive_desc(engine, desc, desc, desc));
    const double seconds = BestSeconds([&] {
      matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, y}});
      stream.wait();
    });
    return 2.0 * kExtent * kExtent * kExtent / seconds;
  });
}

}  // namespace

absl::StatusOr<Ceilings> MeasureCeilings(int threads) {
  const ScopedThreads scoped(threads);
  ASSIGN_OR_RETURN(const double f32, OperationsPerSecond(DType::kF32));
  double bf16 = f32;
  if (HasFastProducts(DType::kBF16)) {
    ASSIGN_OR_RETURN(bf16, OperationsPerSecond(DType::kBF16));
  }
  return Ceilings{
      .machine = std::to_string(threads) + (threads == 1 ? " thread" : " threads") + " of this processor, measured",
      .bytes_per_second = BytesPerSecond(threads),
      .operations_per_second = {f32, f32 / 2, f32, std::max(f32, bf16)}};
}

}  // namespace lockstep::cpu
