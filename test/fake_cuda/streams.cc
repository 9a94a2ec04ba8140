// The driver's functions of streams, events and graphs, as declared in cuda.h.

#include <algorithm>
#include <memory>
#include <utility>

#include "test/fake_cuda/call.h"

namespace lockstep::cuda {
namespace {

void RunHostFunction(CUcontext context, CUhostFn function, void* data) {
  const std::lock_guard<std::mutex> one_at_a_time(context->host_functions);
  Machine::in_host_function = true;
  function(data);
  Machine::in_host_function = false;
}

}  // namespace

// --- Streams and events -------------------------------------------------------------------------------------------

EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  Call call(Text("cuStreamCreateWithPriority ", priority));
  if (call.InContext().failed()) return call.result;
  if (flags != CU_STREAM_NON_BLOCKING) {
    return call.machine.Wrong(CUDA_ERROR_INVALID_VALUE, "a stream that the legacy stream would block");
  }
  *stream = call.machine.MakeStream(Machine::current);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  Call call("cuStreamDestroy " + Name(stream));
  return call.With(stream).failed() ? call.result : call.machine.Close(stream);
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
  Call call("cuStreamQuery", false);
  if (call.With(stream).failed()) return call.result;
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return call.machine.Wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamQuery of a stream that captures");
  }
  call.machine.Want(stream);
  return stream->done == stream->queued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  Call call("cuStreamSynchronize " + Name(stream));
  if (call.With(stream).Unsafe("cuStreamSynchronize").failed()) return call.result;
  call.machine.Want(stream);
  const uint64_t until = stream->queued;
  while (stream->done < until && stream->context->broken == CUDA_SUCCESS) call.machine.AwaitChange(call.lock);
  return stream->context->broken;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  Call call("cuStreamWaitEvent " + Name(stream));
  if (call.With(stream).With(event).failed()) return call.result;
  return call.machine.WaitFor(stream, event->mark);
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
  Call call("cuEventCreate", false);
  if (call.InContext().failed()) return call.result;
  *event = new CUevent_st{Machine::current, (flags & CU_EVENT_DISABLE_TIMING) == 0, nullptr};
  call.machine.events.insert(*event);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  Call call("cuEventRecord " + Name(stream));
  if (call.With(stream).With(event).failed()) return call.result;
  event->mark = call.machine.Record(stream);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event) {
  Call call("cuEventQuery", false);
  if (call.With(event).failed() || event->mark == nullptr) return call.result;
  if (event->mark->capture != nullptr) return call.machine.Wrong(kCapturedEvent, "cuEventQuery of a captured event");
  call.machine.Want(*event->mark);
  return event->mark->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
  Call call("cuEventSynchronize");
  if (call.With(event).Unsafe("cuEventSynchronize").failed() || event->mark == nullptr) return call.result;
  const std::shared_ptr<Mark> mark = event->mark;
  if (mark->capture != nullptr) return call.machine.Wrong(kCapturedEvent, "cuEventSynchronize of a captured event");
  call.machine.Want(*mark);
  while (!mark->done && event->context->broken == CUDA_SUCCESS) call.machine.AwaitChange(call.lock);
  return event->context->broken;
}

EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  Call call("cuEventElapsedTime", false);
  if (call.With(start).With(end).failed()) return call.result;
  if (!start->timed || !end->timed || start->mark == nullptr || end->mark == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!start->mark->done || !end->mark->done) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(end->mark->when - start->mark->when).count();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  Call call("cuEventDestroy", false);
  if (call.With(event).failed()) return call.result;
  call.machine.Retire(event);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user_data) {
  Call call("cuLaunchHostFunc " + Name(stream));
  if (call.Queues(stream).failed()) return call.result;
  call.machine.Enqueue(stream, "cuLaunchHostFunc", [context = stream->context, function, user_data] {
    RunHostFunction(context, function, user_data);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

// --- Graphs -------------------------------------------------------------------------------------------------------

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  Call call("cuStreamBeginCapture " + Name(stream));
  if (call.With(stream).failed()) return call.result;
  if (stream->capture != nullptr) return call.machine.Wrong(CUDA_ERROR_INVALID_VALUE, "a stream captures already");
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  call.machine.captures.push_back(stream->capture);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  Call call("cuStreamEndCapture " + Name(stream));
  *graph = nullptr;
  if (call.With(stream).failed()) return call.result;
  auto ended = std::make_unique<CUgraph_st>();
  ended->context = stream->context;
  const CUresult result = call.machine.EndCapture(stream, &ended->graph);
  if (result != CUDA_SUCCESS) return result;
  *graph = ended.release();
  call.machine.graphs.insert(*graph);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  Call call("cuStreamIsCapturing", false);
  if (call.With(stream).failed()) return call.result;
  *status = stream->capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  Call call("cuGraphInstantiateWithFlags");
  if (call.With(graph).failed()) return call.result;
  *executable = new CUgraphExec_st{Machine::current, graph->graph};
  call.machine.executables.insert(*executable);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  Call call("cuGraphLaunch " + Name(stream));
  if (call.With(executable).Queues(stream).failed()) return call.result;
  call.machine.Enqueue(stream, "cuGraphLaunch", call.machine.RunOf(executable->graph, stream));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
  Call call("cuGraphExecDestroy");
  if (call.With(executable).failed()) return call.result;
  call.machine.Retire(executable);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  Call call("cuGraphDestroy");
  if (call.With(graph).failed()) return call.result;
  call.machine.Retire(graph);
  return CUDA_SUCCESS;
}

}  // namespace lockstep::cuda
