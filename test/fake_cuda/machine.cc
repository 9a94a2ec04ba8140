#include "test/fake_cuda/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

namespace lockstep::cuda {
namespace {

constexpr size_t kRange = size_t{16} << 30;  // addresses per GPU; none is used twice
constexpr size_t kPage = 4096;
constexpr auto kFreshByte = std::byte{0xcd};  // the content of new memory

std::byte* Map(int rights) {
  void* memory = mmap(nullptr, kRange, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("fake driver: no addresses for a GPU");
    std::abort();
  }
  return static_cast<std::byte*>(memory);
}

size_t RoundUp(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

thread_local CUcontext Machine::current = nullptr;
thread_local bool Machine::in_host_function = false;
thread_local CUresult Machine::of_kernel = CUDA_SUCCESS;
thread_local int Machine::gpu_of_kernel = 0;

Machine& Machine::Get() {
  static Machine* const machine = [] {
    auto* made = new Machine;
    auto lock = made->Lock();
    made->Reset(lock, {});
    return made;
  }();
  return *machine;
}

void Machine::Reset(std::unique_lock<std::mutex>& lock, const FakeDriver::Options& wanted) {
  for (const auto& context : contexts) {
    if (context->retained > 0) Wrong(kNotPermitted, "the fake is reset while a context is retained");
  }
  changed_.wait(lock, [this] { return threads_ == 0; });  // destroyed streams finish their queued work
  retired_.clear();
  for (const Memory& memory : memory_) {
    munmap(memory.addresses, kRange);
    munmap(memory.contents, kRange);
  }
  options = wanted;
  memory_.clear();
  contexts.clear();
  for (int gpu = 0; gpu < options.gpus; ++gpu) {
    Memory& memory = memory_.emplace_back();
    memory.addresses = Map(PROT_NONE);
    memory.contents = Map(PROT_READ | PROT_WRITE);
    contexts.push_back(std::make_unique<CUctx_st>());
    contexts.back()->gpu = gpu;
  }
  calls.clear(), misuse.clear(), leaks.clear(), lazy_loads.clear(), interruptions.clear(), captures.clear();
  made_streams_ = 0;
  contexts_made = 0;
  most_loads = 0;
}

CUresult Machine::Wrong(CUresult result, const std::string& text) {
  std::fprintf(stderr, "fake driver: %s\n", text.c_str());
  misuse.push_back(text);
  return result;
}

// --- Handles ------------------------------------------------------------------------------------------------------

template <typename T>
void Machine::Retire(std::set<T>& all, T handle) {
  all.erase(handle);
  retired_.emplace(handle, std::shared_ptr<void>(handle, [](void* gone) { delete static_cast<T>(gone); }));
}

void Machine::Retire(CUstream stream) { Retire(streams, stream); }
void Machine::Retire(CUevent event) { Retire(events, event); }
void Machine::Retire(CUmodule module) {
  for (auto& [name, function] : module->functions) {
    functions.erase(&function);
    retired_.emplace(&function, nullptr);  // the module owns the memory
  }
  module->image.clear();
  Retire(modules, module);
}
void Machine::Retire(CUgraph graph) {
  graph->graph.nodes.clear();
  Retire(graphs, graph);
}
void Machine::Retire(CUgraphExec executable) {
  executable->graph.nodes.clear();
  Retire(executables, executable);
}

void Machine::CheckNotRetired(const void* handle, const std::string& call, const char* what) const {
  if (retired_.count(handle) == 0) return;
  std::fprintf(stderr, "fake driver: %s of %s that was destroyed\n", call.c_str(), what);
  std::abort();
}

// --- Memory -------------------------------------------------------------------------------------------------------

CUresult Machine::Allocate(int gpu, size_t bytes, CUdeviceptr* memory) {
  if (bytes == 0) return Wrong(CUDA_ERROR_INVALID_VALUE, "cuMemAlloc of 0 bytes");
  Memory& of_gpu = memory_[static_cast<size_t>(gpu)];
  const size_t size = RoundUp(bytes) + kPage;  // a page between any two allocations
  if (bytes > options.bytes - of_gpu.used || size > kRange - of_gpu.end) return CUDA_ERROR_OUT_OF_MEMORY;
  of_gpu.live.emplace(of_gpu.end, bytes);
  std::fill_n(of_gpu.contents + of_gpu.end, bytes, kFreshByte);
  *memory = reinterpret_cast<CUdeviceptr>(of_gpu.addresses + of_gpu.end);
  of_gpu.end += size;
  of_gpu.used += bytes;
  return CUDA_SUCCESS;
}

CUresult Machine::Free(CUdeviceptr address) {
  for (Memory& memory : memory_) {
    const auto begin = reinterpret_cast<CUdeviceptr>(memory.addresses);
    if (address < begin || address >= begin + kRange) continue;
    const auto found = memory.live.find(address - begin);
    if (found == memory.live.end()) break;
    madvise(memory.contents + found->first, RoundUp(found->second), MADV_DONTNEED);
    memory.used -= found->second;
    memory.freed.insert(*found);
    memory.live.erase(found);
    return CUDA_SUCCESS;
  }
  return Wrong(CUDA_ERROR_INVALID_VALUE, "cuMemFree of " + Place(address));
}

std::byte* Machine::Find(CUdeviceptr address, size_t bytes, int gpu) const {
  for (size_t g = 0; g < memory_.size(); ++g) {
    const Memory& memory = memory_[g];
    const auto begin = reinterpret_cast<CUdeviceptr>(memory.addresses);
    if (address < begin || address >= begin + kRange || (gpu >= 0 && static_cast<size_t>(gpu) != g)) continue;
    const size_t offset = address - begin;
    auto piece = memory.live.upper_bound(offset);
    if (piece == memory.live.begin()) return nullptr;
    --piece;
    const bool fits = offset <= piece->first + piece->second && bytes <= piece->first + piece->second - offset;
    return fits ? memory.contents + offset : nullptr;
  }
  return nullptr;
}

std::string Machine::Place(CUdeviceptr address) const {
  std::ostringstream text;
  text << "0x" << std::hex << address << std::dec << ", ";
  for (const Memory& memory : memory_) {
    const auto begin = reinterpret_cast<CUdeviceptr>(memory.addresses);
    if (address < begin || address >= begin + kRange) continue;
    for (const auto& [pieces, word] : {std::pair(&memory.live, ""), std::pair(&memory.freed, "freed ")}) {
      auto piece = pieces->upper_bound(address - begin);
      if (piece == pieces->begin()) continue;
      --piece;
      if (address - begin > piece->first + RoundUp(piece->second)) continue;
      text << "byte " << address - begin - piece->first << " of a piece of " << piece->second << " " << word << "bytes";
      return text.str();
    }
    text << "between the pieces of a GPU";
    return text.str();
  }
  text << "not an address on a GPU";
  return text.str();
}

// --- Streams ------------------------------------------------------------------------------------------------------

CUstream Machine::MakeStream(CUcontext context) {
  auto* stream = new CUstream_st;
  stream->context = context;
  stream->number = ++made_streams_;
  stream->random.seed(options.seed * 1000 + static_cast<uint64_t>(stream->number));
  ++threads_;
  stream->thread = std::thread([this, stream] { RunStream(stream); });
  streams.insert(stream);
  return stream;
}

void Machine::RunStream(CUstream stream) {
  auto lock = Lock();
  for (;;) {
    changed_.wait(lock, [&] {
      if (stream->queue.empty()) return stream->closing;
      return stream->closing || options.pace == FakeDriver::Pace::kRandom || stream->done < stream->wanted;
    });
    if (stream->queue.empty()) break;
    CUstream_st::Item item = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (item.wait != nullptr) {
      Want(*item.wait);
      changed_.wait(lock, [&] { return item.wait->done; });
    }
    const auto rest = std::chrono::microseconds(stream->random() % 4 == 0 ? stream->random() % 300 : 0);
    if (stream->context->broken == CUDA_SUCCESS && (item.work != nullptr || rest.count() > 0)) {
      lock.unlock();
      if (rest.count() > 0) std::this_thread::sleep_for(rest);
      const CUresult result = item.work != nullptr ? item.work() : CUDA_SUCCESS;
      item.work = nullptr;
      lock.lock();
      if (result != CUDA_SUCCESS) Break(stream->context, result, item.what);
    }
    if (item.record != nullptr) {
      item.record->done = true;
      item.record->when = std::chrono::steady_clock::now() + stream->spent;
    }
    ++stream->done;
    changed_.notify_all();
  }
  stream->thread.detach();
  --threads_;
  changed_.notify_all();
}

void Machine::Release(CUcontext context) {
  const auto sweep = [&](auto& all, const char* what, const auto& end) {
    int count = 0;
    for (auto it = all.begin(); it != all.end();) {
      auto* const each = *it++;
      if (each->context != context) continue;
      ++count;
      end(each);
    }
    if (count > 0 && context->broken == CUDA_SUCCESS) leaks.push_back(std::to_string(count) + " " + what);
  };
  sweep(streams, "streams", [this](CUstream stream) { (void)Close(stream); });
  sweep(events, "events", [this](CUevent event) { Retire(event); });
  sweep(modules, "modules", [this](CUmodule module) { Retire(module); });
  sweep(graphs, "graphs", [this](CUgraph graph) { Retire(graph); });
  sweep(executables, "executable graphs", [this](CUgraphExec graph) { Retire(graph); });
  Memory& memory = memory_[static_cast<size_t>(context->gpu)];
  if (memory.used > 0 && context->broken == CUDA_SUCCESS) leaks.push_back(std::to_string(memory.used) + " bytes");
}

void Machine::Break(CUcontext context, CUresult result, const std::string& text) {
  if (context->broken != CUDA_SUCCESS) return;
  context->broken = result;
  Wrong(result, "a context broke (error " + std::to_string(result) + ") in " + text);
  changed_.notify_all();
}

CUresult Machine::Close(CUstream stream) {
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    Wrong(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamDestroy of a stream that captures");
  }
  stream->closing = true;
  Retire(stream);  // its thread still runs the queued work
  changed_.notify_all();
  return CUDA_SUCCESS;
}

void Machine::Enqueue(CUstream stream, std::string what, Work work, const void* owner) {
  if (stream->capture != nullptr) {
    Graph& graph = stream->capture->graph;
    graph.nodes.push_back({std::move(what), std::move(work), stream->last, owner});
    stream->last = {graph.nodes.size() - 1};
    return;
  }
  stream->queue.push_back({std::move(what), std::move(work), nullptr, nullptr});
  ++stream->queued;
  changed_.notify_all();
}

std::shared_ptr<Mark> Machine::Record(CUstream stream) {
  auto mark = std::make_shared<Mark>();
  mark->stream = stream;
  if (stream->capture != nullptr) {
    mark->capture = stream->capture;
    mark->last = stream->last;
    return mark;
  }
  mark->number = stream->queued;
  stream->queue.push_back({"cuEventRecord", nullptr, nullptr, mark});
  ++stream->queued;
  changed_.notify_all();
  return mark;
}

CUresult Machine::WaitFor(CUstream stream, const std::shared_ptr<Mark>& mark) {
  if (mark == nullptr) return CUDA_SUCCESS;  // never recorded
  if (mark->capture != nullptr) {
    if (stream->capture != nullptr && stream->capture != mark->capture) {
      return Wrong(kCaptureIsolation, "a stream that captures waits for an event of another capture");
    }
    if (mark->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream->capture = mark->capture;  // the stream joins the capture
    stream->last.insert(mark->last.begin(), mark->last.end());
    return CUDA_SUCCESS;
  }
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return Wrong(kCaptureIsolation, "a stream that captures waits for an event that was recorded outside");
  }
  stream->queue.push_back({"cuStreamWaitEvent", nullptr, mark, nullptr});
  ++stream->queued;
  changed_.notify_all();
  return CUDA_SUCCESS;
}

void Machine::AwaitIdle(std::unique_lock<std::mutex>& lock, int gpu) {
  struct Held {
    CUstream stream;
    int number;
    uint64_t until;
  };
  std::vector<Held> all;
  for (CUstream stream : streams) {
    if (stream->context->gpu != gpu) continue;
    Want(stream);
    all.push_back({stream, stream->number, stream->queued});
  }
  const auto holds = [&](const Held& held) {
    return streams.count(held.stream) == 1 && held.stream->number == held.number && held.stream->done < held.until &&
           held.stream->context->broken == CUDA_SUCCESS;
  };
  while (std::any_of(all.begin(), all.end(), holds)) AwaitChange(lock);
}

void Machine::Want(const Mark& mark) {
  if (mark.done || streams.count(mark.stream) == 0) return;
  mark.stream->wanted = std::max(mark.stream->wanted, mark.number + 1);
  changed_.notify_all();
}

}  // namespace lockstep::cuda
