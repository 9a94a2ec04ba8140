// The driver's functions of modules and kernels, as declared in cuda.h.

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "test/fake_cuda/call.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kMostShared = 48 << 10;  // bytes of a block's shared memory, without further request

void* FindForKernel(CUdeviceptr address, size_t bytes) {
  Machine& machine = Machine::Get();
  const auto lock = machine.Lock();
  std::byte* found = machine.Find(address, bytes, Machine::gpu_of_kernel);
  if (found == nullptr) {
    Machine::of_kernel = machine.Wrong(CUDA_ERROR_ILLEGAL_ADDRESS,
                                       Text("a kernel touches ", bytes, " bytes at ", machine.Place(address)));
  }
  return found;
}

// Parses the lines of an image of fake kernels.
CUresult Parse(const std::string& image, std::map<std::string, CUfunc_st>& functions) {
  std::istringstream lines(image);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    std::istringstream words(line);
    CUfunc_st function;
    uintptr_t address = 0;
    if (!(words >> function.name >> std::hex >> address >> std::dec) || address == 0) return CUDA_ERROR_INVALID_IMAGE;
    function.kernel = reinterpret_cast<FakeKernel>(address);
    for (size_t bytes = 0; words >> bytes;) function.parameters.push_back(bytes);
    functions[function.name] = function;
  }
  return CUDA_SUCCESS;
}

// Returns the bytes of static shared memory that a kernel of PTX uses: of the variables that its text names. They are
// declared as ".shared .align 16 .b8 name[1024];" before the kernels.
int64_t SharedBytes(const std::string& ptx, const std::string& kernel) {
  const size_t begin = ptx.find(".entry " + kernel + "("), end = ptx.find(".entry ", begin + 1);
  const std::string body = ptx.substr(begin, end - begin);
  int64_t bytes = 0;
  constexpr std::string_view kShared = ".shared .align ", kBytes = " .b8 ";
  for (size_t at = ptx.find(kShared); at != std::string::npos; at = ptx.find(kShared, at + 1)) {
    const size_t name = ptx.find(kBytes, at) + kBytes.size(), bracket = ptx.find('[', name);
    if (body.find(ptx.substr(name, bracket - name)) != std::string::npos) bytes += std::stoll(ptx.substr(bracket + 1));
  }
  return bytes;
}

// Refuses what the compiler of NVIDIA's driver refuses. Returns its message in `log`.
CUresult CheckPtx(const std::string& ptx, int newest, std::string& log) {
  constexpr std::string_view kVersion = ".version ", kEntry = ".entry ";
  const size_t version = ptx.find(kVersion) + kVersion.size();
  if (10 * (ptx[version] - '0') + (ptx[version + 2] - '0') > newest) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  for (size_t at = ptx.find(kEntry); at != std::string::npos; at = ptx.find(kEntry, at + 1)) {
    const size_t name = at + kEntry.size();
    const std::string kernel = ptx.substr(name, ptx.find('(', name) - name);
    const int64_t bytes = SharedBytes(ptx, kernel);
    if (bytes <= kMostShared) continue;
    log = Text("ptxas error   : Entry function '", kernel, "' uses too much shared data (", bytes, " bytes, ",
               kMostShared, " max)");
    return CUDA_ERROR_INVALID_PTX;
  }
  return CUDA_SUCCESS;
}

// Takes the time of a compilation. Other threads may call the driver meanwhile.
void CompileFor(Call& call) {
  call.machine.most_loads = std::max(call.machine.most_loads, ++call.machine.loads);
  const auto time = call.machine.options.compile_time;
  call.lock.unlock();
  if (time.count() > 0) std::this_thread::sleep_for(time);
  call.lock.lock();
  --call.machine.loads;
}

}  // namespace

// --- Kernels ------------------------------------------------------------------------------------------------------

EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                                   void** values) {
  Call call("cuModuleLoadDataEx");
  if (call.InContext().Unsafe("cuModuleLoadDataEx").failed()) return call.result;
  CompileFor(call);
  auto loaded = std::make_unique<CUmod_st>();
  loaded->context = Machine::current;
  loaded->image = static_cast<const char*>(image);
  if (loaded->image.rfind("lockstep-fake-kernels\n", 0) == 0) {
    if (Parse(loaded->image, loaded->functions) != CUDA_SUCCESS) {
      return call.machine.Wrong(CUDA_ERROR_INVALID_IMAGE, "an image of fake kernels cannot be read: " + loaded->image);
    }
  } else if (loaded->image.find(".version") == std::string::npos) {
    return call.machine.Wrong(CUDA_ERROR_INVALID_PTX, "an image is neither PTX nor one of fake kernels");
  } else {
    std::string log;
    const CUresult refused = CheckPtx(loaded->image, call.machine.options.ptx, log);
    // The caller gives the log's buffer, then its size.
    if (count == 2 && options[0] == CU_JIT_ERROR_LOG_BUFFER)
      log.copy(static_cast<char*>(values[0]), reinterpret_cast<size_t>(values[1]) - 1);
    if (refused != CUDA_SUCCESS) return refused;
  }
  *module = loaded.release();
  call.machine.modules.insert(*module);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Call call(Text("cuModuleGetFunction ", name));
  if (call.With(module).failed()) return call.result;
  auto& functions = module->functions;
  const bool of_ptx = module->image.find(Text(".entry ", name)) != std::string::npos;
  if (functions.count(name) == 0 && of_ptx) functions[name].name = name;
  if (functions.count(name) == 0) return CUDA_ERROR_NOT_FOUND;
  *function = &functions[name];
  call.machine.functions.insert(*function);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
  Call call("cuModuleUnload");
  if (call.With(module).failed()) return call.result;
  call.machine.Retire(module);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncLoad(CUfunction function) {
  Call call(Text("cuFuncLoad ", function->name));
  if (call.With(function).Unsafe("cuFuncLoad").failed()) return call.result;
  function->is_loaded = true;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  Call call(Text("cuFuncGetAttribute ", function->name, " ", static_cast<int>(attribute)));
  if (call.With(function).failed()) return call.result;
  function->is_loaded = true;
  *value = 32;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  Call call(Text("cuFuncSetAttribute ", function->name, " ", static_cast<int>(attribute), " ", value));
  return call.With(function).result;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void** parameters, void**) {
  const FakeLaunch launch{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, FindForKernel};
  Call call(Text("cuLaunchKernel ", function->name, " grid ", grid_x, "x", grid_y, "x", grid_z, " block ", block_x, "x",
                 block_y, "x", block_z, " shared ", shared_bytes, " ", Name(stream)));
  if (call.With(function).Queues(stream).failed()) return call.result;
  if (!std::exchange(function->is_loaded, true)) call.machine.lazy_loads.push_back(function->name);
  const bool possible = grid_x > 0 && grid_y > 0 && grid_z > 0 && grid_x <= 2147483647u && grid_y <= 65535 &&
                        grid_z <= 65535 && block_x > 0 && block_y > 0 && block_z > 0 &&
                        uint64_t{block_x} * block_y * block_z <= 1024 && shared_bytes <= kMostShared;
  if (!possible) return call.machine.Wrong(CUDA_ERROR_INVALID_VALUE, call.machine.calls.back() + ": impossible sizes");
  std::vector<std::vector<std::byte>> taken;  // the caller may change its own after this returns
  for (size_t i = 0; i < function->parameters.size(); ++i) {
    const auto* at = static_cast<const std::byte*>(parameters[i]);
    taken.emplace_back(at, at + function->parameters[i]);
  }
  call.machine.Enqueue(stream, "kernel " + function->name,
                       [launch, taken, kernel = function->kernel, gpu = stream->context->gpu]() mutable -> CUresult {
                         if (kernel == nullptr) return CUDA_SUCCESS;
                         std::vector<void*> pointers;
                         for (auto& parameter : taken) pointers.push_back(parameter.data());
                         Machine::of_kernel = CUDA_SUCCESS;
                         Machine::gpu_of_kernel = gpu;
                         kernel(pointers.data(), launch);
                         return Machine::of_kernel;
                       });
  return CUDA_SUCCESS;
}

}  // namespace lockstep::cuda
