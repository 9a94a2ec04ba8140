#include "test/fake_cuda/load.h"

#include "core/check.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_search.h"

namespace lockstep::cuda {

namespace {

template <typename Fake>
Fake& Open(const char* what, const char* path, const char* symbol) {
  const absl::StatusOr<Library> library = Library::Open(what, path);
  LOCKSTEP_CHECK(library.ok()) << library.status();
  Fake* (*get)() = nullptr;
  const absl::Status found = library->Load(symbol, get);
  LOCKSTEP_CHECK(found.ok()) << "not " << what << ": " << found;
  return *get();
}

}  // namespace

// The path is relative to the folder in which Bazel runs tests.
FakeDriver& TheFakeDriver() {
  return Open<FakeDriver>("the fake CUDA driver", "./test/fake_cuda/libcuda.so.1", kGetFakeDriver);
}
FakeNccl& TheFakeNccl() { return Open<FakeNccl>("the fake NCCL", "./test/fake_cuda/libnccl.so.2", kGetFakeNccl); }

LoadedFakeDriver LoadFakeDriver(const FakeDriver::Options& options) {
  FakeDriver& driver = TheFakeDriver();
  driver.Reset(options);  // first, because the table contains the driver's version
  const absl::StatusOr<DriverApi> api =
      FindDriver({.system = false, .python_folders = {}, .cuda_path = "./test/fake_cuda"});
  LOCKSTEP_CHECK(api.ok()) << api.status();
  LOCKSTEP_CHECK(api->Init(0) == CUDA_SUCCESS);
  return {*api, driver};
}

}  // namespace lockstep::cuda
