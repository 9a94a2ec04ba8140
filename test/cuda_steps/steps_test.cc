// The steps of training programs for an H200, on two ranks, as `lockstep-run --backend=cuda --isa=h200 --ranks=2 --dry`
// prints them. No GPU is needed. To update the expected texts:
//   bazel run //test/cuda_steps:steps_test -- --update

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "backends/compile.h"
#include "backends/cuda/cuda_backend.h"
#include "core/printer.h"
#include "frontends/onnx_importer.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"

namespace lockstep {
namespace {

bool update = false;

struct Model {
  const char* name;
  const char* path;  // an ONNX file, or the text of a graph
  int64_t batch;
  passes::OptimizerSpec optimizer;
};

std::vector<Model> Models() {
  return {{"lenet", "examples/mnist/lenet.onnx", 64, {"SGD", {{"learning_rate", 0.1}}}},
          {"convnet_bn", "test/models/convnet_bn.onnx", 64, {"SGD", {{"learning_rate", 0.1}, {"momentum", 0.9}}}},
          {"mlp", "test/models/mlp.onnx", 128, {"Adam", {{"learning_rate", 0.001}}}},
          {"gpt", "test/cuda_steps/gpt.ir", 16, {"Adam", {{"learning_rate", 0.001}}}}};
}

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<Graph> Load(const Model& model) {
  if (std::string(model.path).ends_with(".ir")) return ParseGraph(ReadFile(model.path));
  ImportOptions options;
  options.dims = {{"batch", model.batch}};
  ASSIGN_OR_RETURN(ImportedModel imported, ImportOnnx(model.path, options));
  return std::move(imported.graph);
}

// A target without images of kernels, which are not compared here.
class NoImages final : public GridTarget {
 public:
  explicit NoImages(std::unique_ptr<GridTarget> ptx) : ptx_(std::move(ptx)) {}
  ThreadEmitter& machine() override { return ptx_->machine(); }
  void Prepare(llvm::Module& module) override { ptx_->Prepare(module); }
  absl::StatusOr<std::string> Assemble(llvm::Module&) override { return std::string(); }

 private:
  const std::unique_ptr<GridTarget> ptx_;
};

absl::StatusOr<std::string> StepsOf(const Model& model) {
  ASSIGN_OR_RETURN(Graph graph, Load(model));
  passes::TrainStepSpec spec;
  spec.optimizer = model.optimizer;
  RETURN_IF_ERROR(passes::MakeTrainStep(graph, spec));
  const auto no_images = []() -> absl::StatusOr<std::unique_ptr<GridTarget>> {
    ASSIGN_OR_RETURN(auto ptx, CreatePtxTarget("sm_90"));
    return std::make_unique<NoImages>(std::move(ptx));
  };
  const auto no_texts = [](std::string_view) { return std::string(" "); };
  const std::unique_ptr<Backend> backend = CreateCudaBackend(no_images, no_texts);
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  options.isa = "h200";
  ASSIGN_OR_RETURN(const Executable executable, Compile(std::move(graph), *backend, options));
  return executable.ToString() + "\n";
}

class Steps : public testing::TestWithParam<Model> {};

TEST_P(Steps, AreThoseOfTheFile) {
  const absl::StatusOr<std::string> steps = StepsOf(GetParam());
  ASSERT_TRUE(steps.ok()) << steps.status();
  const std::string file = std::string("test/cuda_steps/") + GetParam().name + ".txt";
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (update && workspace != nullptr) std::ofstream(std::string(workspace) + "/" + file) << *steps;
  else EXPECT_EQ(*steps, ReadFile(file)) << "if it is meant: bazel run //test/cuda_steps:steps_test -- --update";
}

INSTANTIATE_TEST_SUITE_P(All, Steps, testing::ValuesIn(Models()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  lockstep::update = argc > 1 && std::string(argv[1]) == "--update";
  return RUN_ALL_TESTS();
}
