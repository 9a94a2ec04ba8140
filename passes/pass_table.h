// The table of passes by name, for lockstep-opt and the golden tests. A list of passes is a text such as
//
//   simplify,cse,distribute{data=4},legalize{without=softmax|matmul}
//
// Each entry of the table makes a Pass from its options (core/option_text.h). Constant data; any thread.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/option_text.h"
#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

struct PassEntry {
  std::string name;
  std::string doc;      // one line
  std::string options;  // one line such as "max_elements=1024", or empty
  std::function<absl::StatusOr<Pass>(const std::vector<NamedText>& options)> make;  // errors name the option
};

// Returns all passes: the transforms that users ask for, then those of the pipeline (passes/pipeline.h), in its order.
const std::vector<PassEntry>& PassTable();

// Makes the passes of a list such as the one above. An error names the pass or the option, and the names that exist.
absl::StatusOr<std::vector<Pass>> PassesFromText(std::string_view text);

}  // namespace lockstep::passes
