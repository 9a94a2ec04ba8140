// One call of the driver: it records itself and decides if it may continue. For the files with the driver's functions.

#pragma once

#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "test/fake_cuda/machine.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace lockstep::cuda {

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// One call. Holds the mutex and decides if the call may continue. `what` begins with the function's name.
struct Call {
  explicit Call(const std::string& what, bool noted = true)
      : name(what.substr(0, what.find(' '))), lock(machine.Lock()) {
    if (noted) machine.calls.push_back(what);
    if (Machine::in_host_function) {
      result = machine.Wrong(kNotPermitted, name + " in a function of the host");
      return;
    }
    for (auto& [nth, first] : machine.interruptions[name]) {
      if (--nth == 0) result = first();
    }
    if (result == CUDA_SUCCESS && !machine.initialized && name != "cuInit") {
      result = machine.Wrong(CUDA_ERROR_NOT_INITIALIZED, name + " before cuInit");
    }
  }
  // Requires a context of the calling thread that is not broken. The checks below also end the process if the handle
  // was destroyed (see Machine::CheckNotRetired).
  Call& InContext() {
    if (result != CUDA_SUCCESS) return *this;
    if (Machine::current == nullptr || Machine::current->retained == 0) {
      result = Machine::current == nullptr
                   ? machine.Wrong(CUDA_ERROR_INVALID_CONTEXT, name + " in a thread without a context")
                   : machine.Wrong(kContextIsDestroyed, name + " in a thread whose context was released");
    } else {
      result = Machine::current->broken;
    }
    return *this;
  }
  Call& With(CUstream stream) { return In(machine.streams, stream, "a stream"); }
  // The call queues work in the stream: waits until there is room.
  Call& Queues(CUstream stream) {
    With(stream);
    if (result != CUDA_SUCCESS || stream->capture != nullptr) return *this;
    const auto is_full = [&] { return stream->queued - stream->done >= machine.options.queue; };
    if (is_full()) machine.Want(stream);
    while (is_full() && stream->context->broken == CUDA_SUCCESS) machine.AwaitChange(lock);
    result = stream->context->broken;
    return *this;
  }
  Call& With(CUevent event) { return In(machine.events, event, "an event"); }
  Call& With(CUmodule module) { return In(machine.modules, module, "a module"); }
  Call& With(CUfunction function) { return In(machine.functions, function, "a function"); }
  Call& With(CUgraph graph) { return In(machine.graphs, graph, "a graph"); }
  Call& With(CUgraphExec executable) { return In(machine.executables, executable, "an executable graph"); }
  // The call synchronizes or allocates, which a capture forbids.
  Call& Unsafe(const char* name) {
    if (result == CUDA_SUCCESS) result = machine.CheckUnsafe(name);
    return *this;
  }
  bool failed() const { return result != CUDA_SUCCESS; }

  // Requires that `handle` is in `all`.
  template <typename T>
  Call& In(const std::set<T>& all, T handle, const char* what) {
    InContext();
    if (result != CUDA_SUCCESS) return *this;
    machine.CheckNotRetired(handle, name, what);
    if (all.count(handle) == 0)
      result = machine.Wrong(CUDA_ERROR_INVALID_HANDLE, name + " with a handle that is not " + what);
    return *this;
  }

  Machine& machine = Machine::Get();
  const std::string name;  // of the driver's function
  std::unique_lock<std::mutex> lock;
  CUresult result = CUDA_SUCCESS;
};

// Returns "stream 2", for records of calls. Do not call it while holding the mutex.
inline std::string Name(CUstream stream) {
  Machine& machine = Machine::Get();
  const auto lock = machine.Lock();
  return machine.streams.count(stream) == 0 ? "no stream" : Text("stream ", stream->number);
}

}  // namespace lockstep::cuda
