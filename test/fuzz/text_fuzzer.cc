// Coverage-guided fuzzing of the text form: parsing any text must end in a graph that prints as a text of the same
// graph, or in an error whose message is valid text.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/printer.h"
#include "core/text.h"
#include "core/verifier.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const auto graph = ParseGraph({reinterpret_cast<const char*>(data), size});
  if (!graph.ok()) {
    LOCKSTEP_CHECK(FindInvalidText(std::string(graph.status().message())) == std::string_view::npos)
        << "an error whose message is not valid text";
    return 0;
  }
  // A parsed graph may be invalid, such as one with a split scalar.
  LOCKSTEP_CHECK(FindInvalidText(std::string(Verify(*graph).message())) == std::string_view::npos);
  const std::string text = graph->ToString();
  const auto again = ParseGraph(text);
  LOCKSTEP_CHECK(again.ok()) << again.status() << "\n" << text;
  LOCKSTEP_CHECK(again->ToString() == text) << text << "\nis read as\n" << again->ToString();
  return 0;
}
