#include "frontends/onnx_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "frontends/onnx/tensor_data.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr char kMlp[] = "test/models/mlp.onnx";
constexpr char kConvNetBn[] = "test/models/convnet_bn.onnx";

std::string ExportPath(const std::string& name) { return (std::filesystem::path(testing::TempDir()) / name).string(); }

onnx::ModelProto ReadModel(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  onnx::ModelProto model;
  EXPECT_TRUE(model.ParseFromIstream(&file)) << path;
  return model;
}

void WriteModel(const onnx::ModelProto& model, const std::string& path) {
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
}

ImportedModel Imported(const std::string& path) {
  auto model = ImportOnnx(path, {{{"batch", 4}}});
  LOCKSTEP_CHECK(model.ok()) << model.status();
  return *std::move(model);
}

TEST(OnnxExporterTest, WithItsOwnValuesTheModelComesBackToTheByte) {
  for (const char* path : {kMlp, kConvNetBn, "examples/mnist/lenet.onnx"}) {
    const ImportedModel model = Imported(path);
    const std::string out = ExportPath("same.onnx");
    ASSERT_TRUE(ExportOnnx(model.origin, model.parameters, out).ok());
    EXPECT_EQ(ReadModel(out).SerializeAsString(), ReadModel(path).SerializeAsString()) << path;
  }
}

TEST(OnnxExporterTest, OtherValuesComeBackOnImport) {
  ImportedModel model = Imported(kConvNetBn);
  for (auto& [name, value] : model.parameters) value = Tensor::Full(value.type(), static_cast<double>(name.size()));
  std::map<std::string, Tensor> values = model.parameters;
  values.emplace("conv1.weight/momentum", Tensor());  // optimizer state is not part of the model
  const std::string out = ExportPath("trained.onnx");
  const absl::Status status = ExportOnnx(model.origin, values, out);
  ASSERT_TRUE(status.ok()) << status;
  const ImportedModel trained = Imported(out);
  EXPECT_EQ(trained.parameters, model.parameters);
  EXPECT_EQ(trained.graph.ToString(), model.graph.ToString());
}

// A file may store a parameter as raw data, as typed fields, or in another file. The exported file contains all data.
TEST(OnnxExporterTest, ParametersMayHaveBeenStoredInAnyWay) {
  onnx::ModelProto file = ReadModel(kMlp);
  onnx::TensorProto& typed = *file.mutable_graph()->mutable_initializer(0);
  const Tensor first = *DecodeTensor(typed);
  ClearData(typed);
  for (float element : first.data<float>()) typed.add_float_data(element);
  onnx::TensorProto& external = *file.mutable_graph()->mutable_initializer(1);
  const Tensor second = *DecodeTensor(external);
  std::ofstream(ExportPath("second.bin"), std::ios::binary) << external.raw_data();
  ClearData(external);
  external.set_data_location(onnx::TensorProto::EXTERNAL);
  external.add_external_data()->set_key("location");
  external.mutable_external_data(0)->set_value("second.bin");
  WriteModel(file, ExportPath("mixed.onnx"));

  const ImportedModel model = Imported(ExportPath("mixed.onnx"));
  EXPECT_EQ(model.parameters.at("fc1.weight"), first);
  EXPECT_EQ(model.parameters.at("fc1.bias"), second);
  std::filesystem::create_directories(ExportPath("elsewhere"));
  ASSERT_TRUE(ExportOnnx(model.origin, model.parameters, ExportPath("elsewhere/out.onnx")).ok());
  EXPECT_EQ(Imported(ExportPath("elsewhere/out.onnx")).parameters, Imported(kMlp).parameters);
}

TEST(OnnxExporterTest, ErrorsNameTheFileAndTheParameter) {
  ImportedModel model = Imported(kMlp);
  const std::string out = ExportPath("error.onnx");
  std::map<std::string, Tensor> values = model.parameters;
  values.erase("fc2.bias");
  EXPECT_THAT(ExportOnnx(model.origin, values, out).message(),
              HasSubstr("error.onnx: parameter 'fc2.bias' has no value"));
  values["fc2.bias"] = Tensor::Full({DType::kF32, {9}}, 0);
  EXPECT_THAT(ExportOnnx(model.origin, values, out).message(),
              HasSubstr("parameter 'fc2.bias' is f32[9], the model has f32[8]"));
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_THAT(ExportOnnx(model.origin, model.parameters, ExportPath("no/such/folder.onnx")).message(),
              HasSubstr("folder.onnx: cannot be opened for writing"));
}

// A failed export keeps the old file and leaves no other file.
TEST(OnnxExporterTest, WritesAtomically) {
  const ImportedModel model = Imported(kMlp);
  const std::filesystem::path folder = ExportPath("atomic");
  std::filesystem::create_directories(folder / "taken.onnx" / "full");  // a folder with content cannot be replaced
  EXPECT_THAT(ExportOnnx(model.origin, model.parameters, (folder / "taken.onnx").string()).message(),
              HasSubstr("cannot be replaced"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 1);
}

}  // namespace
}  // namespace lockstep
