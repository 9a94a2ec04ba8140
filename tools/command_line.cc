#include "tools/command_line.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"

namespace lockstep {
namespace {

// Changes --print-changes to --print_changes, Abseil's spelling of flags.
void MinusToUnderscore(char* argument) {
  if (std::strncmp(argument, "--", 2) != 0) return;
  char* const name = argument + 2;
  char* const end = name + std::strcspn(name, "=");
  std::replace(name, end, '-', '_');
}

}  // namespace

int RunTool(int argc, char** argv, std::string_view tool, std::string_view usage,
            const std::function<absl::Status(const std::string& path)>& run) {
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [file = std::string(tool) + ".cc"](absl::string_view source) {
    return source.find(file) != absl::string_view::npos;
  };
  config.contains_helpshort_flags = config.contains_help_flags;
  absl::SetFlagsUsageConfig(config);
  absl::SetProgramUsageMessage(std::string(usage));
  std::for_each(argv + 1, argv + argc, MinusToUnderscore);
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  absl::Status status = InvalidArgument() << "one file at a time; see --help";
  if (arguments.size() <= 2) status = run(arguments.size() == 2 ? arguments[1] : "-");
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", argv[0], std::string(status.message()).c_str());
  return 1;
}

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

}  // namespace lockstep
