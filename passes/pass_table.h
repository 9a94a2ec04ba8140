// The table of passes by name, for lockstep-opt and the golden tests. A list of passes is written as text:
//
//   simplify,cse,distribute{data=4},legalize{without=softmax|matmul}
//
// Each entry of the table makes a Pass from its options. Constant data; any thread.

#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

// The options of one pass, as written between braces: option=value, separated by commas. An entry's `make` reads each
// option once. An option that was not read is an error, so that a misspelt option is not silently ignored.
class PassOptions {
 public:
  PassOptions() = default;
  explicit PassOptions(std::vector<std::pair<std::string, std::string>> values) : values_(std::move(values)) {}

  bool Has(const std::string& name);
  std::string GetString(const std::string& name, std::string default_value);
  absl::StatusOr<int64_t> GetInt(const std::string& name, int64_t default_value);
  absl::StatusOr<double> GetDouble(const std::string& name, double default_value);
  absl::StatusOr<bool> GetBool(const std::string& name, bool default_value);  // true or false
  std::vector<std::string> GetList(const std::string& name);                  // separated by '|'; empty if not given
  // Reads all options that were not read yet, in the order in which they are written, such as the axes of a mesh.
  std::vector<std::pair<std::string, std::string>> TakeRest();

  // Returns InvalidArgument if an option was not read. The error names the first such option and the known options.
  absl::Status CheckAllRead() const;

 private:
  std::optional<std::string> Take(const std::string& name);

  std::vector<std::pair<std::string, std::string>> values_;
  std::set<std::string> asked_;
};

struct PassEntry {
  std::string name;
  std::string doc;      // one line
  std::string options;  // one line such as "max_elements=1024", or empty
  std::function<absl::StatusOr<Pass>(PassOptions& options)> make;
};

// All passes, in the order in which a pipeline would run them.
const std::vector<PassEntry>& PassTable();

// Makes the passes of a list such as the one above. An error names the pass or the option, and the names that exist.
absl::StatusOr<std::vector<Pass>> PassesFromText(std::string_view text);

}  // namespace lockstep::passes
