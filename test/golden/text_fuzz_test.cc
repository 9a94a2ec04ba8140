// Damaged texts: for any text, ParseGraph returns a graph or an error with a line, in bounded time and memory. The
// texts are the golden files' graphs with random edits. In builds with sanitizers these check it too.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "core/printer.h"
#include "core/text.h"
#include "core/verifier.h"
#include "test/golden/golden_file.h"

namespace lockstep {
namespace {

constexpr int kRounds = 100'000;

std::vector<std::string> Texts() {
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator("test/golden")) {
    if (entry.path().extension() != ".ir") continue;
    std::ifstream file(entry.path());
    const std::string content(std::istreambuf_iterator<char>(file), {});
    for (const GoldenCase& golden_case : ParseGoldenFile(content)) {
      texts.push_back(golden_case.input);
      if (golden_case.expected.starts_with("graph") || golden_case.expected.starts_with("mesh"))
        texts.push_back(golden_case.expected);
    }
  }
  return texts;
}

class Damage {
 public:
  explicit Damage(const std::vector<std::string>& texts) : texts_(texts) {}

  std::string Next() {
    std::string text = texts_[Below(texts_.size())];
    for (size_t edits = Below(3) == 0 ? 3 : 1; edits > 0 && !text.empty(); --edits) Edit(text);
    return text;
  }

 private:
  size_t Below(size_t limit) { return static_cast<size_t>(random_() % limit); }

  void Edit(std::string& text) {
    static constexpr std::array kPieces = {"0",
                                           "-1",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "4611686018427387904",
                                           "99999999999999999999",
                                           "1e999",
                                           "nan",
                                           "inf",
                                           "f32[",
                                           "]",
                                           "{",
                                           "}",
                                           "(",
                                           ")",
                                           "%",
                                           "\"",
                                           "@\"",
                                           "dense<f32[3]: 1.0>",
                                           "dense<",
                                           "graph @g(",
                                           "split(7)",
                                           "partial(sum)",
                                           "local",
                                           "state ",
                                           "mesh {data=2}",
                                           "true",
                                           "[1, 2, 3]",
                                           "[]",
                                           "->",
                                           ",",
                                           ":",
                                           "//",
                                           "\xe4\xb8\xad",
                                           "\xff",
                                           "all_reduce",
                                           "{axis=data, kind=sum}"};
    const size_t at = Below(text.size());
    switch (Below(6)) {
      case 0: text[at] = static_cast<char>(random_()); break;
      case 1: text.erase(at, 1 + Below(12)); break;
      case 2: text.insert(at, text.substr(Below(text.size()), 1 + Below(40))); break;
      case 3: text.insert(at, kPieces[Below(kPieces.size())]); break;
      case 4: text.resize(at); break;
      default: ReplaceNumber(text, at, kPieces[Below(6)]);
    }
  }

  // Replaces the next number from `at` on: an extent, index or attribute.
  static void ReplaceNumber(std::string& text, size_t at, const std::string& number) {
    const size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    text.replace(begin, end - begin, number);
  }

  const std::vector<std::string>& texts_;
  std::mt19937 random_{11};
};

TEST(TextFuzzTest, DamagedTextsAreGraphsOrErrors) {
  const std::vector<std::string> texts = Texts();
  ASSERT_GT(texts.size(), 200u);
  Damage damage(texts);
  int graphs = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = damage.Next();
    SCOPED_TRACE("round " + std::to_string(round) + ":\n" + text);
    const absl::StatusOr<Graph> graph = ParseGraph(text);
    if (!graph.ok()) {
      const std::string message(graph.status().message());
      ASSERT_THAT(message, testing::StartsWith("line "));
      ASSERT_EQ(FindInvalidText(message), std::string::npos) << message;
      continue;
    }
    ++graphs;
    const std::string printed = graph->ToString();
    const absl::StatusOr<Graph> again = ParseGraph(printed);
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_EQ(again->ToString(), printed);
    static_cast<void>(Verify(*graph));  // it may return an error, but must not crash
  }
  EXPECT_GT(graphs, kRounds / 50) << "too few mutations leave a graph";
  EXPECT_LT(graphs, kRounds / 2);
}

TEST(TextFuzzTest, BytesThatAreNoText) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string text = "graph @f(";
    for (size_t i = random() % 60; i > 0; --i) text += static_cast<char>(random());
    const absl::StatusOr<Graph> graph = ParseGraph(text);
    ASSERT_FALSE(graph.ok());
    ASSERT_EQ(FindInvalidText(std::string(graph.status().message())), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
