// Checks from an executable's steps that values sent between ranks are not copied between the kernel that computes them
// and the one that reads what arrives: the kernel writes into registered memory, the collective works there, and the
// reader, such as an optimizer, reads there.

#include <map>
#include <set>

#include "backends/backend.h"
#include "backends/compile.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"

namespace lockstep {
namespace {

constexpr char kTrainedModel[] = R"(
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
  ASSIGN_OR_RETURN(Graph graph, ParseGraph(kTrainedModel));
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
        EXPECT_EQ(kind_of(gradient.slice), BufferKind::kRegistered);
        reduced.insert(gradient.name);
        // An earlier kernel writes exactly these bytes.
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
          if (kind_of(read.slice) == BufferKind::kRegistered) {
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

// All collectives; a kernel computes each operand and reads each result.
constexpr char kAllCollectives[] = R"(
mesh {data=2}
local graph @all(%x: f32[8,8] local) -> (f: f32[8,4] split(1), z: f32[4,8] split(0)) {
  %a = matmul %x, %x : f32[8,8] local
  %ar = all_reduce %a {axis=data, kind=sum} : f32[8,8]
  %b = matmul %x, %ar : f32[8,8] local
  %rs = reduce_scatter %b {axis=data, dim=0, kind=sum} : f32[4,8] split(0)
  %c = matmul %rs, %ar : f32[4,8] split(0)
  %ag = all_gather %c {axis=data, dim=0} : f32[8,8]
  %d = matmul %c, %ag : f32[4,8] split(0)
  %at = all_to_all %d {axis=data, concat_dim=0, split_dim=1} : f32[8,4] split(1)
  %f = matmul %ag, %at : f32[8,4] split(1)
  %g = matmul %x, %ag : f32[8,8] local
  %cp = collective_permute %g {axis=data, sources=[0,1], targets=[1,0]} : f32[8,8] local
  %h = matmul %cp, %ag : f32[8,8] local
  %cb = collective_broadcast %h {axis=data, root=1} : f32[8,8]
  %i = matmul %c, %cb : f32[4,8] split(0)
  %cg = collective_gather %i {axis=data, dim=0, root=0} : f32[8,8] local
  %j = matmul %cg, %ag : f32[8,8] local
  %cs = collective_scatter %j {axis=data, dim=0, root=0} : f32[4,8] split(0)
  %z = matmul %cs, %ag : f32[4,8] split(0)
  return %f, %z
}
)";

// The pattern of an optimizer whose states the ranks split: gradients are reduced to slices in one bucket, and the new
// weights are gathered in another.
constexpr char kBuckets[] = R"(
mesh {data=2}
local graph @buckets(%x: f32[8,8] local) -> (y: f32[8,8], z: f32[4,8]) {
  %a = matmul %x, %x : f32[8,8] local
  %t = transpose %a {permutation=[1,0]} : f32[8,8] local
  %b = slice %t {limit=[4,8], start=[0,0], stride=[1,1]} : f32[4,8] local
  %ga, %gb = reduce_scatter %a, %b {axis=data, bucket=0, dim=0, kind=sum} : f32[4,8] split(0), f32[2,8] split(0)
  %na = mul %ga, %ga : f32[4,8] split(0)
  %nb = mul %gb, %gb : f32[2,8] split(0)
  %wa, %wb = all_gather %na, %nb {axis=data, bucket=1, dim=0} : f32[8,8], f32[4,8]
  %y = matmul %wa, %wa : f32[8,8]
  %z = matmul %wb, %wa : f32[4,8]
  return %y, %z
}
)";

class NoStepCopies : public testing::TestWithParam<std::pair<const char*, size_t>> {};

TEST_P(NoStepCopies, WhatTravelsIsBornInRegisteredMemory) {
  const absl::StatusOr<Graph> graph = ParseGraph(GetParam().first);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto executable = Compile(graph->Clone(), **backend, CompileOptions());
  ASSERT_TRUE(executable.ok()) << executable.status();
  SCOPED_TRACE(executable->ToString());
  const StepList& steps = executable->steps;
  // True if one of the kernels in [begin, end) accesses exactly these bytes.
  const auto is_touched = [&](size_t begin, size_t end, const BufferSlice& slice, bool by_writing) {
    for (size_t i = begin; i < end; ++i) {
      const StepInfo& step = steps[i]->info();
      if (step.kind != StepKind::kKernel) continue;
      for (const StepOperand& operand : by_writing ? step.writes : step.reads) {
        if (operand.slice == slice) return true;
      }
    }
    return false;
  };
  std::set<CollectiveOp> seen;
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepInfo& step = steps[i]->info();
    EXPECT_NE(step.kind, StepKind::kCopy) << step.ToString();
    if (!step.collective) continue;
    seen.insert(step.collective->op);
    for (const BufferSlice& slice : {step.collective->input, step.collective->output}) {
      EXPECT_EQ(executable->buffers[static_cast<size_t>(slice.buffer)].kind, BufferKind::kRegistered);
    }
    for (const StepOperand& operand : step.reads) EXPECT_TRUE(is_touched(0, i, operand.slice, true)) << operand.name;
    for (const StepOperand& result : step.writes)
      EXPECT_TRUE(is_touched(i, steps.size(), result.slice, false)) << result.name;
  }
  EXPECT_EQ(seen.size(), GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(Programs, NoStepCopies,
                         testing::Values(std::pair(kAllCollectives, size_t{8}), std::pair(kBuckets, size_t{2})));

// Registered memory is reused by lifetimes, like the arena.
TEST(RegisteredMemory, IsUsedAgain) {
  const auto graph = ParseGraph(R"(
mesh {data=2}
local graph @chain(%x: f32[64,64] local) -> (z: f32[64,64]) {
  %a = matmul %x, %x : f32[64,64] local
  %ra = all_reduce %a {axis=data, kind=sum} : f32[64,64]
  %b = matmul %x, %ra : f32[64,64] local
  %rb = all_reduce %b {axis=data, kind=sum} : f32[64,64]
  %c = matmul %x, %rb : f32[64,64] local
  %rc = all_reduce %c {axis=data, kind=sum} : f32[64,64]
  %z = matmul %rc, %rc : f32[64,64]
  return %z
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto executable = Compile(graph->Clone(), **backend, CompileOptions());
  ASSERT_TRUE(executable.ok()) << executable.status();
  EXPECT_EQ(executable->BytesOf(BufferKind::kRegistered), 2u * 64 * 64 * sizeof(float)) << executable->ToString();
}

passes::OptimizerSpec Momentum() { return {"SGD", {{"learning_rate", 0.01}, {"momentum", 0.9}}}; }
passes::OptimizerSpec Adam() { return {"Adam", {}}; }

INSTANTIATE_TEST_SUITE_P(Optimizers, ZeroCopy, testing::Values(passes::OptimizerSpec(), Momentum(), Adam()));

}  // namespace
}  // namespace lockstep
