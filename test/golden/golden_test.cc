// Runs the golden files of this folder, one test per case. To write the results into the files as the new expectations:
//
//   bazel run --test_sharding_strategy=disabled //test/golden:golden_test -- --update
//
// Then read the diff: it is what you promise.
//
// An error becomes an expectation only where `// ==> error:` already stands, so a broken pass does not update its
// tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "passes/pass_table.h"
#include "test/golden/golden_file.h"

namespace lockstep {
namespace {

constexpr char kFolder[] = "test/golden";

class GoldenTest : public testing::Test {
 public:
  GoldenTest(std::string file, GoldenCase golden_case) : file_(std::move(file)), case_(std::move(golden_case)) {}

  void TestBody() override {
    const absl::StatusOr<std::string> actual = RunGoldenCase(case_);
    ASSERT_TRUE(actual.ok()) << file_ << ":" << case_.line << ": " << actual.status().message();
    EXPECT_EQ(*actual, case_.expected) << file_ << ":" << case_.line << ": passes=" << case_.passes;
  }

 private:
  std::string file_;
  GoldenCase case_;
};

// Each pass that promises to keep something is checked in at least one golden case.
class MeaningTest : public testing::Test {
 public:
  explicit MeaningTest(std::vector<GoldenCase> cases) : cases_(std::move(cases)) {}

  void TestBody() override {
    std::map<std::string, int> num_compared;
    for (const GoldenCase& golden_case : cases_) {
      const absl::Status status = RunGoldenCase(golden_case, &num_compared).status();
      EXPECT_TRUE(status.ok()) << golden_case.name << ": " << status;
    }
    for (const passes::PassEntry& entry : passes::PassTable()) {
      const absl::StatusOr<passes::Pass> pass = entry.make({});
      ASSERT_TRUE(pass.ok()) << pass.status();
      if (pass->keeps == passes::Keeps::kNothing || entry.name == "check-shares") continue;  // which changes nothing
      EXPECT_GT(num_compared[entry.name], 0)
          << "no case in test/golden/ compares results before and after " << entry.name;
    }
  }

 private:
  std::vector<GoldenCase> cases_;
};

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> GoldenFiles(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".ir") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool IsError(std::string_view text) { return text.starts_with("error:"); }

int Update() {
  int exit_code = 0;
  // Set by `bazel run`: the path of the sources.
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  for (const std::filesystem::path& path : GoldenFiles(std::filesystem::path(workspace ? workspace : ".") / kFolder)) {
    const std::string before = ReadFile(path);
    std::vector<GoldenCase> cases = ParseGoldenFile(before);
    for (GoldenCase& golden_case : cases) {
      absl::StatusOr<std::string> actual = RunGoldenCase(golden_case);
      if (!actual.ok()) {
        std::fprintf(stderr, "%s:%d: %s\n", path.c_str(), golden_case.line,
                     std::string(actual.status().message()).c_str());
        return 1;
      }
      if (IsError(*actual) && !IsError(golden_case.expected)) {
        std::fprintf(stderr, "%s:%d: left as it is; it now ends with %s\n", path.c_str(), golden_case.line,
                     actual->c_str());
        exit_code = 1;
        continue;
      }
      golden_case.expected = *std::move(actual);
    }
    const std::string after = FormatGoldenFile(cases);
    if (after == before) continue;
    std::ofstream(path) << after;
    std::printf("updated %s\n", path.c_str());
  }
  return exit_code;
}

void RegisterTests() {
  std::vector<GoldenCase> all;
  for (const std::filesystem::path& path : GoldenFiles(kFolder)) {
    std::set<std::string> names;
    for (const GoldenCase& golden_case : ParseGoldenFile(ReadFile(path))) {
      all.push_back(golden_case);
      std::string name = golden_case.name;
      for (int i = 2; !names.insert(name).second; ++i) name = golden_case.name + "_" + std::to_string(i);
      testing::RegisterTest(
          path.stem().c_str(), name.c_str(), nullptr, nullptr, path.c_str(), golden_case.line,
          [file = path.string(), golden_case]() -> GoldenTest* { return new GoldenTest(file, golden_case); });
    }
  }
  testing::RegisterTest("meaning", "IsComparedForEachPass", nullptr, nullptr, __FILE__, __LINE__,
                        [all]() -> MeaningTest* { return new MeaningTest(all); });
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--update") return lockstep::Update();
  lockstep::RegisterTests();
  testing::InitGoogleTest(&argc, argv);
  if (testing::UnitTest::GetInstance()->total_test_count() == 0) {
    std::fprintf(stderr, "no golden files in %s\n", lockstep::kFolder);
    return 1;
  }
  return RUN_ALL_TESTS();
}
