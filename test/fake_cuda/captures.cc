// Captures of the fake driver's streams, and the execution of a captured graph.

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/fake_cuda/machine.h"

namespace lockstep::cuda {

CUresult Machine::CheckUnsafe(const std::string& call) {
  for (const auto& capture : captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    if (capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && !own) continue;
    capture->invalid = true;
    return Wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call + " while a stream captures");
  }
  return CUDA_SUCCESS;
}

CUresult Machine::EndCapture(CUstream stream, Graph* graph) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) {
    return Wrong(CUDA_ERROR_INVALID_VALUE, "cuStreamEndCapture of a stream in which no capture began");
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return Wrong(kWrongThread, "cuStreamEndCapture in another thread than cuStreamBeginCapture");
  }
  // The nodes that the origin comes after. Nodes come only after earlier nodes.
  std::set<size_t> joined = stream->last;
  for (size_t n = capture->graph.nodes.size(); n-- > 0;) {
    if (joined.count(n) == 1) joined.insert(capture->graph.nodes[n].after.begin(), capture->graph.nodes[n].after.end());
  }
  for (CUstream other : streams) {
    if (other->capture == capture) other->capture = nullptr, other->last.clear();
  }
  captures.erase(std::find(captures.begin(), captures.end(), capture));
  Graph captured = std::move(capture->graph);  // events may keep the capture alive
  if (capture->invalid) return Wrong(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamEndCapture of an invalid capture");
  if (joined.size() != captured.nodes.size()) {
    return Wrong(kCaptureUnjoined, "cuStreamEndCapture: work of another stream was never waited for");
  }
  *graph = std::move(captured);
  return CUDA_SUCCESS;
}

bool Machine::IsInGraph(const void* owner) const {
  const auto has = [&](const auto* each) {
    const auto& nodes = each->graph.nodes;
    return std::any_of(nodes.begin(), nodes.end(), [&](const Graph::Node& node) { return node.owner == owner; });
  };
  return std::any_of(graphs.begin(), graphs.end(), has) || std::any_of(executables.begin(), executables.end(), has);
}

Work Machine::RunOf(const Graph& graph, CUstream stream) {
  return [this, graph, seed = stream->random(), gpu = stream->context->gpu]() -> CUresult {
    std::mt19937_64 random(seed);
    std::vector<bool> done(graph.nodes.size());
    for (size_t left = graph.nodes.size(); left > 0; --left) {
      std::vector<size_t> ready;
      for (size_t n = 0; n < graph.nodes.size(); ++n) {
        const auto& after = graph.nodes[n].after;
        if (!done[n] && std::all_of(after.begin(), after.end(), [&](size_t m) { return done[m]; })) ready.push_back(n);
      }
      const size_t node = ready[random() % ready.size()];
      const CUresult result = graph.nodes[node].work();
      if (result != CUDA_SUCCESS) {
        const auto lock = Lock();
        Break(contexts[static_cast<size_t>(gpu)].get(), result, graph.nodes[node].what + " of a graph");
        return result;
      }
      done[node] = true;
    }
    return CUDA_SUCCESS;
  };
}

}  // namespace lockstep::cuda
