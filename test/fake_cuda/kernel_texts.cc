#include "test/fake_cuda/kernel_texts.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <utility>

#include "backends/cuda/kernels/host_kernel.h"
#include "core/check.h"
#include "test/fake_cuda/fake_driver.h"

namespace lockstep::cuda {
namespace {

struct Family {
  std::string_view name;
  std::vector<HostKernel> kernels;
};

const std::vector<Family>& Families() {
  static const auto* const families = new std::vector<Family>{{"attention_bf16", AttentionBf16HostKernels()},
                                                              {"attention_f16", AttentionF16HostKernels()},
                                                              {"attention_f32", AttentionF32HostKernels()},
                                                              {"copy", CopyHostKernels()},
                                                              {"cumulative", CumulativeHostKernels()},
                                                              {"indexing", IndexingHostKernels()},
                                                              {"order", OrderHostKernels()},
                                                              {"overlap", OverlapHostKernels()},
                                                              {"pooling", PoolingHostKernels()},
                                                              {"sum", SumHostKernels()}};
  return *families;
}

// All kernels; the index is a kernel's number.
const std::vector<HostKernel>& Kernels() {
  static const auto* const kernels = [] {
    auto* all = new std::vector<HostKernel>;
    for (const Family& family : Families()) all->insert(all->end(), family.kernels.begin(), family.kernels.end());
    return all;
  }();
  return *kernels;
}

std::atomic<loop_test::Order> order_of_blocks = loop_test::Order::kMixed;

// One launch: replaces the addresses at the start of the argument by those of the host.
void LaunchText(const HostKernel& kernel, void** parameters, const FakeLaunch& launch) {
  std::vector<uint64_t> argument((kernel.bytes + 15) / 16 * 2);
  std::memcpy(argument.data(), parameters[0], kernel.bytes);
  for (int i = 0; i < kernel.pointers; ++i) {
    uint64_t& address = argument[static_cast<size_t>(i)];
    if (address != 0) address = reinterpret_cast<uint64_t>(launch.find(address, 0));
  }
  void* given[] = {argument.data()};
  const absl::Status status = loop_test::RunBlocks({kernel.run, kernel.meets, launch.grid[0], 1, launch.block[0]},
                                                   given, order_of_blocks.load());
  LOCKSTEP_CHECK(status.ok()) << kernel.name << ": " << status;
}

// One function per kernel, because the driver knows a kernel only by an address.
template <size_t kNumber>
void EnterText(void** parameters, const FakeLaunch& launch) {
  LaunchText(Kernels()[kNumber], parameters, launch);
}
constexpr size_t kMost = 256;
template <size_t... kNumbers>
FakeKernel EntryOf(size_t number, std::index_sequence<kNumbers...>) {
  constexpr FakeKernel kEntries[] = {&EnterText<kNumbers>...};
  LOCKSTEP_CHECK(number < kMost) << "more kernels than entries";
  return kEntries[number];
}

std::string TextOf(std::string_view family) {
  std::string image = "lockstep-fake-kernels\n";
  size_t number = 0;
  for (const Family& one : Families()) {
    for (const HostKernel& kernel : one.kernels) {
      const FakeKernel entry = EntryOf(number++, std::make_index_sequence<kMost>());
      char address[32];
      std::snprintf(address, sizeof(address), "%llx",
                    static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(entry)));
      if (one.name == family)
        image += std::string(kernel.name) + " " + address + " " + std::to_string(kernel.bytes) + "\n";
    }
  }
  return image;
}

}  // namespace

std::function<std::string(std::string_view family)> FakeKernelTexts(loop_test::Order order) {
  order_of_blocks = order;
  return TextOf;
}

}  // namespace lockstep::cuda
