// find_nan and check_numerics on every backend: a graph is made to fail in one op, which must be named. Python's tests
// of them (test/python/test_numerics.py) run on CPUs.

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/compile_and_load.h"
#include "backends/conformance/tested_backend.h"
#include "backends/find_non_finite.h"
#include "backends/numerics_check.h"
#include "backends/run_in_process.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// The logarithm is NaN for a negative row of x. The exponential is infinite for the same row, and has no effect: the
// smaller of it and 1 is finite.
constexpr char kNet[] = R"(
graph @net(%x: f32[4,3] split(0), state %w: f32[3]) -> (y: f32[4,3], %w: f32[3]) {
  %big = constant {value=dense<f32[]: -1000.0>} : f32[]
  %bigs = broadcast %big {dims=[], shape=[4,3]} : f32[4,3] @"/big"
  %s = mul %x, %bigs : f32[4,3] @"/scale"
  %e = exp %s : f32[4,3] @"/exp"
  %one = constant {value=dense<f32[]: 1.0>} : f32[]
  %ones = broadcast %one {dims=[], shape=[4,3]} : f32[4,3] @"/one"
  %m = min %e, %ones : f32[4,3] @"/min"
  %l = log %x : f32[4,3] @"/log"
  %y = add %l, %m : f32[4,3] @"/sum"
  %g = reduce_sum %y {dims=[0]} : f32[3] @"/gradient"
  %w1 = sgd %w, %g {learning_rate=0.5} : f32[3]
  return %y, %w1
}
)";

Tensor Rows(float last) { return Tensor::Of<float>(Shape({2, 3}), {1, 1, 1, 1, 1, last}); }

std::vector<NamedInput> InputsOf(const Tensor& x) { return {{"x", {x.type(), x.bytes()}}}; }

// Runs f on two ranks with the program. Rank 1 has the last row.
template <typename F>
void OnTwoRanks(const char* text, const Backend& backend, F f) {
  const absl::Status status = ForEachRank(2, [&](Communicator& communicator) -> absl::Status {
    ASSIGN_OR_RETURN(const Graph graph, ParseGraph(text));
    ASSIGN_OR_RETURN(LoadedProgram loaded, CompileAndLoad(graph, {}, backend, LoadOptions(), communicator));
    return f(loaded, communicator);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(NonFinite, TheCauseIsNamedAndNotAnInfinityThatHasNoEffect) {
  OnTwoRanks(kNet, TestedBackend(), [](LoadedProgram& loaded, Communicator& world) -> absl::Status {
    const Tensor wrong = Rows(world.rank() == 1 ? -1.F : 1.F);
    ASSIGN_OR_RETURN(const auto found, FindNonFinite(loaded, InputsOf(wrong), world));
    EXPECT_TRUE(found.has_value());
    if (!found) return absl::OkStatus();
    EXPECT_EQ(found->ToString(3),
              "step 3, rank 1: log makes %l: 1 NaN of 6, first at [1, 2], the others 0.0 to 0.0, at /log\n  from %x: "
              "-1.0 to 1.0");
    EXPECT_FALSE(found->only_optimized);
    return absl::OkStatus();
  });
}

// exp(1000) is infinite, and log(0.5) finite.
TEST(NonFinite, AnInfinityThatHasNoEffectIsNotFound) {
  std::string text = kNet;
  text.replace(text.find("-1000.0"), 7, "1000.0");
  OnTwoRanks(text.c_str(), TestedBackend(), [](LoadedProgram& loaded, Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const auto found, FindNonFinite(loaded, InputsOf(Rows(0.5)), world));
    EXPECT_FALSE(found.has_value()) << found->ToString(0);
    return absl::OkStatus();
  });
}

// The states that the program updates are not meant to be infinite.
TEST(NonFinite, AnInfiniteWeightIsNamed) {
  std::string text = kNet;
  text.replace(text.find("log %x"), 6, "mul %x, %ww");
  text.insert(text.find("  %l = "), "  %ww = broadcast %w {dims=[1], shape=[4,3]} : f32[4,3]\n");
  OnTwoRanks(text.c_str(), TestedBackend(), [](LoadedProgram& loaded, Communicator& world) -> absl::Status {
    const Tensor w = Tensor::Of<float>(Shape({3}), {0, std::numeric_limits<float>::infinity(), 0});
    RETURN_IF_ERROR(loaded.executor->AssignState("w", {w.type(), w.bytes()}));
    ASSIGN_OR_RETURN(const auto found, FindNonFinite(loaded, InputsOf(Rows(1)), world));
    EXPECT_TRUE(found.has_value());
    if (!found) return absl::OkStatus();
    EXPECT_EQ(found->ToString(0), "step 0, rank 0: state %w: 1 infinite of 3, first at [1], the others 0.0 to 0.0");
    return absl::OkStatus();
  });
}

TEST(NumericsCheck, UndoesAWrongStepAndNamesTheOp) {
  OnTwoRanks(kNet, TestedBackend(), [](LoadedProgram& loaded, Communicator& world) -> absl::Status {
    NumericsCheck check(loaded, world);
    const auto step = [&](int64_t number, float last) {
      const Tensor x = Rows(last);
      Tensor y(x.type());
      const std::vector<NamedResult> results = {{"y", {y.type(), y.mutable_bytes()}}};
      return check.Run(number, InputsOf(x), results, [&] { return loaded.executor->Run(InputsOf(x), results); });
    };
    const auto weights = [&] {
      Tensor w(TensorType{DType::kF32, Shape({3})});
      EXPECT_TRUE(loaded.executor->ReadState("w", {w.type(), w.mutable_bytes()}).ok());
      return w;
    };
    RETURN_IF_ERROR(step(0, 2));
    const Tensor before = weights();
    const absl::Status wrong = step(1, world.rank() == 1 ? -1.F : 1.F);
    EXPECT_THAT(std::string(wrong.message()), HasSubstr("check_numerics: step 1, rank 1: log makes %l: 1 NaN of 6"));
    EXPECT_EQ(weights(), before);
    RETURN_IF_ERROR(step(1, 2));
    EXPECT_NE(weights(), before);
    return absl::OkStatus();
  });
}

// A CPU whose kernels of several ops make the first element infinite.
class OverflowingKernels final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  absl::StatusOr<Target> MakeTarget(const TargetOptions& options) const override { return cpu_->MakeTarget(options); }
  absl::StatusOr<RankDevice> OpenDevice(Communicator& world) const override { return cpu_->OpenDevice(world); }
  absl::StatusOr<Program> Lower(const Graph& graph, const Target& target) const override {
    ASSIGN_OR_RETURN(Program program, cpu_->Lower(graph, target));
    for (Instruction& instruction : program.instructions) {
      if (instruction.kernel.name != "llvm.fusion") continue;
      instruction.kernel.run = [run = std::move(instruction.kernel.run)](const KernelArgs& args) mutable {
        RETURN_IF_ERROR(run(args));
        *args.write<float>(0) = std::numeric_limits<float>::infinity();
        return absl::OkStatus();
      };
    }
    return program;
  }

 private:
  const std::unique_ptr<Backend> cpu_ = *CreateBackend("cpu");
};

constexpr char kFused[] = R"(
graph @net(%x: f32[4,3] split(0)) -> (y: f32[4,3]) {
  %a = mul %x, %x : f32[4,3] @"/square"
  %y = tanh %a : f32[4,3] @"/tanh"
  return %y
}
)";

TEST(NonFinite, AnInfinityOfAFusedKernelAloneIsNamed) {
  if (IsGpu()) GTEST_SKIP() << "writes to host memory";
  OnTwoRanks(kFused, OverflowingKernels(), [](LoadedProgram& loaded, Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const auto found, FindNonFinite(loaded, InputsOf(Rows(2)), world));
    EXPECT_TRUE(found.has_value());
    if (!found) return absl::OkStatus();
    EXPECT_THAT(found->ToString(0), HasSubstr("step 0, rank 0: the kernel of mul at /square, tanh at /tanh makes %y: 1 "
                                              "infinite of 6"));
    EXPECT_THAT(found->ToString(0), HasSubstr("only in the optimized program"));
    EXPECT_TRUE(found->only_optimized);
    return absl::OkStatus();
  });
}

TEST(NumericsCheck, DoesNotTakeAnInfinityOfAFusedKernelAsIntended) {
  if (IsGpu()) GTEST_SKIP() << "writes to host memory";
  OnTwoRanks(kFused, OverflowingKernels(), [](LoadedProgram& loaded, Communicator& world) -> absl::Status {
    NumericsCheck check(loaded, world);
    const Tensor x = Rows(2);
    Tensor y(x.type());
    const std::vector<NamedResult> results = {{"y", {y.type(), y.mutable_bytes()}}};
    for (int step = 0; step < 2; ++step) {
      const auto run = [&] { return loaded.executor->Run(InputsOf(x), results); };
      const absl::Status wrong = check.Run(step, InputsOf(x), results, run);
      EXPECT_THAT(std::string(wrong.message()), HasSubstr("the kernel of mul at /square, tanh at /tanh makes %y"));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep
