// Golden files: text in, text out. A file holds cases, each an input graph and the result of passes:
//
//   // passes=cse                       for all cases that follow, until another such line
//   // Equal ops with different attributes stay.
//   graph @different_dims(%x: f32[2,3]) -> … { … }
//   // ==> unchanged                    or `// ==>` and the expected graph, or `// ==> error: …`
//   // -----
//
// The name of a case is the name of its graph. Lines and columns in errors count from the first line that is not a
// comment. One more comment line may precede a case:
//
//   // meaning=changes                 the passes change the results, and the next line says why
//
// Each pass must also keep what it promises to keep (passes/pass.h): the graphs before and after it are interpreted, a
// placed graph on one rank. A value with placement `local` has no meaning on one rank, so cases about such values are
// local graphs. With an empty list of passes a case tests the text form: `unchanged` means that the graph prints as it
// is written.

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
  std::string passes;  // the list of passes, in the form that passes/pass_table.h reads
  bool meaning_changes = false;
  std::string preamble;  // the comments above the input, with their newlines
  std::string input;
  std::string expected;  // "unchanged", "error: …", or a graph; "" if the case has none yet
};

std::vector<GoldenCase> ParseGoldenFile(std::string_view text);

// Returns the text of a file with these cases.
std::string FormatGoldenFile(const std::vector<GoldenCase>& cases);

// Parses, verifies and runs the passes, and returns the result in the form of `expected`. An error of this function
// itself is a broken promise: a pass reported a change that it did not make (or the reverse) or changed the meaning, or
// a graph does not print and parse exactly. `num_compared` (may be null) counts, for each pass that changed the graph,
// the tensors that were compared.
absl::StatusOr<std::string> RunGoldenCase(const GoldenCase& golden_case,
                                          std::map<std::string, int>* num_compared = nullptr);

}  // namespace lockstep
