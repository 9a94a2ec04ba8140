// The GPUs of the fake driver: memory, contexts, streams, events and captures. Everything except the work of streams
// happens under one mutex. Only the functions of the driver call it.

#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "test/fake_cuda/fake_driver.h"

namespace lockstep::cuda {

// Errors without names in our table, because only the fake returns them.
inline constexpr auto kContextIsDestroyed = static_cast<CUresult>(709);
inline constexpr auto kNotPermitted = static_cast<CUresult>(800);
inline constexpr auto kCaptureUnjoined = static_cast<CUresult>(904);
inline constexpr auto kCaptureIsolation = static_cast<CUresult>(905);
inline constexpr auto kCapturedEvent = static_cast<CUresult>(907);
inline constexpr auto kWrongThread = static_cast<CUresult>(908);

// Work of a stream or of a graph. Runs without the mutex.
using Work = std::function<CUresult()>;

struct Graph {
  struct Node {
    std::string what;
    Work work;
    std::set<size_t> after;  // indices of nodes
    const void* owner = nullptr;
  };
  std::vector<Node> nodes;
};

// A capture, from its begin to its end. Streams join it by waiting for its events.
struct Capture {
  CUstream origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Graph graph;
  bool invalid = false;
};

// One recording of an event.
struct Mark {
  bool done = false;
  std::chrono::steady_clock::time_point when;
  CUstream stream = nullptr;
  uint64_t number = 0;  // index of the preceding work in the stream
  std::shared_ptr<Capture> capture;
  std::set<size_t> last;  // in a capture: the nodes that it stands for
};

// The driver's CUstream, CUevent, … are pointers to these.
struct CUctx_st {
  int gpu = 0;
  int retained = 0;
  CUresult broken = CUDA_SUCCESS;  // permanently
  std::mutex host_functions;       // one at a time per context, as CUDA may do
};
struct CUstream_st {
  struct Item {
    std::string what;
    Work work;
    std::shared_ptr<Mark> wait, record;
  };
  CUcontext context = nullptr;
  int number = 0;
  std::deque<Item> queue;
  uint64_t queued = 0, done = 0, wanted = 0;  // items; may run up to `wanted`
  bool closing = false;
  std::chrono::microseconds spent{0};  // see FakeDriver::Spend
  std::shared_ptr<Capture> capture;
  std::set<size_t> last;  // in its capture: the nodes that the next node comes after
  std::mt19937_64 random;
  std::thread thread;
};
struct CUevent_st {
  CUcontext context = nullptr;
  bool timed = false;
  std::shared_ptr<Mark> mark;
};
struct CUfunc_st {
  std::string name;
  FakeKernel kernel = nullptr;  // null: from PTX
  std::vector<size_t> parameters;
  bool is_loaded = false;
};
struct CUmod_st {
  CUcontext context = nullptr;
  std::string image;
  std::map<std::string, CUfunc_st> functions;
};
struct CUgraph_st {
  CUcontext context = nullptr;
  Graph graph;
};
struct CUgraphExec_st {
  CUcontext context = nullptr;
  Graph graph;
};

class Machine {
 public:
  // Never destroyed: streams may outlive main.
  static Machine& Get();

  std::unique_lock<std::mutex> Lock() const { return std::unique_lock<std::mutex>(mutex_); }

  // Callers of all the following hold the mutex.
  void Reset(std::unique_lock<std::mutex>& lock, const FakeDriver::Options& options);
  void Release(CUcontext context);  // destroys everything in it, and records what should have been destroyed before
  CUresult Wrong(CUresult result, const std::string& text);  // records and prints it
  // Makes a handle invalid. Its memory stays until Reset, so that no later handle gets its address.
  void Retire(CUstream stream);
  void Retire(CUevent event);
  void Retire(CUmodule module);  // and its functions
  void Retire(CUgraph graph);
  void Retire(CUgraphExec executable);
  // Ends the process if the handle was destroyed, as NVIDIA's driver may: it would read freed memory.
  void CheckNotRetired(const void* handle, const std::string& call, const char* what) const;

  // Memory.
  CUresult Allocate(int gpu, size_t bytes, CUdeviceptr* memory);
  CUresult Free(CUdeviceptr memory);
  std::byte* Find(CUdeviceptr address, size_t bytes, int gpu = -1) const;  // -1: any GPU
  size_t used(int gpu) const { return memory_[static_cast<size_t>(gpu)].used; }
  std::string Place(CUdeviceptr address) const;  // "0x…: byte 3 of 64 freed bytes", for messages

  // Streams.
  CUstream MakeStream(CUcontext context);
  void Enqueue(CUstream stream, std::string what, Work work, const void* owner = nullptr);  // or captures the work
  std::shared_ptr<Mark> Record(CUstream stream);
  CUresult WaitFor(CUstream stream, const std::shared_ptr<Mark>& mark);
  void Want(CUstream stream) { stream->wanted = stream->queued, changed_.notify_all(); }
  void Want(const Mark& mark);
  void AwaitChange(std::unique_lock<std::mutex>& lock) { changed_.wait(lock); }
  void AwaitIdle(std::unique_lock<std::mutex>& lock, int gpu);  // until the work now in its streams is done
  void Break(CUcontext context, CUresult result, const std::string& text);
  CUresult Close(CUstream stream);
  // Returns an error if a capture forbids the calling thread to do this, such as allocating. An error invalidates the
  // capture.
  CUresult CheckUnsafe(const std::string& call);
  CUresult EndCapture(CUstream stream, Graph* graph);
  bool IsInGraph(const void* owner) const;
  // Runs the graph's nodes in a random order that its edges allow.
  Work RunOf(const Graph& graph, CUstream stream);

  FakeDriver::Options options;
  std::vector<std::unique_ptr<CUctx_st>> contexts;  // by GPU
  std::set<CUstream> streams;
  std::set<CUevent> events;
  std::set<CUmodule> modules;
  std::set<CUfunction> functions;  // of all modules
  std::set<CUgraph> graphs;
  std::set<CUgraphExec> executables;
  std::map<std::byte*, size_t> pinned;
  std::vector<std::shared_ptr<Capture>> captures;
  std::vector<std::string> calls, misuse, leaks, lazy_loads;
  std::map<std::string, std::vector<std::pair<int, Work>>, std::less<>> interruptions;  // of coming calls, by function

  bool initialized = false;  // cuInit was called
  int contexts_made = 0;
  int loads = 0, most_loads = 0;  // of modules: now, and the most at once

  static thread_local CUcontext current;  // the context of this thread
  static thread_local bool in_host_function;
  static thread_local CUresult of_kernel;  // the error of the kernel that runs in this thread
  static thread_local int gpu_of_kernel;

 private:
  struct Memory {
    std::byte* addresses = nullptr;  // the GPU's addresses: a range mapped without access rights
    std::byte* contents = nullptr;
    size_t end = 0;   // of all memory ever allocated
    size_t used = 0;  // bytes
    std::map<size_t, size_t> live, freed;
  };

  template <typename T>
  void Retire(std::set<T>& all, T handle);
  void RunStream(CUstream stream);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Memory> memory_;  // by GPU
  int made_streams_ = 0;
  int threads_ = 0;                                       // of streams
  std::map<const void*, std::shared_ptr<void>> retired_;  // destroyed handles
};

}  // namespace lockstep::cuda
