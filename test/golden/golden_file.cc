#include "test/golden/golden_file.h"

#include "core/printer.h"
#include "core/verifier.h"
#include "passes/pass.h"
#include "passes/pass_table.h"
#include "test/meaning/meaning.h"

namespace lockstep {
namespace {

constexpr std::string_view kPasses = "// passes=", kChanges = "// meaning=changes", kExpect = "// ==>",
                           kSeparator = "// -----";

// Returns "cse" for "graph @cse(%x: …".
std::string CaseName(std::string_view input, int line) {
  const size_t at = input.find("graph @");
  if (at != std::string_view::npos) {
    const size_t begin = at + 7, end = input.find_first_not_of(
                                     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", begin);
    if (end > begin && end != std::string_view::npos) return std::string(input.substr(begin, end - begin));
  }
  return "line_" + std::to_string(line);
}

// Wraps a pass. The wrapper checks that the pass reports correctly if it changed the graph, and keeps what it promises.
passes::Pass Honest(passes::Pass pass, absl::Status& broken, std::map<std::string, int>* num_compared) {
  auto run = [=, inner = pass.run, name = pass.name, keeps = pass.keeps,
              &broken](Graph& graph) -> absl::StatusOr<bool> {
    const Graph original = graph.Clone();
    ASSIGN_OR_RETURN(const bool changed, inner(graph));
    if (changed && broken.ok() && Verify(graph).ok()) {
      int compared = 0;
      broken = Annotate(CheckSameMeaning(original, graph, keeps, &compared), "pass " + name + " changed the meaning");
      if (num_compared) (*num_compared)[name] += compared;
    }
    if (changed != (graph.ToString() != original.ToString())) {
      broken = Internal() << "pass " << name << " says that it " << (changed ? "changed" : "did not change")
                          << " the graph, but the text form says otherwise:\n"
                          << graph.ToString();
    }
    return changed;
  };
  return {pass.name, std::move(run), pass.keeps};
}

std::string ErrorText(const absl::Status& status) {
  std::string text = "error: " + std::string(status.message());
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) text.replace(at, 1, " ");
  return text;
}

}  // namespace

std::vector<GoldenCase> ParseGoldenFile(std::string_view text) {
  std::vector<GoldenCase> cases(1);
  enum class Part { kPreamble, kInput, kExpected } part = Part::kPreamble;
  int line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line(text.substr(at, end - at));
    at = end + 1;
    ++line_number;
    GoldenCase& current = cases.back();
    if (line.starts_with(kSeparator)) {
      std::string passes = current.passes;  // emplace_back invalidates `current`
      cases.emplace_back().passes = std::move(passes);
      part = Part::kPreamble;
    } else if (line.starts_with(kExpect)) {
      part = Part::kExpected;
      const size_t word = line.find_first_not_of(' ', kExpect.size());
      if (word != std::string::npos) current.expected = line.substr(word);
    } else if (part == Part::kPreamble && (line.starts_with("//") || line.empty())) {
      if (line.starts_with(kPasses)) current.passes = line.substr(kPasses.size());
      if (line == kChanges) current.meaning_changes = true;
      current.preamble += line + "\n";
    } else if (part == Part::kExpected) {
      current.expected += line + "\n";
    } else {
      if (part == Part::kPreamble) current.line = line_number;
      part = Part::kInput;
      current.input += line + "\n";
    }
  }
  for (GoldenCase& golden_case : cases) golden_case.name = CaseName(golden_case.input, golden_case.line);
  if (cases.back().input.empty()) cases.pop_back();
  return cases;
}

std::string FormatGoldenFile(const std::vector<GoldenCase>& cases) {
  std::string text;
  for (const GoldenCase& golden_case : cases) {
    if (!text.empty()) text += std::string(kSeparator) + "\n";
    text += golden_case.preamble + golden_case.input + std::string(kExpect);
    const bool is_word = golden_case.expected == "unchanged" || golden_case.expected.starts_with("error: ");
    text += (is_word ? " " + golden_case.expected + "\n" : "\n" + golden_case.expected);
  }
  return text;
}

absl::StatusOr<std::string> RunGoldenCase(const GoldenCase& golden_case, std::map<std::string, int>* num_compared) {
  absl::StatusOr<Graph> graph = ParseGraph(golden_case.input);
  if (!graph.ok()) return ErrorText(graph.status());
  const std::string printed = graph->ToString();
  ASSIGN_OR_RETURN(const Graph again, ParseGraph(printed));
  if (again.ToString() != printed)
    return Internal() << "printed, parsed and printed again, the graph differs:\n" << again.ToString();
  if (graph->Clone().ToString() != printed)
    return Internal() << "the graph's clone prints differently:\n" << graph->Clone().ToString();

  absl::StatusOr<std::vector<passes::Pass>> passes = passes::PassesFromText(golden_case.passes);
  if (!passes.ok()) return ErrorText(passes.status());
  absl::Status broken;
  for (passes::Pass& pass : *passes) {
    if (golden_case.meaning_changes) pass.keeps = passes::Keeps::kNothing;
    pass = Honest(std::move(pass), broken, num_compared);
  }
  const absl::Status status = passes::RunPasses(*passes, *graph);
  RETURN_IF_ERROR(broken);
  if (!status.ok()) return ErrorText(status);
  const std::string after = graph->ToString();
  return after == (passes->empty() ? golden_case.input : printed) ? "unchanged" : after;
}

}  // namespace lockstep
