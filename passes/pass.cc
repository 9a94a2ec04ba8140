#include "passes/pass.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/verifier.h"

namespace lockstep::passes {
namespace {

std::string AsComment(const std::string& text) {
  std::string comment = "// ";
  for (char c : text) comment += c == '\n' ? std::string("\n// ") : std::string(1, c);
  return comment + "\n";
}

}  // namespace

std::string FileName(std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

absl::Status WithReproducer(const absl::Status& error, const std::string& stage, const std::string& graph_name,
                            const std::string& before, const PassDebug& debug) {
  if (debug.reproducer_directory.empty()) return error;
  const std::filesystem::path path =
      std::filesystem::path(debug.reproducer_directory) / FileName(graph_name + "." + stage + ".ir");
  std::ofstream file(path);
  file << "// passes=" << stage << "\n" << AsComment(std::string(error.message())) << before;
  file.flush();
  const std::string place =
      file ? " (reproducer: " + path.string() + ")" : " (no reproducer: cannot write " + path.string() + ")";
  return absl::Status(error.code(), std::string(error.message()) + place);
}

absl::Status RunPasses(const std::vector<Pass>& passes, Graph& graph, const PassDebug& debug) {
  if (const absl::Status valid = Annotate(Verify(graph), "before the passes"); !valid.ok()) {
    return WithReproducer(valid, "verify", graph.name(), graph.ToString(), debug);
  }
  const bool keep_text = debug.on_change || !debug.reproducer_directory.empty();
  for (const Pass& pass : passes) {
    const std::string before = keep_text ? graph.ToString() : "";
    const auto start = std::chrono::steady_clock::now();
    absl::StatusOr<bool> changed = pass.run(graph);
    if (debug.on_time)
      debug.on_time(pass, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    absl::Status status = changed.ok() && *changed ? Verify(graph) : changed.status();
    if (!status.ok()) {
      return WithReproducer(Annotate(status, "pass " + pass.name), pass.name, graph.name(), before, debug);
    }
    if (*changed && debug.on_change) debug.on_change(pass, before, graph);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::passes
