#include "test/fake_cuda/driver_of_folder.h"

#include <dlfcn.h>

#include <deque>
#include <mutex>
#include <string>
#include <utility>

namespace lockstep::cuda {

const DriverOfFolder& TheDriver() {
  static const DriverOfFolder driver = [] {
    Dl_info self = {};
    dladdr(reinterpret_cast<void*>(&TheDriver), &self);
    const std::string path = self.dli_fname, folder = path.substr(0, path.rfind('/') + 1);
    void* library = dlopen((folder + "libcuda.so.1").c_str(), RTLD_NOW | RTLD_NOLOAD);
    DriverOfFolder found;
    if (library == nullptr) return found;
    found.fake = reinterpret_cast<GetFakeDriver>(dlsym(library, kGetFakeDriver))();
    found.launch_host = reinterpret_cast<decltype(found.launch_host)>(dlsym(library, "cuLaunchHostFunc"));
    found.mem_alloc = reinterpret_cast<decltype(found.mem_alloc)>(dlsym(library, "cuMemAlloc_v2"));
    found.mem_free = reinterpret_cast<decltype(found.mem_free)>(dlsym(library, "cuMemFree_v2"));
    return found;
  }();
  return driver;
}

bool DriverOfFolder::Enqueue(CUstream stream, std::function<void()> work) const {
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::deque<std::function<void()>>;
  std::unique_lock lock(*mutex);
  std::function<void()>* const queued = &kept->emplace_back(std::move(work));
  lock.unlock();
  const auto run = [](void* data) { (*static_cast<std::function<void()>*>(data))(); };
  return launch_host(stream, run, queued) == CUDA_SUCCESS;
}

}  // namespace lockstep::cuda
