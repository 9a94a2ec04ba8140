// Trains LeNet on one rank, or on as many as mpirun starts: train MODEL.onnx IMAGES LABELS. The two files have the
// elements of f32[n,1,28,28] and i64[n].

#include <lockstep.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

using namespace lockstep;

template <typename T>
std::vector<T> Read(const std::string& path) {
  std::vector<T> values(std::filesystem::file_size(path) / sizeof(T));
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(values.data()), values.size() * sizeof(T));
  return values;
}

absl::Status Train(const std::string& file, const std::vector<float>& images, const std::vector<int64_t>& labels) {
  constexpr int64_t kBatch = 32;  // of all ranks together
  ASSIGN_OR_RETURN(ImportedModel model, ImportOnnx(file, {.dims = {{"batch", kBatch}}}));
  passes::TrainStepSpec spec;
  spec.losses = {{.name = "softmax_cross_entropy", .predictions = {"logits"}, .inputs = {"label"}}};
  spec.optimizer = {.name = "SGD", .options = {{"learning_rate", 0.05}, {"momentum", 0.9}}};
  RETURN_IF_ERROR(passes::MakeTrainStepOfModel(model.graph, model.parameters, model.constants, spec));

  ASSIGN_OR_RETURN(const auto world, CreateFromEnvironment());
  ASSIGN_OR_RETURN(const LoadedProgram step, CompileAndLoad(model.graph, model.parameters, "cpu", {}, *world));
  const int64_t rows = kBatch / world->size();
  const TensorType image{DType::kF32, {rows, 1, 28, 28}}, label{DType::kI64, {rows}}, scalar{DType::kF32, {}};
  float loss = 0;
  for (size_t batch = 0; batch + kBatch <= labels.size(); batch += kBatch) {
    const size_t first = batch + static_cast<size_t>(world->rank() * rows);  // of this rank's share
    const NamedInput inputs[] = {{"image", {image, &images[first * 28 * 28]}}, {"label", {label, &labels[first]}}};
    const NamedResult results[] = {{"loss", {scalar, &loss}}};
    RETURN_IF_ERROR(step.executor->Run(inputs, results));
    if (world->rank() == 0) std::printf("loss %.9g\n", loss);
  }
  Tensor bias(TensorType{DType::kF32, {10}});
  RETURN_IF_ERROR(step.executor->ReadState("fc2.bias", {bias.type(), bias.mutable_bytes()}));
  if (world->rank() == 0) std::printf("fc2.bias of %d ranks: %s\n", world->size(), bias.ToString().c_str());
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: %s MODEL.onnx IMAGES LABELS\n", argv[0]), 2;
  const absl::Status status = Train(argv[1], Read<float>(argv[2]), Read<int64_t>(argv[3]));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
