#include "passes/pass.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "core/verifier.h"

namespace lockstep::passes {
namespace {

absl::Status WithReproducer(const absl::Status& error, const Pass& pass, const Graph& graph, const std::string& before,
                            const PassDebug& debug) {
  std::string message = "pass " + pass.name + ": " + std::string(error.message());
  if (!debug.reproducer_directory.empty()) {
    const std::filesystem::path path =
        std::filesystem::path(debug.reproducer_directory) / (graph.name() + "." + pass.name + ".ir");
    std::ofstream file(path);
    file << "// passes=" << pass.name << "\n// " << error.message() << "\n" << before;
    file.flush();
    message += file ? " (reproducer: " + path.string() + ")" : " (no reproducer: cannot write " + path.string() + ")";
  }
  return absl::Status(error.code(), message);
}

}  // namespace

absl::Status RunPasses(const std::vector<Pass>& passes, Graph& graph, const PassDebug& debug) {
  RETURN_IF_ERROR(Annotate(Verify(graph), "before the passes"));
  const bool keep_text = debug.on_change || !debug.reproducer_directory.empty();
  for (const Pass& pass : passes) {
    const std::string before = keep_text ? graph.ToString() : "";
    const auto start = std::chrono::steady_clock::now();
    absl::StatusOr<bool> changed = pass.run(graph);
    if (debug.on_time)
      debug.on_time(pass, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    absl::Status status = changed.ok() && *changed ? Verify(graph) : changed.status();
    if (!status.ok()) return WithReproducer(status, pass, graph, before, debug);
    if (*changed && debug.on_change) debug.on_change(pass, before, graph);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::passes
