#include "runtime/execution/executable.h"

#include <memory>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

class Nothing : public Step {
 public:
  using Step::Step;
  absl::Status Run(StepContext&) override { return absl::OkStatus(); }
};

// The example in the header.
TEST(Executable, PrintsAsTheHeaderSays) {
  Executable executable;
  executable.name = "step";
  executable.backend = "cpu";
  executable.mesh = Mesh({{"data", 4}});
  executable.threads = 2;
  executable.certificate.hash = 0x9f3c1a7255555555;
  executable.buffers = {{BufferKind::kInput, "x", 400000},
                        {BufferKind::kState, "w", 31360},
                        {BufferKind::kRegistered, "data", 31360},
                        {BufferKind::kArena, "", 448512}};
  const BufferSlice x{0, 0, 400000}, w{1, 0, 31360}, bucket{2, 0, 31360}, dz{3, 8192, 5120};

  StepInfo matmul;
  matmul.name = "onednn.matmul";
  matmul.source = "onnx:/fc1/MatMul";
  matmul.reads = {{"x", "", x}, {"dz", "", dz}};
  matmul.writes = {{"dw", "", bucket}};
  StepInfo start;
  start.kind = StepKind::kStart;
  start.name = "all_reduce.start";
  start.collective.emplace().label = "bucket 0 (%dw)";
  StepInfo wait = start;
  wait.kind = StepKind::kWait;
  wait.name = "all_reduce.wait";
  StepInfo sgd;
  sgd.name = "llvm.sgd";
  sgd.reads = {{"w", "", w}, {"g", "", bucket}};
  sgd.writes = {{"w.next", "", w}};
  for (const StepInfo& info : {matmul, start, wait, sgd}) executable.steps.push_back(std::make_unique<Nothing>(info));

  EXPECT_EQ(
      executable.ToString(),
      "executable @step backend=cpu ranks=4 threads=2 arena=438KiB states=31KiB buckets=31KiB "
      "certificate=9f3c1a72\n"
      "  [0] onednn.matmul         reads %x, %dz in arena+8192  writes %dw in buckets data+0  // onnx:/fc1/MatMul\n"
      "  [1] all_reduce.start      bucket 0 (%dw)\n"
      "  [2] all_reduce.wait       bucket 0 (%dw)\n"
      "  [3] llvm.sgd              reads %w, %g in buckets data+0  writes %w.next in state w\n");
}

}  // namespace
}  // namespace lockstep
