// A small training step, and ranks that run it, for the tests of the executor.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/run_in_process.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/execution/executor.h"

namespace lockstep {

inline constexpr char kStep[] = R"(
graph @step(%x: f32[4,3] split(0), %y: i64[4] split(0), state %w: f32[3,5], state %unused: f32[2]) -> (loss: f32[], %w: f32[3,5], old: f32[3,5]) {
  %z = matmul %x, %w : f32[4,5] @"onnx:/fc/MatMul"
  %loss, %dz = softmax_cross_entropy %z, %y {scale=0.25} : f32[], f32[4,5] @"onnx:/loss"
  %dw = matmul %x, %dz {transpose_a=true} : f32[3,5]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[3,5]
  return %loss, %w1, %w
}
)";

// Compiles `text` for all ranks of the communicator along the axis `data`, unless `options` has a mesh; Load also loads
// the executable.
absl::StatusOr<Executable> CompileFor(const std::string& text, const Communicator& communicator,
                                      CompileOptions options = {});
absl::StatusOr<std::unique_ptr<Executor>> Load(const std::string& text, Communicator& communicator, Device& device,
                                               const CompileOptions& options = {},
                                               const ExecutorOptions& executor_options = {});

std::string WithAll(std::string text, std::string_view from, std::string_view to);

// Returns kStep with a batch of 4 per rank: each rank runs a Batch(4).
std::string StepFor(int ranks);

// Runs f on `ranks` ranks and returns the status of each.
std::vector<absl::Status> StatusOfEach(
    int ranks, const std::function<absl::Status(Communicator& communicator, Device& device)>& f);

std::string MessageOf(const absl::Status& status);

// Inputs of a step with `rows` rows per rank.
struct Batch {
  explicit Batch(int64_t rows);
  std::vector<NamedInput> inputs() const { return {{"x", {x.type(), x.bytes()}}, {"y", {y.type(), y.bytes()}}}; }
  Tensor x, y;
};

}  // namespace lockstep
