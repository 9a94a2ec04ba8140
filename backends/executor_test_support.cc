#include "backends/executor_test_support.h"

#include "core/check.h"
#include "core/printer.h"

namespace lockstep {

absl::StatusOr<Executable> CompileFor(const std::string& text, const Communicator& communicator,
                                      CompileOptions options) {
  ASSIGN_OR_RETURN(Graph graph, ParseGraph(text));
  ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
  if (options.mesh.empty()) options.mesh = Mesh({{"data", communicator.size()}});
  return Compile(std::move(graph), *backend, options);
}

absl::StatusOr<std::unique_ptr<Executor>> Load(const std::string& text, Communicator& communicator, Device& device,
                                               const CompileOptions& options, const ExecutorOptions& executor_options) {
  ASSIGN_OR_RETURN(Executable executable, CompileFor(text, communicator, options));
  return Executor::Load(std::move(executable), &communicator, &device, executor_options);
}

std::string WithAll(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

std::string StepFor(int ranks) { return WithAll(kStep, "[4", "[" + std::to_string(4 * ranks)); }

std::vector<absl::Status> StatusOfEach(
    int ranks, const std::function<absl::Status(Communicator& communicator, Device& device)>& f) {
  std::vector<absl::Status> all;
  // The first error is also in `all`.
  (void)ForEachRank(
      ranks,
      [&f](Communicator& communicator) {
        const auto device = CreateHostDevice();
        return f(communicator, *device);
      },
      &all);
  LOCKSTEP_CHECK(all.size() == static_cast<size_t>(ranks)) << all.size();
  return all;
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

Batch::Batch(int64_t rows) : x(TensorType{DType::kF32, {rows, 3}}), y(TensorType{DType::kI64, {rows}}) {
  for (float& element : x.mutable_data<float>()) element = 0.5f;
}

}  // namespace lockstep
