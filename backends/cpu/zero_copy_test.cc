// Proves from an executable's steps that a gradient's bytes are never copied between the kernel that computes them and
// the optimizer: the kernel writes into the bucket, the collective works there, and the optimizer reads there.

#include <map>
#include <set>

#include "backends/backend.h"
#include "backends/compile.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"

namespace lockstep {
namespace {

constexpr char kModel[] = R"(
graph @model(%x: f32[8,1,8,8] split(0), state %k: f32[20,1,3,3], state %c: f32[20], state %w: f32[10,720], state %b: f32[10]) -> (logits: f32[8,10] split(0)) {
  %z = convolution %x, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[8,20,6,6]
  %cc = broadcast %c {dims=[1], shape=[8,20,6,6]} : f32[8,20,6,6]
  %h = add %z, %cc : f32[8,20,6,6]
  %a = relu %h : f32[8,20,6,6]
  %f = reshape %a {shape=[8,720]} : f32[8,720]
  %y = matmul %f, %w {transpose_b=true} : f32[8,10]
  %bb = broadcast %b {dims=[1], shape=[8,10]} : f32[8,10]
  %logits = add %y, %bb : f32[8,10]
  return %logits
}
)";

absl::StatusOr<Executable> CompileStep(passes::OptimizerSpec optimizer) {
  ASSIGN_OR_RETURN(Graph graph, ParseGraph(kModel));
  passes::TrainStepSpec spec;
  spec.optimizer = optimizer;
  RETURN_IF_ERROR(passes::MakeTrainStep(graph, spec));
  ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  options.bucket_bytes = 4096;
  return Compile(std::move(graph), *backend, options);
}

class ZeroCopy : public testing::TestWithParam<passes::OptimizerSpec> {};

TEST_P(ZeroCopy, GradientsLiveInTheirBuckets) {
  const auto executable = CompileStep(GetParam());
  ASSERT_TRUE(executable.ok()) << executable.status();
  SCOPED_TRACE(executable->ToString());
  const auto kind_of = [&](const BufferSlice& slice) {
    return executable->buffers[static_cast<size_t>(slice.buffer)].kind;
  };
  std::set<std::string> reduced, states_from_buckets;
  int num_copies = 0;
  for (size_t i = 0; i < executable->steps.size(); ++i) {
    const StepInfo& step = executable->steps[i]->info();
    if (step.kind == StepKind::kCopy) {
      ++num_copies;
      ASSERT_EQ(step.writes[0].name, "loss");  // the caller's memory is not a bucket
    } else if (step.kind == StepKind::kStart) {
      for (const StepOperand& gradient : step.reads) {
        EXPECT_EQ(kind_of(gradient.slice), BufferKind::kBucket);
        reduced.insert(gradient.name);
        // Some kernel before writes exactly these bytes.
        const bool written =
            std::any_of(executable->steps.begin(), executable->steps.begin() + static_cast<std::ptrdiff_t>(i),
                        [&](const auto& earlier) {
                          const auto& writes = earlier->info().writes;
                          return std::any_of(writes.begin(), writes.end(),
                                             [&](const StepOperand& write) { return write.slice == gradient.slice; });
                        });
        EXPECT_TRUE(written) << gradient.name;
      }
    } else if (!step.collective) {
      for (const StepOperand& write : step.writes) {
        if (kind_of(write.slice) != BufferKind::kState) continue;
        for (const StepOperand& read : step.reads) {
          if (kind_of(read.slice) == BufferKind::kBucket) {
            states_from_buckets.insert(executable->buffers[static_cast<size_t>(write.slice.buffer)].name);
          }
        }
      }
    }
  }
  EXPECT_EQ(num_copies, 1);
  EXPECT_EQ(reduced.size(), 5u);  // four gradients and the loss
  for (const std::string state : {"k", "c", "w", "b"}) EXPECT_TRUE(states_from_buckets.contains(state)) << state;
}

passes::OptimizerSpec Momentum() { return {"SGD", {{"learning_rate", 0.01}, {"momentum", 0.9}}}; }
passes::OptimizerSpec Adam() { return {"Adam", {}}; }

INSTANTIATE_TEST_SUITE_P(Optimizers, ZeroCopy, testing::Values(passes::OptimizerSpec(), Momentum(), Adam()));

}  // namespace
}  // namespace lockstep
