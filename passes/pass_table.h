// The passes by name, for lockstep-opt and the golden tests: a list of passes is written as text,
//
//   simplify,cse,distribute{data=4},legalize{without=softmax|matmul}
//
// and each entry of the table turns its options into a Pass. Constant data; any thread.

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

// The options of one pass, as written between braces: option=value, separated by commas. An entry's Make reads each
// option once; what nobody read is an error, so that a misspelt option is not silently ignored.
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
  // Every option that was not read yet, in the order in which they are written, e.g. the axes of a mesh.
  std::vector<std::pair<std::string, std::string>> TakeRest();

  // InvalidArgument naming the first option that was not read, and those that somebody asked for.
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

// In the order in which a pipeline would run them.
const std::vector<PassEntry>& PassTable();

// Makes the passes of a list such as the one above. Errors name the pass or the option, and the names that there are.
absl::StatusOr<std::vector<Pass>> PassesFromText(std::string_view text);

}  // namespace lockstep::passes
