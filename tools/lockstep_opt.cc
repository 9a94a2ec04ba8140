// lockstep-opt: graph text in, passes by name, graph text out. See kUsage.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "core/printer.h"
#include "core/verifier.h"
#include "passes/pass.h"
#include "passes/pass_table.h"

ABSL_FLAG(std::string, passes, "", "passes to run, in order, such as simplify,cse,legalize{without=softmax}");
ABSL_FLAG(bool, print_changes, false, "print the graph after each pass that changed it, on stderr");
ABSL_FLAG(bool, time, false, "print how long each pass took, on stderr");
ABSL_FLAG(bool, verify_only, false, "read and verify the graph, print nothing");
ABSL_FLAG(bool, list_passes, false, "list the passes with their options and end");
ABSL_FLAG(bool, sources, true, "print where in the model each node comes from");
ABSL_FLAG(std::string, reproducer, "", "a directory for <graph>.<pass>.ir, the graph before a pass that failed");

namespace lockstep {
namespace {

constexpr char kUsage[] = R"(runs passes on a graph in text form.

  lockstep-opt [flags] [FILE]            FILE or '-' or nothing: standard input

  lockstep-opt model.ir                                       read, verify, print
  lockstep-opt --passes=simplify,cse,dce model.ir             run three passes
  lockstep-opt --passes=simplify --print-changes --time model.ir
  lockstep-opt --list-passes                                  the passes and their options

Errors go to standard error, with exit code 1.)";

absl::StatusOr<std::string> ReadInput(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream file(path);
  if (!file) return NotFound() << "cannot read " << path;
  text << file.rdbuf();
  return text.str();
}

void ListPasses() {
  for (const passes::PassEntry& entry : passes::PassTable()) {
    const std::string name = entry.name + (entry.options.empty() ? "" : "{" + entry.options + "}");
    std::printf("%s\n    %s\n", name.c_str(), entry.doc.c_str());
  }
}

absl::Status Run(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<passes::Pass> passes, passes::PassesFromText(absl::GetFlag(FLAGS_passes)));
  ASSIGN_OR_RETURN(const std::string text, ReadInput(path));
  const std::string shown_path = path == "-" ? "<stdin>" : path;
  absl::StatusOr<Graph> graph = ParseGraph(text);
  if (!graph.ok()) return Annotate(graph.status(), shown_path);
  if (absl::GetFlag(FLAGS_verify_only)) return Annotate(Verify(*graph), shown_path);

  passes::PassDebug debug;
  debug.reproducer_directory = absl::GetFlag(FLAGS_reproducer);
  if (absl::GetFlag(FLAGS_print_changes)) {
    debug.on_change = [](const passes::Pass& pass, const std::string&, const Graph& after) {
      std::cerr << "// after " << pass.name << "\n" << after.ToString() << "\n";
    };
  }
  if (absl::GetFlag(FLAGS_time)) {
    debug.on_time = [](const passes::Pass& pass, double seconds) {
      std::fprintf(stderr, "%9.3f ms  %s\n", seconds * 1e3, pass.name.c_str());
    };
  }
  RETURN_IF_ERROR(Annotate(passes::RunPasses(passes, *graph, debug), shown_path));
  std::cout << PrintGraph(*graph, {.sources = absl::GetFlag(FLAGS_sources)});
  return absl::OkStatus();
}

// Abseil's flags are spelt --print_changes; --print-changes is read as that.
std::vector<char*> WithUnderscores(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--", 2) != 0) continue;
    for (char* c = argv[i] + 2; *c != '\0' && *c != '='; ++c) {
      if (*c == '-') *c = '_';
    }
  }
  return {argv, argv + argc};
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(lockstep::kUsage);
  // --help shows the flags of this file alone.
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [](absl::string_view file) {
    return file.find("lockstep_opt.cc") != absl::string_view::npos;
  };
  absl::SetFlagsUsageConfig(config);
  std::vector<char*> given = lockstep::WithUnderscores(argc, argv);
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, given.data());
  if (absl::GetFlag(FLAGS_list_passes)) {
    lockstep::ListPasses();
    return 0;
  }
  if (arguments.size() > 2) {
    std::fprintf(stderr, "lockstep-opt: one file at a time; see --help\n");
    return 1;
  }
  const absl::Status status = lockstep::Run(arguments.size() > 1 ? arguments[1] : "-");
  if (status.ok()) return 0;
  std::fprintf(stderr, "lockstep-opt: %s\n", std::string(status.message()).c_str());
  return 1;
}
