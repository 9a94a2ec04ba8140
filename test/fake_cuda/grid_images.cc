#include "test/fake_cuda/grid_images.h"

#include <cstdio>
#include <string>
#include <vector>

#include "backends/codegen/host_grid.h"
#include "core/check.h"
#include "test/fake_cuda/fake_driver.h"

namespace lockstep::cuda {
namespace {

using loop_test::HostGrid;

// The arguments of a kernel are addresses, and a 32-bit number at the end.
void Enter(loop_test::RunThread run, bool together, size_t num_parameters, void** parameters, const void* launched) {
  const auto& launch = *static_cast<const FakeLaunch*>(launched);
  std::vector<uint64_t> values(num_parameters);
  std::vector<void*> places;
  for (size_t i = 0; i + 1 < num_parameters; ++i) {
    const CUdeviceptr address = *static_cast<const CUdeviceptr*>(parameters[i]);
    values[i] = address == 0 ? 0 : reinterpret_cast<uint64_t>(launch.find(address, 0));
  }
  values.back() = *static_cast<const uint32_t*>(parameters[num_parameters - 1]);
  for (uint64_t& value : values) places.push_back(&value);
  const absl::Status status = RunBlocks({run, together, launch.grid[0], launch.grid[1], launch.block[0]}, places.data(),
                                        loop_test::Order::kMixed);
  LOCKSTEP_CHECK(status.ok()) << status;
}

HostGrid& Host() {
  static auto* const host = new HostGrid(Enter);
  return *host;
}

class FakeImageTarget final : public GridTarget {
 public:
  explicit FakeImageTarget(std::unique_ptr<GridTarget> host) : host_(std::move(host)) {}
  ThreadEmitter& machine() override { return host_->machine(); }
  void Prepare(llvm::Module& module) override { host_->Prepare(module); }
  absl::StatusOr<std::string> Assemble(llvm::Module& module) override {
    struct Kernel {
      std::string name;
      size_t parameters;
    };
    std::vector<Kernel> kernels;
    for (const llvm::Function& function : module) {
      if (!function.isDeclaration()) kernels.push_back({function.getName().str(), function.arg_size()});
    }
    ASSIGN_OR_RETURN(const std::string object, host_->Assemble(module));
    std::string image = "lockstep-fake-kernels\n";
    for (const Kernel& kernel : kernels) {
      ASSIGN_OR_RETURN(void* const entry, Host().EntryOf(kernel.name, object));
      char address[32];
      std::snprintf(address, sizeof(address), "%llx",
                    static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(entry)));
      image += kernel.name + " " + address;
      for (size_t i = 0; i + 1 < kernel.parameters; ++i) image += " 8";
      image += " 4\n";
    }
    return image;
  }

 private:
  const std::unique_ptr<GridTarget> host_;
};

}  // namespace

GridCompiler::MakeTarget FakeGridImages() {
  return []() -> absl::StatusOr<std::unique_ptr<GridTarget>> {
    ASSIGN_OR_RETURN(auto host, HostGrid::CreateTarget());
    return std::make_unique<FakeImageTarget>(std::move(host));
  };
}

}  // namespace lockstep::cuda
