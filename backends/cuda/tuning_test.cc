// The algorithm that a product uses, and the engine of a convolution, on the fakes. Of the six algorithms that the
// fake's heuristics recommend, number 4 is the fastest usable one.

#include "backends/cuda/tuning.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "backends/cuda/choice_cache.h"
#include "backends/cuda/tunable_product.h"
#include "backends/run_in_process.h"
#include "core/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/load.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kProduct[] = R"(graph @f(%x: f32[5,40], %y: f32[40,7]) -> (z: f32[5,7]) {
  %z = matmul %x, %y : f32[5,7] @"onnx:/fc/MatMul"
  return %z
})";
constexpr char kKey[] = "1x[5,40]x[40,7] f32, aligned to 64";
// All that a choice depends on, apart from the problem.
constexpr char kMachine[] = "\"Fake GPU, 132 multiprocessors, CUDA driver 13.0.0, cuBLASLt 13.1.0\"";

// Gives the test its own folder, with the file in it.
class TuningTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
    fake_.TakeCalls();
  }
  void TearDown() override { EXPECT_EQ(fake_.live(), 0) << "handles or descriptors that are not destroyed"; }

  std::string path() const { return folder_ + "/lockstep/choices.json"; }
  std::string Contents() const {
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const {
    std::filesystem::create_directories(folder_ + "/lockstep");
    std::ofstream(path()) << text;
  }
  // Changes the number of each algorithm in the file.
  void Renumber(const std::string& number) const {
    const std::regex word("0000000000000004((0040){4})");  // the number, then the alignments
    const std::string text = std::regex_replace(Contents(), word, "000000000000000" + number + "$1");
    ASSERT_NE(text, Contents());
    Write(text);
  }
  // Returns the product calls of loading `text` and running it once.
  std::vector<std::string> CallsOf(const std::string& text, bool tune = true) {
    const Graph graph = ParseForTest(text);
    CompileOptions options;
    options.tune = tune;
    const auto results = RunOnFake(graph, InputsForTest(graph), options);
    EXPECT_TRUE(results.ok()) << results.status();
    if (results.ok()) results_ = *results;
    return fake_.TakeCalls();
  }

  std::string folder_;
  std::vector<Tensor> results_;
  FakeCublasLt& fake_ = TheFakeCublasLt();
};

TEST_F(TuningTest, WithoutTuningItIsTheFirstOfTheHeuristics) {
  EXPECT_THAT(CallsOf(kProduct, /*tune=*/false), ElementsAre(EndsWith("epilogue 1")));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(TuningTest, TheFastestThatRunsIsTaken) {
  const std::vector<std::string> calls = CallsOf(kProduct);
  EXPECT_THAT(calls, SizeIs(3 * (1 + 3 * 4) + 1)) << "three that run, each warmed up and timed, and the program's";
  EXPECT_THAT(calls.back(), EndsWith("algorithm 4"));
  EXPECT_THAT(Contents(), AllOf(HasSubstr("\"format\": 2"), HasSubstr(kMachine), HasSubstr(kKey)));
}

// The bits are also the same, and differ from those of the first choice.
TEST_F(TuningTest, TheSecondProgramTakesWhatTheFirstChose) {
  (void)CallsOf(kProduct);
  const std::vector<Tensor> first = results_;
  const std::string file = Contents();
  EXPECT_THAT(CallsOf(kProduct), ElementsAre(EndsWith("algorithm 4")));
  EXPECT_EQ(results_, first);
  EXPECT_EQ(Contents(), file);
  (void)CallsOf(kProduct, /*tune=*/false);
  EXPECT_NE(results_, first) << "the fake's algorithms would not differ";
}

TEST_F(TuningTest, TheFileIsBelieved) {
  (void)CallsOf(kProduct);
  Renumber("5");
  EXPECT_THAT(CallsOf(kProduct), ElementsAre(EndsWith("algorithm 5")));
}

TEST_F(TuningTest, WhatTheLibraryDoesNotTakeIsTimedAgain) {
  (void)CallsOf(kProduct);
  const std::string file = Contents();
  for (const char* number : {"9", "1"}) {  // no such algorithm; one whose workspace is too large
    Renumber(number);
    EXPECT_THAT(CallsOf(kProduct), AllOf(SizeIs(40), Contains(EndsWith("algorithm 5"))));
    EXPECT_EQ(Contents(), file);
  }
}

TEST_F(TuningTest, EqualProblemsAreTimedOnceAndOthersApart) {
  const std::vector<std::string> calls = CallsOf(R"(graph @f(%x: f32[5,5], %y: f32[5,5]) -> (r: f32[5,5]) {
    %a = matmul %x, %y : f32[5,5]
    %b = matmul %a, %y : f32[5,5]
    %r = matmul %b, %y {transpose_b=true} : f32[5,5]
    return %r
  })");
  EXPECT_THAT(calls, SizeIs(2 * 39 + 3));
  EXPECT_THAT(Contents(), AllOf(HasSubstr("1x[5,5]x[5,5] f32, aligned to 64"),
                                HasSubstr("1x[5,5]x[5,5] f32, b transposed, aligned to 64")));
}

TEST_F(TuningTest, ADamagedFileIsWrittenAnew) {
  (void)CallsOf(kProduct);
  const std::string file = Contents();
  const std::string others[] = {"",
                                "{",
                                file.substr(0, file.size() / 2),
                                "[1, 2]",
                                R"({"format": 1, "machines": {}})",
                                R"({"format": 2, "machines": 3})"};
  for (const std::string& text : others) {
    Write(text);
    testing::internal::CaptureStderr();
    EXPECT_THAT(CallsOf(kProduct), SizeIs(40)) << text;
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("will be replaced"));
    EXPECT_EQ(Contents(), file);
  }
  for (const char* entry : {"\"xy\"", "17"}) {  // entries that are not algorithms
    Write(std::regex_replace(file, std::regex("\"[0-9a-f]{128}\""), entry));
    EXPECT_THAT(CallsOf(kProduct), SizeIs(40)) << entry;
    EXPECT_EQ(Contents(), file);
  }
}

TEST_F(TuningTest, AFolderThatCannotBeWrittenIsNoError) {
  std::ofstream(folder_) << "a file where the folder should be";
  testing::internal::CaptureStderr();
  EXPECT_THAT(CallsOf(kProduct), SizeIs(40));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("choices by time are not kept: "));
  EXPECT_THAT(CallsOf(kProduct).back(), EndsWith("algorithm 4"));
}

// Slices of a loop are adjacent in memory: the second slice of x begins 60 bytes after the first.
TEST_F(TuningTest, AlgorithmsFitHowSlicesAreAligned) {
  const std::vector<std::string> calls =
      CallsOf(R"(graph @f(%h: f32[3,5], %x: f32[4,3,5], %w: f32[5,5]) -> (h: f32[3,5], y: f32[4,3,5]) {
    %last, %all = scan %h, %x, %w {carried=1, length=4, scanned=1, body=
      graph @step(%h: f32[3,5], %x: f32[3,5], %w: f32[5,5]) -> (h: f32[3,5], y: f32[3,5]) {
        %z = matmul %x, %w : f32[3,5]
        %n = add %z, %h : f32[3,5]
        return %n, %n
      }} : f32[3,5], f32[4,3,5]
    return %last, %all
  })");
  EXPECT_THAT(calls, SizeIs(39 + 4));
  EXPECT_THAT(Contents(), HasSubstr("f32, aligned to 4\""));
}

// The parts of a product that is split along its inner dimension are added in f32, like the whole: f16 cannot represent
// 2049.
TEST_F(TuningTest, PartsOfSumsIn16BitsAreAddedInF32) {
  for (const std::string dtype : {"f16", "bf16"}) {
    const double large = dtype == "f16" ? 2048 : 256;
    const Graph graph = ParseForTest("graph @f(%x: " + dtype + "[1,4], %w: " + dtype + "[4,1]) -> (y: " + dtype +
                                     "[1,1]) {\n%y = matmul %x, %w : " + dtype + "[1,1]\nreturn %y\n}");
    const std::vector<double> x = {large, 1, 1, 0}, w = {1, 1, 1, 1};
    const DType type = graph.inputs()[0].value.type().dtype;
    for (bool tune : {false, true}) {
      CompileOptions options;
      options.tune = tune;
      fake_.TakeCalls();
      const auto found = RunOnFake(
          graph, {Tensor::Of<double>({1, 4}, x).Converted(type), Tensor::Of<double>({4, 1}, w).Converted(type)},
          options);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ((*found)[0].At(0), large + 2) << dtype;
      EXPECT_THAT(fake_.TakeCalls(), Each(testing::Not(EndsWith("algorithm 6"))));
    }
    EXPECT_THAT(Contents(), HasSubstr("1x[1,4]x[4,1] " + dtype + ", parts added in f32, aligned to 64\""));
  }
}

// --- Convolutions ----------------------------------------------------------------------------------------------------

constexpr char kTwoConvolutions[] =
    R"(graph @f(%x: f32[2,3,5,5], %w: f32[4,3,3,3]) -> (y: f32[2,4,3,3], z: f32[2,4,3,3]) {
  %y = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1]} : f32[2,4,3,3]
  %n = neg %x : f32[2,3,5,5]
  %z = convolution %n, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1]} : f32[2,4,3,3]
  return %y, %z
})";

class TuningConvolutions : public TuningTest {
 protected:
  void SetUp() override {
    TuningTest::SetUp();
    Recommend({20, 30});
  }
  void TearDown() override {
    cudnn_.ResetEngines();
    EXPECT_EQ(cudnn_.live(), 0);
  }
  // Mode A recommends engine 1, an engine that must not be used, and engine 2, which take these milliseconds; mode B
  // recommends engine 3, which takes 10.
  void Recommend(const std::vector<int>& times) {
    const auto plain = [](int64_t index, int time) {
      FakeEngine engine = {.index = index};
      engine.time = std::chrono::milliseconds(time);
      return engine;
    };
    cudnn_.SetEngines(
        CUDNN_HEUR_MODE_A,
        {plain(1, times[0]), {.index = 9, .notes = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}}, plain(2, times[1])});
    cudnn_.SetEngines(CUDNN_HEUR_MODE_B, {plain(3, 10)});
    cudnn_.SetEngines(CUDNN_HEUR_MODE_FALLBACK, {});
    cudnn_.TakeCalls();
  }
  // Returns the engine of each call, the program's two last.
  std::vector<std::string> EnginesOf(bool tune) {
    (void)CallsOf(kTwoConvolutions, tune);
    std::vector<std::string> engines;
    for (const std::string& call : cudnn_.TakeCalls()) engines.push_back(call.substr(call.rfind(", ") + 2));
    return engines;
  }

  FakeCudnn& cudnn_ = TheFakeCudnn();
};

TEST_F(TuningConvolutions, WithoutTuningItIsTheFirstRecommendation) {
  EXPECT_THAT(EnginesOf(/*tune=*/false), ElementsAre("engine 1", "engine 1"));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(TuningConvolutions, TheFastestIsTakenAndStored) {
  const std::vector<std::string> engines = EnginesOf(/*tune=*/true);
  ASSERT_THAT(engines, SizeIs(3 * (1 + 3 * 4) + 2)) << "equal problems are timed once";
  EXPECT_THAT(std::vector(engines.end() - 2, engines.end()), Each("engine 3"));
  EXPECT_THAT(Contents(), AllOf(HasSubstr("mode B, number 1, engine 3"), HasSubstr("cuDNN ")));
  EXPECT_THAT(EnginesOf(/*tune=*/true), ElementsAre("engine 3", "engine 3")) << "nothing is timed again";
}

TEST_F(TuningConvolutions, AnEngineThatIsNotRecommendedAnyMoreIsTimedAgain) {
  (void)EnginesOf(/*tune=*/true);
  cudnn_.SetEngines(CUDNN_HEUR_MODE_B, {{.index = 4}});
  cudnn_.TakeCalls();
  EXPECT_THAT(EnginesOf(/*tune=*/true), SizeIs(3 * (1 + 3 * 4) + 2));
  EXPECT_THAT(Contents(), HasSubstr("mode B, number 1, engine 4"));
}

TEST_F(TuningConvolutions, ASmallGainIsNone) {
  Recommend({1000, 999});
  cudnn_.SetEngines(CUDNN_HEUR_MODE_B, {});
  (void)EnginesOf(/*tune=*/true);
  EXPECT_THAT(Contents(), HasSubstr("mode A, number 1, engine 1"));
}

// --- Several ranks ---------------------------------------------------------------------------------------------------

struct Rank {
  std::string machine = "machine A", cache;
};

// Returns the choice of each of two ranks: the algorithm's number, or its error.
std::vector<std::string> Choose(const std::vector<Rank>& ranks) {
  const LoadedFakeDriver fake = LoadFakeDriver({.gpus = 2});
  const Graph graph = ParseForTest(kProduct);
  const Node* product = nullptr;
  for (const Node& node : graph.nodes()) product = &node;
  std::vector<std::string> chosen(ranks.size());
  const absl::Status status = ForEachRank(static_cast<int>(ranks.size()), [&](Communicator& world) -> absl::Status {
    const auto rank = static_cast<size_t>(world.rank());
    ASSIGN_OR_RETURN(const auto device, CudaDevice::Create(fake.api, world.rank()));
    auto library = std::make_shared<CublasLtHandle>("cublasLtCreate");
    RETURN_IF_ERROR(library->Open());
    const auto chooses = std::make_shared<Product>(MatMulProblem(*product, false, 64), uint64_t{1} << 20, library);
    const TunableOfOp products[] = {{std::make_shared<TunableProduct>(chooses), "matmul %z"}};
    RETURN_IF_ERROR(products[0].problem->Open());
    RETURN_IF_ERROR(TakeFastest(products, {ranks[rank].machine, ranks[rank].cache}, *device, world));
    chosen[rank] = std::to_string(chooses->chosen().data[4]);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(fake.driver.misuse(), IsEmpty());
  return chosen;
}

TEST_F(TuningTest, AllRanksTakeTheChoiceOfRank0) {
  std::filesystem::create_directories(folder_);
  const std::string zero = folder_ + "/zero.json", one = folder_ + "/one.json";
  EXPECT_THAT(Choose({{.cache = zero}, {.cache = one}}), Each("4"));
  EXPECT_FALSE(std::filesystem::exists(one));
  EXPECT_THAT(fake_.TakeCalls(), SizeIs(39)) << "rank 1 times nothing";

  // Rank 1 has stored another algorithm.
  Choices others = ChoiceCache(zero, "machine A").Read();
  ASSERT_THAT(others, SizeIs(1));
  constexpr size_t kLastDigit = 5 * 16 - 1;  // of the fifth word, which is the number
  ASSERT_EQ(others.begin()->second[kLastDigit], '4');
  others.begin()->second[kLastDigit] = '5';
  (void)ChoiceCache(one, "machine A").Add(others, {});
  EXPECT_THAT(Choose({{.cache = zero}, {.cache = one}}), Each("4"));
  EXPECT_THAT(Choose({{.cache = one}, {.cache = zero}}), Each("5"));
  EXPECT_THAT(fake_.TakeCalls(), IsEmpty());
}

TEST_F(TuningTest, AnotherMachineHasItsOwnChoices) {
  std::filesystem::create_directories(folder_);
  const std::string file = folder_ + "/file.json";
  (void)Choose({{.machine = "machine A", .cache = file}});
  (void)Choose({{.machine = "machine B", .cache = file}});
  EXPECT_THAT(fake_.TakeCalls(), SizeIs(2 * 39));
  (void)Choose({{.machine = "machine A", .cache = file}});
  (void)Choose({{.machine = "machine B", .cache = file}});
  EXPECT_THAT(fake_.TakeCalls(), IsEmpty());
}

// --- The file ------------------------------------------------------------------------------------------------------

// The second writer uses the first one's choice, as the next program will.
TEST_F(TuningTest, WhatIsThereStays) {
  const ChoiceCache cache(path(), "m");
  EXPECT_EQ(cache.Add({{"p", "1"}}, {}).at("p"), "1");
  EXPECT_EQ(cache.Add({{"p", "2"}}, {}).at("p"), "1");
  EXPECT_EQ(cache.Add({{"p", "2"}}, {{"p", "3"}}).at("p"), "1");
  EXPECT_EQ(cache.Add({{"p", "2"}}, {{"p", "1"}}).at("p"), "2");
  EXPECT_EQ(cache.Read().at("p"), "2");
}

TEST_F(TuningTest, SeveralWriteAtOnceAndNothingIsLost) {
  constexpr int kWriters = 8, kEach = 10;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      const ChoiceCache cache(path(), "m");
      for (int i = 0; i < kEach; ++i) {
        const std::string number = std::to_string(writer * kEach + i);
        (void)cache.Add({{"p" + number, number}, {"shared", number}}, {});
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const Choices all = ChoiceCache(path(), "m").Read();
  EXPECT_THAT(all, SizeIs(kWriters * kEach + 1));
  for (const auto& [key, choice] : all) {
    if (key != "shared") EXPECT_EQ(choice, key.substr(1));
  }
}

}  // namespace
}  // namespace lockstep::cuda
