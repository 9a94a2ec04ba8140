#include "backends/codegen/widen_ptx.h"

#include <algorithm>
#include <regex>

namespace lockstep {
namespace {

// Returns `line`, such as "\tmax.s16 \t%rs3, %rs1, 0;", or its replacement.
std::string Wide(const std::string& line) {
  if (line.find(".s16") == std::string::npos && line.find(".u16") == std::string::npos) return line;
  // An operand may be a number.
  static const std::regex* const kNarrow = new std::regex(
      R"(\s*(abs|max|min|neg|sub)\.([su])16\s+([^\s,;]+),\s*([^\s,;]+)(?:,\s*([^\s,;]+))?;\s*)", std::regex::optimize);
  std::smatch found;
  if (!std::regex_match(line, found, *kNarrow)) return line;
  const std::string op = found[1], sign = found[2], result = found[3];
  const bool has_two = found[5].matched;
  std::string wide = "\t{\n\t.reg .b16 \t%narrow<2>;\n\t.reg .b32 \t%wide<2>;\n";
  for (size_t i = 0; i < (has_two ? 2 : 1); ++i) {
    const std::string number = std::to_string(i);
    wide += "\tmov.b16 \t%narrow" + number + ", " + found[4 + i].str() + ";\n";
    wide += "\tcvt." + sign + "32." + sign + "16 \t%wide" + number + ", %narrow" + number + ";\n";
  }
  wide += "\t" + op + "." + sign + "32 \t%wide0, %wide0" + (has_two ? ", %wide1" : "") + ";\n";
  return wide + "\tcvt.u16.u32 \t" + result + ", %wide0;\n\t}";
}

}  // namespace

std::string WidenPtx(std::string_view ptx) {
  std::string wide;
  wide.reserve(ptx.size());
  while (!ptx.empty()) {
    const size_t end = std::min(ptx.find('\n'), ptx.size());
    wide += Wide(std::string(ptx.substr(0, end)));
    if (end < ptx.size()) wide += '\n';
    ptx.remove_prefix(std::min(end + 1, ptx.size()));
  }
  return wide;
}

}  // namespace lockstep
