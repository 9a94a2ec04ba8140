// Golden files: text in, text out. A file holds cases, each an input graph and what passes make of it:
//
//   // passes=cse                       for all cases that follow, until another such line
//   // Equal ops with different attributes stay.
//   graph @different_dims(%x: f32[2,3]) -> … { … }
//   // ==> unchanged                    or `// ==>` and the expected graph, or `// ==> error: …`
//   // -----
//
// A case is known by the name of its graph. Lines and columns in errors count from the first line that is no comment.
//   // meaning=changes                 for one case: what was asked for gives other numbers, and the next line says why
//
// Each pass is also held to what it says that it keeps (passes/pass.h): the graphs before and after it are interpreted.
// Of a placed graph that is its meaning on one rank, which a local value does not have: cases about those are local
// graphs. With an empty list of passes a case tests the text form: `unchanged` means that the graph prints as it is
// written.

#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace lockstep {

struct GoldenCase {
  std::string name;    // of the graph, or "line_12"
  int line = 1;        // in the file, of the input's first line
  std::string passes;  // the list of passes, as passes/pass_table.h reads it
  bool meaning_changes = false;
  std::string preamble;  // the comments above the input, with their newlines
  std::string input;
  std::string expected;  // "unchanged", "error: …", or a graph; "" if the case has none yet
};

std::vector<GoldenCase> ParseGoldenFile(std::string_view text);

// The file's text again, from its cases.
std::string FormatGoldenFile(const std::vector<GoldenCase>& cases);

// Parses, verifies, runs the passes, and says what came out in the form of `expected`. An error of this function itself
// is a broken promise: a pass that says that it changed the graph and did not (or the reverse), or changed what it
// means, or a graph that does not print and parse exactly. `num_compared` (may be null): to the count of each pass that
// changed the graph is added how many of its tensors were compared.
absl::StatusOr<std::string> RunGoldenCase(const GoldenCase& golden_case,
                                          std::map<std::string, int>* num_compared = nullptr);

}  // namespace lockstep
