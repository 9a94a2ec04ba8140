// Bits are flipped in the results of kernels on one rank, which must be named.

#include "backends/hardware_check.h"

#include <string>
#include <vector>

#include "backends/executor_test_support.h"
#include "backends/run_in_process.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

// Flips the lowest bit of a result of a matrix product in some of the computations of a rank.
class Fault final : public StepObserver {
 public:
  // Computations are counted from 0. `last` is the last one that is wrong.
  Fault(int first, int last) : first_(first), last_(last) {}

  absl::Status Before(const StepInfo&, size_t number, const StepContext&) override {
    if (number == 0) ++computation_;
    return absl::OkStatus();
  }
  absl::Status After(const StepInfo& step, size_t, const StepContext& context) override {
    if (step.name == "onednn.matmul" && computation_ >= first_ && computation_ <= last_)
      *context.data(step.writes[0].slice) ^= std::byte{1};
    return absl::OkStatus();
  }

 private:
  const int first_, last_;
  int computation_ = -1;
};

// Runs kStep on ranks of which one is faulty. Returns the error of each.
std::vector<std::string> ErrorsWith(int ranks, int faulty, int first, int last) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  const absl::Status status = ForEachRank(ranks, [&](Communicator& communicator) -> absl::Status {
    ASSIGN_OR_RETURN(const Graph graph, ParseGraph(StepFor(ranks)));
    LoadOptions options;
    options.verify_hardware = 1;
    ASSIGN_OR_RETURN(LoadedProgram loaded, CompileAndLoad(graph, {}, "cpu", options, communicator));
    ASSIGN_OR_RETURN(const auto check, HardwareCheck::Create(loaded, communicator));
    Fault fault(first, last);
    if (communicator.rank() == faulty) check->AlsoObserve(&fault);
    const Batch batch(4);
    const auto run = [&] { return loaded.executor->Run(batch.inputs(), {}); };
    const absl::Status found = check->Run(7, batch.inputs(), {}, run);
    errors[static_cast<size_t>(communicator.rank())] = found.ok() ? "" : std::string(found.message());
    Tensor w(TensorType{DType::kF32, Shape({3, 5})});
    RETURN_IF_ERROR(loaded.executor->ReadState("w", {w.type(), w.mutable_bytes()}));
    EXPECT_EQ(w == Tensor(w.type()), !found.ok());  // zeros, as before the step
    check->AlsoObserve(nullptr);
    return check->Run(8, batch.inputs(), {}, run);  // the ranks may continue
  });
  EXPECT_TRUE(status.ok()) << status;
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors;
}

class Hardware : public testing::TestWithParam<int> {};

TEST_P(Hardware, ThatIsRightIsNotNamed) { EXPECT_EQ(ErrorsWith(GetParam(), -1, 0, 0)[0], ""); }

TEST_P(Hardware, ThatIsWrongOnceIsNamed) {
  for (int faulty = 0; faulty < GetParam(); ++faulty) {
    const std::string error = ErrorsWith(GetParam(), faulty, 0, 0)[0];
    EXPECT_THAT(error, HasSubstr("verify_hardware: step 7 has other bits"));
    EXPECT_THAT(error, HasSubstr("rank " + std::to_string(faulty) + " on host "));
    EXPECT_THAT(error, HasSubstr("computed other bits, first in "));
    EXPECT_THAT(error, HasSubstr("of rank " + std::to_string(faulty) + "'s part"));
    for (int other = 0; other < GetParam(); ++other) {
      if (other != faulty) EXPECT_THAT(error, Not(HasSubstr("rank " + std::to_string(other) + " on host ")));
    }
  }
}

TEST_P(Hardware, ThatIsAlwaysWrongIsNamed) {
  const int ranks = GetParam();
  for (int faulty = 0; faulty < ranks && ranks > 1; ++faulty) {
    const std::string error = ErrorsWith(ranks, faulty, 0, 9)[0];
    if (ranks == 2) {
      EXPECT_THAT(error, HasSubstr("either rank 0 on host "));
      continue;
    }
    const std::string named = "rank " + std::to_string(faulty) + " on host ";
    EXPECT_THAT(error, HasSubstr(named));
    EXPECT_THAT(error, Not(HasSubstr("either")));
    for (int other = 0; other < ranks; ++other) {
      if (other != faulty) EXPECT_THAT(error, Not(HasSubstr("rank " + std::to_string(other) + " on host ")));
    }
  }
}

// The second computation of a rank is that of its neighbour's part.
TEST_P(Hardware, ThatIsWrongWhenItComputesForAnotherIsNamed) {
  const int ranks = GetParam();
  for (int faulty = 0; faulty < ranks; ++faulty) {
    const std::string error = ErrorsWith(ranks, faulty, 1, 1)[0];
    EXPECT_THAT(error, HasSubstr("rank " + std::to_string(faulty) + " on host "));
    EXPECT_THAT(error, HasSubstr("of rank " + std::to_string((faulty + ranks - 1) % ranks) + "'s part"));
  }
}

INSTANTIATE_TEST_SUITE_P(, Hardware, testing::Values(1, 2, 3, 4));

TEST(HardwareCheck, IsMadeOnlyInItsSteps) {
  const absl::Status status = ForEachRank(2, [&](Communicator& communicator) -> absl::Status {
    ASSIGN_OR_RETURN(const Graph graph, ParseGraph(StepFor(2)));
    LoadOptions options;
    options.verify_hardware = 4;
    ASSIGN_OR_RETURN(LoadedProgram loaded, CompileAndLoad(graph, {}, "cpu", options, communicator));
    ASSIGN_OR_RETURN(const auto check, HardwareCheck::Create(loaded, communicator));
    const Batch batch(4);
    for (int64_t step = 0; step < 9; ++step) {
      Fault always(0, 9);
      if (communicator.rank() == 1) check->AlsoObserve(&always);
      const auto run = [&] { return loaded.executor->Run(batch.inputs(), {}); };
      EXPECT_EQ(check->Run(step, batch.inputs(), {}, run).ok(), step != 3 && step != 7) << step;
      check->AlsoObserve(nullptr);
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace lockstep
