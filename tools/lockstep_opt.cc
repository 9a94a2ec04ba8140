// lockstep-opt: reads a graph in text form, runs passes by name, prints the graph. See kUsage.

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "core/printer.h"
#include "core/verifier.h"
#include "passes/dump.h"
#include "passes/pass.h"
#include "passes/pass_table.h"
#include "tools/command_line.h"

ABSL_FLAG(std::string, passes, "", "passes to run, in order, such as simplify,cse,legalize{without=softmax}");
ABSL_FLAG(bool, print_changes, false, "print the graph after each pass that changed it, on stderr");
ABSL_FLAG(bool, time, false, "print the time of each pass, on stderr");
ABSL_FLAG(bool, verify_only, false, "read and verify the graph, print nothing");
ABSL_FLAG(bool, list_passes, false, "list the passes with their options and exit");
ABSL_FLAG(bool, sources, true, "print the source of each node in the model");
ABSL_FLAG(bool, brief, false, "print one line for each node, without sources; the output cannot be read back");
ABSL_FLAG(std::string, reproducer, "", "a directory for <graph>.<pass>.ir, the graph before a pass that failed");

namespace lockstep {
namespace {

constexpr char kUsage[] = R"(runs passes on a graph in text form.

  lockstep-opt [flags] [FILE]            FILE or '-' or nothing: standard input

  lockstep-opt model.ir                                       read, verify, print
  lockstep-opt --passes=simplify,cse,dce model.ir             run three passes
  lockstep-opt --passes=simplify --print-changes --time model.ir
  lockstep-opt --list-passes                                  the passes and their options

With LOCKSTEP_DUMP=DIR in the environment the graph after each pass that changed it goes to DIR/<graph>/.
Errors are printed to standard error, with exit code 1.)";

void ListPasses() {
  for (const passes::PassEntry& entry : passes::PassTable()) {
    const std::string name = entry.name + (entry.options.empty() ? "" : "{" + entry.options + "}");
    std::printf("%s\n    %s\n", name.c_str(), entry.doc.c_str());
  }
}

absl::Status Run(const std::string& path) {
  if (absl::GetFlag(FLAGS_list_passes)) {
    ListPasses();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<passes::Pass> passes, passes::PassesFromText(absl::GetFlag(FLAGS_passes)));
  ASSIGN_OR_RETURN(const std::string text, ReadInput(path));
  const std::string shown_path = path == "-" ? "<stdin>" : path;
  absl::StatusOr<Graph> graph = ParseGraph(text);
  if (!graph.ok()) return Annotate(graph.status(), shown_path);
  if (absl::GetFlag(FLAGS_verify_only)) return Annotate(Verify(*graph), shown_path);

  passes::PassDebug debug;
  if (const std::string directory = passes::DumpDirectoryFromEnvironment(); !directory.empty()) {
    ASSIGN_OR_RETURN(debug, passes::DumpTo(directory, graph->name()));
  }
  if (!absl::GetFlag(FLAGS_reproducer).empty()) debug.reproducer_directory = absl::GetFlag(FLAGS_reproducer);
  if (absl::GetFlag(FLAGS_print_changes)) {
    debug.on_change = [dump = debug.on_change](const passes::Pass& pass, const std::string& before,
                                               const Graph& after) {
      if (dump) dump(pass, before, after);
      std::cerr << "// after " << pass.name << "\n" << after.ToString() << "\n";
    };
  }
  if (absl::GetFlag(FLAGS_time)) {
    debug.on_time = [](const passes::Pass& pass, double seconds) {
      std::fprintf(stderr, "%9.3f ms  %s\n", seconds * 1e3, pass.name.c_str());
    };
  }
  RETURN_IF_ERROR(Annotate(passes::RunPasses(passes, *graph, debug), shown_path));
  std::cout << PrintGraph(*graph, {.sources = absl::GetFlag(FLAGS_sources), .brief = absl::GetFlag(FLAGS_brief)});
  return absl::OkStatus();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::RunTool(argc, argv, "lockstep_opt", lockstep::kUsage, lockstep::Run);
}
