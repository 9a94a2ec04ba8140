#include "backends/cuda/cudnn.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "test/fake_cuda/cudnn_convolution.h"
#include "test/fake_cuda/cudnn_descriptors.h"
#include "test/fake_cuda/driver_of_folder.h"
#include "test/fake_cuda/elements.h"
#include "test/fake_cuda/fake_cudnn.h"

#define LOCKSTEP_FAKE extern "C" __attribute__((visibility("default")))

namespace lockstep::cuda {

struct cudnnContext {
  CUstream stream = nullptr;
};

namespace {

thread_local std::string last_error;

// The state of the library. Every call holds its mutex.
class CudnnLibrary final : public FakeCudnn {
 public:
  CudnnLibrary() { ResetEngines(); }

  std::vector<std::string> TakeCalls() override {
    const std::lock_guard lock(mutex);
    return std::exchange(calls, {});
  }
  std::vector<std::string> TakeMisuse() override {
    const std::lock_guard lock(mutex);
    return std::exchange(misuse, {});
  }
  void SetEngines(cudnnBackendHeurMode_t mode, std::vector<FakeEngine> of_mode) override {
    const std::lock_guard lock(mutex);
    engines[mode] = std::move(of_mode);
  }
  void SetEnginesOf(int gpu, cudnnBackendHeurMode_t mode, std::vector<FakeEngine> of_mode) override {
    const std::lock_guard lock(mutex);
    engines_of[{gpu, mode}] = std::move(of_mode);
  }
  void ResetEngines() override {
    const std::lock_guard lock(mutex);
    engines_of.clear();
    engines.clear();
    engines[CUDNN_HEUR_MODE_A] = {{40, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}},
                                  {41, {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4}},
                                  {42, {CUDNN_NUMERICAL_NOTE_FFT}},
                                  {43, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}},
                                  {44, {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}},
                                  {45, {}, 4096, false},
                                  {46, {}, int64_t{1} << 40},
                                  {7, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}},
                                  {3, {}}};
    engines[CUDNN_HEUR_MODE_B] = engines[CUDNN_HEUR_MODE_FALLBACK] = {{0, {}}};
  }
  int64_t live() const override {
    const std::lock_guard lock(mutex);
    return static_cast<int64_t>(descriptors.size() + handles.size());
  }
  int64_t handles_made() const override {
    const std::lock_guard lock(mutex);
    return made_handles;
  }
  int64_t plans_made() const override {
    const std::lock_guard lock(mutex);
    return made_plans;
  }

  cudnnStatus_t Refuse(const std::string& why, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM) {
    last_error = why;
    if (status == CUDNN_STATUS_BAD_PARAM) {
      misuse.push_back(why);
      std::fprintf(stderr, "fake cuDNN: %s\n", why.c_str());
    }
    return status;
  }
  // The engines for the calling thread's GPU.
  const std::vector<FakeEngine>& EnginesOf(cudnnBackendHeurMode_t mode) {
    const auto found = engines_of.find({TheDriver().fake->CurrentGpu(), mode});
    return found == engines_of.end() ? engines[mode] : found->second;
  }
  std::shared_ptr<FakeDescriptor> Find(const void* descriptor) const {
    const auto found = descriptors.find(descriptor);
    return found == descriptors.end() ? nullptr : found->second;
  }

  mutable std::mutex mutex;
  std::map<const void*, std::shared_ptr<FakeDescriptor>> descriptors;
  std::set<cudnnHandle_t> handles;
  std::map<cudnnBackendHeurMode_t, std::vector<FakeEngine>> engines;
  std::map<std::pair<int, cudnnBackendHeurMode_t>, std::vector<FakeEngine>> engines_of;  // by GPU
  std::vector<std::string> calls, misuse;
  int64_t made_handles = 0, made_plans = 0;
};

CudnnLibrary& TheLibrary() {
  static auto* const library = new CudnnLibrary;
  return *library;
}

// The value of an attribute: bytes, or descriptors that the caller has created.
struct Answer {
  std::vector<std::byte> bytes;
  std::vector<FakeDescriptor> descriptors;
};

template <typename T>
Answer AnswerOf(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {.bytes = {bytes.begin(), bytes.end()}, .descriptors = {}};
}

FakeDescriptor MadeHere(cudnnBackendDescriptorType_t type, const FakeDescriptor& from, const FakeEngine& engine) {
  FakeDescriptor made = {.type = type, .is_final = true, .attributes = from.attributes, .engine = engine};
  return made;
}

// Puts the attribute into `answer`. Returns an error text if the descriptor has no such attribute to give.
std::string Ask(const FakeDescriptor& of, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                Answer& answer) {
  const auto is = [&](cudnnBackendDescriptorType_t kind, cudnnBackendAttributeName_t attribute,
                      cudnnBackendAttributeType_t of_type) {
    return of.type == kind && name == attribute && type == of_type;
  };
  if (is(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
    const auto mode = of.One<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
    for (const FakeEngine& engine : TheLibrary().EnginesOf(mode)) {
      answer.descriptors.push_back(MadeHere(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, of, engine));
    }
  } else if (is(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
    answer.descriptors = {MadeHere(CUDNN_BACKEND_ENGINE_DESCRIPTOR, of, of.engine)};
  } else if (is(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64)) {
    answer = AnswerOf<int64_t>({of.engine.index});
  } else if (is(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE)) {
    answer = AnswerOf(of.engine.notes);
  } else if (is(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64)) {
    answer = AnswerOf<int64_t>({of.engine.workspace});
  } else {
    return "attribute " + std::to_string(name) + " of type " + std::to_string(type) + " cannot be read";
  }
  return "";
}

// The operation of a plan.
const FakeDescriptor& OperationOf(const FakeDescriptor& plan) {
  return plan.Of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
      .Of(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)
      .Of(CUDNN_ATTR_OPERATIONGRAPH_OPS);
}

// Finds the tensors of the operation in the variant pack. Returns what is wrong with them, or "".
std::string Place(const FakeDescriptor& pack, FakeConvolution& convolution) {
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto workspace = pack.One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (ids.size() != 3) return "the pack does not have the plan's tensors";
  for (FakeTensor* tensor : {&convolution.x, &convolution.filter, &convolution.y}) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != tensor->id) continue;
      if (reinterpret_cast<uintptr_t>(pointers[i]) % static_cast<uintptr_t>(tensor->alignment) != 0) {
        return "a tensor is not aligned as its descriptor says";
      }
      tensor->data = TheDriver().Find(pointers[i], tensor->span());
      if (tensor->data == nullptr) return "tensor " + std::to_string(ids[i]) + " is not in the GPU's memory";
    }
    if (tensor->data == nullptr) return "tensor " + std::to_string(tensor->id) + " is not in the pack";
  }
  const auto bytes = static_cast<size_t>(convolution.engine.workspace);
  if (bytes > 0 && TheDriver().Find(workspace, bytes) == nullptr) {
    return "the workspace is not " + std::to_string(bytes) + " bytes of the GPU's memory";
  }
  return "";
}

}  // namespace

LOCKSTEP_FAKE FakeCudnn* lockstep_fake_cudnn() { return &TheLibrary(); }

LOCKSTEP_FAKE size_t cudnnGetVersion() { return 91900; }
LOCKSTEP_FAKE size_t cudnnGetCudartVersion() { return 13000; }
LOCKSTEP_FAKE const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "CUDNN_STATUS";
  }
}
LOCKSTEP_FAKE void cudnnGetLastErrorString(char* text, size_t bytes) {
  std::snprintf(text, bytes, "%s", last_error.c_str());
  last_error.clear();
}

LOCKSTEP_FAKE cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  CudnnLibrary& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  if (TheDriver().fake == nullptr) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = *library.handles.insert(new cudnnContext).first;
  ++library.made_handles;
  return CUDNN_STATUS_SUCCESS;
}
LOCKSTEP_FAKE cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  CudnnLibrary& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  if (library.handles.erase(handle) == 0) return library.Refuse("no handle, or one that was destroyed");
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
LOCKSTEP_FAKE cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, CUstream stream) {
  CudnnLibrary& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  if (library.handles.count(handle) == 0) return library.Refuse("no handle, or one that was destroyed");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

LOCKSTEP_FAKE cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                         cudnnBackendDescriptor_t* descriptor) {
  CudnnLibrary& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  auto made = std::make_shared<FakeDescriptor>(FakeDescriptor{.type = type});
  *descriptor = made.get();
  library.descriptors.emplace(made.get(), std::move(made));
  return CUDNN_STATUS_SUCCESS;
}
LOCKSTEP_FAKE cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  CudnnLibrary& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  return library.descriptors.erase(descriptor) == 0 ? library.Refuse("no descriptor, or one that was destroyed")
                                                    : CUDNN_STATUS_SUCCESS;
}

LOCKSTEP_FAKE cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                     cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                                     int64_t count, const void* elements) {
  CudnnLibrary& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  const std::shared_ptr<FakeDescriptor> of = library.Find(descriptor);
  if (of == nullptr) return library.Refuse("no descriptor, or one that was destroyed");
  std::vector<std::shared_ptr<FakeDescriptor>> descriptors;
  for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; ++i) {
    descriptors.push_back(library.Find(static_cast<const cudnnBackendDescriptor_t*>(elements)[i]));
  }
  const std::string wrong = CheckAttribute(*of, name, type, count, descriptors);
  if (!wrong.empty()) return library.Refuse(wrong);
  const auto* bytes = static_cast<const std::byte*>(elements);
  if (type == CUDNN_TYPE_HANDLE && library.handles.count(*static_cast<const cudnnHandle_t*>(elements)) == 0) {
    return library.Refuse("no handle, or one that was destroyed");
  }
  of->attributes[name] = {{bytes, bytes + static_cast<size_t>(count) * BytesOf(type)},
                          {descriptors.begin(), descriptors.end()}};
  return CUDNN_STATUS_SUCCESS;
}

LOCKSTEP_FAKE cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  CudnnLibrary& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  const std::shared_ptr<FakeDescriptor> of = library.Find(descriptor);
  if (of == nullptr) return library.Refuse("no descriptor, or one that was destroyed");
  const std::string wrong = CheckFinal(*of);
  if (!wrong.empty()) return library.Refuse(wrong);
  if (of->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    of->engine = of->Of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine;
    const auto& notes = of->engine.notes;
    const bool has_tensor_cores =
        std::find(notes.begin(), notes.end(), CUDNN_NUMERICAL_NOTE_TENSOR_CORE) != notes.end();
    if (!of->engine.takes || (has_tensor_cores && !FakeConvolution(OperationOf(*of)).FitsTensorCores()))
      return library.Refuse("the engine does not take it", CUDNN_STATUS_NOT_SUPPORTED);
    ++library.made_plans;
  }
  of->is_final = true;
  return CUDNN_STATUS_SUCCESS;
}

LOCKSTEP_FAKE cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                                     cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                                     int64_t requested, int64_t* count, void* elements) {
  CudnnLibrary& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  const std::shared_ptr<FakeDescriptor> of = library.Find(descriptor);
  if (of == nullptr) return library.Refuse("no descriptor, or one that was destroyed");
  if (!of->is_final) return library.Refuse("an attribute of an unfinalized descriptor is read");
  Answer answer;
  const std::string wrong = Ask(*of, name, type, answer);
  if (!wrong.empty()) return library.Refuse(wrong);
  const bool of_descriptors = type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
  const auto there =
      static_cast<int64_t>(of_descriptors ? answer.descriptors.size() : answer.bytes.size() / BytesOf(type));
  if (elements == nullptr || requested == 0) {
    *count = there;
    return CUDNN_STATUS_SUCCESS;
  }
  *count = std::min(there, requested);
  if (!of_descriptors) {
    const auto bytes = static_cast<std::ptrdiff_t>(*count) * static_cast<std::ptrdiff_t>(BytesOf(type));
    std::copy_n(answer.bytes.begin(), bytes, static_cast<std::byte*>(elements));
  }
  for (int64_t i = 0; of_descriptors && i < *count; ++i) {
    const auto into = library.Find(static_cast<cudnnBackendDescriptor_t*>(elements)[i]);
    FakeDescriptor& made = answer.descriptors[static_cast<size_t>(i)];
    if (into == nullptr || into->is_final || into->type != made.type) {
      return library.Refuse("the attribute's value does not fit the descriptor that receives it");
    }
    *into = std::move(made);
  }
  return CUDNN_STATUS_SUCCESS;
}

LOCKSTEP_FAKE cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                                cudnnBackendDescriptor_t variant_pack) {
  CudnnLibrary& library = TheLibrary();
  std::unique_lock lock(library.mutex);
  if (library.handles.count(handle) == 0) return library.Refuse("no handle, or one that was destroyed");
  if (handle->stream == nullptr) return library.Refuse("an operation in the legacy stream");
  const auto of_plan = library.Find(plan), pack = library.Find(variant_pack);
  if (of_plan == nullptr || of_plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !of_plan->is_final) {
    return library.Refuse("no plan, or one that is not final");
  }
  if (pack == nullptr || pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !pack->is_final) {
    return library.Refuse("no variant pack, or one that is not final");
  }
  FakeConvolution convolution(OperationOf(*of_plan));
  convolution.engine = of_plan->engine;
  const std::string wrong = Place(*pack, convolution);
  if (!wrong.empty()) return library.Refuse(wrong);
  library.calls.push_back(convolution.ToString());
  const CUstream stream = handle->stream;
  lock.unlock();
  const bool is_queued = TheDriver().Enqueue(stream, [convolution, stream] {
    TheDriver().fake->Spend(stream, convolution.engine.time);
    convolution.Run();
  });
  return is_queued ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace lockstep::cuda
