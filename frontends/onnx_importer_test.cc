#include "frontends/onnx_importer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "core/text.h"
#include "core/verifier.h"
#include "frontends/onnx/tensor_data.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

using onnx::AttributeProto;
using onnx::GraphProto;
using onnx::ModelProto;
using onnx::NodeProto;
using onnx::TensorProto;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kLenet[] = "examples/mnist/lenet.onnx";

// Returns a path in a folder of the current test case.
std::string TemporaryPath(const std::string& name) {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / test->name();
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

void WriteFile(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<ImportedModel> Import(const ModelProto& model, std::map<std::string, int64_t> dims = {}) {
  const std::string path = TemporaryPath("model.onnx");
  WriteFile(path, model.SerializeAsString());
  return ImportOnnx(path, {std::move(dims)});
}

void AddValue(const std::string& name, const std::vector<std::string>& dims, onnx::ValueInfoProto& value) {
  value.set_name(name);
  auto& type = *value.mutable_type()->mutable_tensor_type();
  type.set_elem_type(TensorProto::FLOAT);
  type.mutable_shape();
  for (const std::string& dim : dims) {
    auto& added = *type.mutable_shape()->add_dim();
    if (std::isdigit(static_cast<unsigned char>(dim[0]))) added.set_dim_value(std::stoll(dim));
    else added.set_dim_param(dim);
  }
}

NodeProto& AddNode(ModelProto& model, const std::string& type, std::vector<std::string> inputs,
                   std::vector<std::string> outputs) {
  NodeProto& node = *model.mutable_graph()->add_node();
  node.set_op_type(type);
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& output : outputs) node.add_output(output);
  return node;
}

void AddInts(NodeProto& node, const std::string& name, const std::vector<int64_t>& values) {
  AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(AttributeProto::INTS);
  for (int64_t value : values) attribute.add_ints(value);
}

void AddInt(NodeProto& node, const std::string& name, int64_t value) {
  AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(AttributeProto::INT);
  attribute.set_i(value);
}

void AddString(NodeProto& node, const std::string& name, const std::string& value) {
  AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(AttributeProto::STRING);
  attribute.set_s(value);
}

void AddInitializer(ModelProto& model, const std::string& name, const Tensor& value) {
  TensorProto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name(name);
  EncodeTensor(value, tensor);
}

// An empty graph from x: f32[n,4] to y.
ModelProto EmptyModel(int64_t opset = 20) {
  ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(opset);
  GraphProto& graph = *model.mutable_graph();
  graph.set_name("test");
  AddValue("x", {"n", "4"}, *graph.add_input());
  AddValue("y", {"n", "4"}, *graph.add_output());
  return model;
}

ModelProto MatMulModel() {
  ModelProto model = EmptyModel();
  AddInitializer(model, "fc1.weight", Tensor::Full({DType::kF32, {4, 3}}, 0.5));
  AddNode(model, "MatMul", {"x", "fc1.weight"}, {"y"}).set_name("/fc1/MatMul");
  return model;
}

std::string ErrorOf(const absl::StatusOr<ImportedModel>& model) {
  return model.ok() ? "imported" : std::string(model.status().message());
}

// --- Imported graphs -------------------------------------------------------------------------------------------------

TEST(OnnxImporterTest, ParametersBecomeStatesAndTheBatchIsSplit) {
  const auto model = Import(MatMulModel(), {{"n", 2}});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->graph.ToString(),
            R"(graph @test(%x: f32[2,4] split(0), state %fc1.weight: f32[4,3]) -> (y: f32[2,3]) {
  %y = matmul %x, %fc1.weight : f32[2,3] @"onnx:/fc1/MatMul"
  return %y
}
)");
  EXPECT_EQ(model->parameters.at("fc1.weight"), Tensor::Full({DType::kF32, {4, 3}}, 0.5));
  EXPECT_THAT(model->notes, testing::IsEmpty());
}

TEST(OnnxImporterTest, LenetOfTheExample) {
  const auto model = ImportOnnx(kLenet, {{{"batch", 128}}});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(Verify(model->graph).ok());
  std::vector<std::string> parameters;
  for (const auto& [name, value] : model->parameters) parameters.push_back(name + " " + value.type().ToString());
  EXPECT_THAT(parameters, ElementsAre("conv1.bias f32[20]", "conv1.weight f32[20,1,5,5]", "conv2.bias f32[50]",
                                      "conv2.weight f32[50,20,5,5]", "fc1.bias f32[500]", "fc1.weight f32[500,800]",
                                      "fc2.bias f32[10]", "fc2.weight f32[10,500]"));
  ASSERT_NE(model->graph.FindInput("image"), nullptr);
  EXPECT_EQ(model->graph.FindInput("image")->value.type(), (TensorType{DType::kF32, {128, 1, 28, 28}}));
  EXPECT_TRUE(model->graph.FindInput("image")->placements().at("data").is_split(0));
  ASSERT_EQ(model->graph.results().size(), 1u);
  EXPECT_EQ(model->graph.results()[0].name, "logits");
  EXPECT_EQ(model->graph.results()[0].value.type(), (TensorType{DType::kF32, {128, 10}}));
  EXPECT_EQ(model->graph.results()[0].value.node->source(), "onnx:/fc2/Gemm");
}

// PyTorch's default exporter writes nodes that compute a bias of zeros and reshaped axes.
TEST(OnnxImporterTest, ShapesThatAFileComputesAreFolded) {
  const auto model = ImportOnnx("test/models/convnet_bn.onnx", {{{"batch", 6}}});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(Verify(model->graph).ok());
  for (const Node& node : model->graph.nodes()) {
    EXPECT_TRUE(IsFloat(node.type().dtype)) << PrintNode(node);
  }
  EXPECT_EQ(model->graph.results()[0].value.type(), (TensorType{DType::kF32, {6, 4}}));
  EXPECT_EQ(model->parameters.size(), 12u);
}

TEST(OnnxImporterTest, InitializersThatOnlySetAttributesAreNoStates) {
  ModelProto model = EmptyModel();
  AddInitializer(model, "shape", Tensor::Of<int64_t>({2}, {-1, 2}));
  AddInitializer(model, "scale", Tensor::Scalar(DType::kF32, 3));
  AddInitializer(model, "unused", Tensor::Full({DType::kF32, {7}}, 1));
  AddNode(model, "Mul", {"x", "scale"}, {"scaled"});
  AddNode(model, "Reshape", {"scaled", "shape"}, {"y"});
  const auto imported = Import(model, {{"n", 3}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.inputs().size(), 1u);
  EXPECT_TRUE(imported->parameters.empty());
  EXPECT_EQ(imported->graph.results()[0].value.shape(), Shape({6, 2}));
}

TEST(OnnxImporterTest, ScalarsThatAreNamedAreStates) {
  ModelProto model = EmptyModel();
  AddInitializer(model, "temperature", Tensor::Scalar(DType::kF32, 3));
  AddInitializer(model, "unused", Tensor::Scalar(DType::kF32, 5));
  AddInitializer(model, "count", Tensor::Of<int64_t>({1}, {8}));
  AddNode(model, "Mul", {"x", "temperature"}, {"scaled"});
  AddNode(model, "Reshape", {"scaled", "count"}, {"y"});
  const std::string path = TemporaryPath("model.onnx");
  WriteFile(path, model.SerializeAsString());
  const auto import = [&](const std::set<std::string>& states, const std::set<std::string>& constants = {}) {
    return ImportOnnx(path, {.dims = {{"n", 2}}, .constants = constants, .states = states});
  };
  const auto named = import({"temperature"});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->parameters.at("temperature"), Tensor::Scalar(DType::kF32, 3));
  EXPECT_TRUE(named->graph.FindInput("temperature")->is_state);
  EXPECT_EQ(named->graph.FindInput("unused"), nullptr);
  const auto all = import({"temperature", "unused"});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_TRUE(all->graph.FindInput("unused")->is_state);
  EXPECT_EQ(all->parameters.at("unused"), Tensor::Scalar(DType::kF32, 5));
  EXPECT_THAT(named->constants, testing::IsEmpty());
  EXPECT_THAT(ErrorOf(import({"t"})), HasSubstr("states: there is no initializer 't'"));
  EXPECT_THAT(ErrorOf(import({"count"})), HasSubstr("initializer 'count': is i64[1], but `states` have to be floats"));
  EXPECT_THAT(ErrorOf(import({"temperature"}, {"temperature"})),
              HasSubstr("constants and states: 'temperature' is in both"));
}

// In files of IR version 4 and later such an initializer is the default value of the input.
TEST(OnnxImporterTest, InitializersThatAreInputsTooCanBeGiven) {
  ModelProto model = MatMulModel();
  AddValue("fc1.weight", {"4", "3"}, *model.mutable_graph()->add_input());
  const std::string path = TemporaryPath("model.onnx");
  WriteFile(path, model.SerializeAsString());
  const Tensor other = Tensor::Full({DType::kF32, {4, 3}}, 2);
  const auto imported = ImportOnnx(path, {.dims = {{"n", 2}}, .values = {{"fc1.weight", other}}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->parameters.at("fc1.weight"), other);
  const Tensor wrong = Tensor::Full({DType::kF32, {4}}, 2);
  EXPECT_THAT(ErrorOf(ImportOnnx(path, {.dims = {{"n", 2}}, .values = {{"fc1.weight", wrong}}})),
              HasSubstr("values: input 'fc1.weight' is f32[4,3], its value f32[4]"));
}

// Weights that a body or a function uses are states of the graph; sources say in which run.
TEST(OnnxImporterTest, BodiesAndFunctionsUseTheStatesOfTheGraph) {
  ModelProto model = EmptyModel();
  AddInitializer(model, "w", Tensor::Full({DType::kF32, {4}}, 0.5));
  AddInitializer(model, "trips", Tensor::Of<int64_t>(Shape(), {2}));
  NodeProto& loop = AddNode(model, "Loop", {"trips", "", "x"}, {"y"});
  loop.set_name("/loop/Loop");
  AttributeProto& attribute = *loop.add_attribute();
  attribute.set_name("body");
  attribute.set_type(AttributeProto::GRAPH);
  GraphProto& body = *attribute.mutable_g();
  for (const char* name : {"i", "c", "v"}) body.add_input()->set_name(name);
  for (const char* name : {"c", "u"}) body.add_output()->set_name(name);
  NodeProto& call = *body.add_node();
  call.set_op_type("Weigh");
  call.set_domain("local");
  call.set_name("/loop/Weigh");
  call.add_input("v");
  call.add_input("w");
  call.add_output("u");
  onnx::FunctionProto& function = *model.add_functions();
  function.set_name("Weigh");
  function.set_domain("local");
  function.add_input("a");
  function.add_input("b");
  function.add_output("t");
  NodeProto& mul = *function.add_node();
  mul.set_op_type("Mul");
  mul.add_input("a");
  mul.add_input("b");
  mul.add_output("t");
  const auto imported = Import(model, {{"n", 2}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.ToString(),
            R"(graph @test(%x: f32[2,4] split(0), state %w: f32[4]) -> (y: f32[2,4]) {
  %2 = broadcast %w {dims=[1], shape=[2, 4]} : f32[2,4] @"onnx:/loop/Loop[0]/loop/Weigh/Mul_0"
  %"/loop/Loop[0]/loop/Weigh/t" = mul %x, %2 : f32[2,4] @"onnx:/loop/Loop[0]/loop/Weigh/Mul_0"
  %6 = broadcast %w {dims=[1], shape=[2, 4]} : f32[2,4] @"onnx:/loop/Loop[1]/loop/Weigh/Mul_0"
  %"/loop/Loop[1]/loop/Weigh/t" = mul %"/loop/Loop[0]/loop/Weigh/t", %6 : f32[2,4] @"onnx:/loop/Loop[1]/loop/Weigh/Mul_0"
  return %"/loop/Loop[1]/loop/Weigh/t"
}
)");
}

TEST(OnnxImporterTest, DropoutsInFunctionsKnowTheirPlace) {
  ModelProto model = EmptyModel();
  AddNode(model, "Drop", {"x"}, {"y"}).set_domain("local");
  onnx::FunctionProto& function = *model.add_functions();
  function.set_name("Drop");
  function.set_domain("local");
  function.add_input("a");
  function.add_output("t");
  NodeProto& drop = *function.add_node();
  drop.set_op_type("Dropout");
  drop.add_input("a");
  drop.add_output("t");
  const auto imported = Import(model, {{"n", 3}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.nodes().back().Describe(), "dropout %Drop_0/t (at onnx:Drop_0/Dropout_0)");
}

TEST(OnnxImporterTest, NodesWithoutNamesAreNumbered) {
  ModelProto model = EmptyModel();
  AddNode(model, "Relu", {"x"}, {"a"});
  AddNode(model, "Tanh", {"a"}, {"y"});
  const auto imported = Import(model, {{"n", 3}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.nodes().back().source(), "onnx:Tanh_1");
}

// Older exporters use numbers as names of values and initializers. Names that the graph generates must not collide with
// these.
TEST(OnnxImporterTest, NamesThatAreNumbers) {
  ModelProto model = EmptyModel();
  AddInitializer(model, "0", Tensor::Full({DType::kF32, {1, 4}}, 2));
  AddInitializer(model, "1", Tensor::Full({DType::kF32, {4}}, 2));
  AddNode(model, "Mul", {"x", "0"}, {"2"});
  AddNode(model, "Add", {"2", "1"}, {"y"});
  const auto imported = Import(model, {{"n", 3}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(Verify(imported->graph).ok());
  EXPECT_EQ(imported->parameters.size(), 2u);
}

TEST(OnnxImporterTest, RowsOfAProductWithAMatrixOfWeightsStayWhereTheyAre) {
  ModelProto model = EmptyModel();
  *model.mutable_graph()->mutable_input(0) = onnx::ValueInfoProto();
  AddValue("x", {"n", "5", "4"}, *model.mutable_graph()->mutable_input(0));
  AddInitializer(model, "w", Tensor::Full({DType::kF32, {4, 3}}, 0.5));
  AddNode(model, "MatMul", {"x", "w"}, {"y"});
  const auto imported = Import(model, {{"n", 2}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.ToString(), R"(graph @test(%x: f32[2,5,4] split(0), state %w: f32[4,3]) -> (y: f32[2,5,3]) {
  %y = matmul %x, %w : f32[2,5,3] @"onnx:MatMul_0"
  return %y
}
)");
}

TEST(OnnxImporterTest, DropoutDropsInTrainingAndSaysSo) {
  ModelProto model = EmptyModel();
  AddNode(model, "Dropout", {"x"}, {"d"});
  AddNode(model, "Relu", {"d"}, {"y"});
  const auto imported = Import(model, {{"n", 3}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->notes, ElementsAre("Dropout (onnx:Dropout_0) drops values in training, with ratio 0.5; in "
                                           "inference it is the identity."));
  EXPECT_EQ(imported->graph.ToString(), R"(graph @test(%x: f32[3,4] split(0)) -> (y: f32[3,4]) {
  %0 = constant {value=dense<f32[]: 0.5>} : f32[] @"onnx:Dropout_0"
  %d, %2 = dropout %x, %0 : f32[3,4], bool[3,4] @"onnx:Dropout_0"
  %y = relu %d : f32[3,4] @"onnx:Relu_1"
  return %y
}
)");
}

// A program whose draws are unused has neither: it draws nothing and counts no runs.
TEST(OnnxImporterTest, WhatDrawsHasASeedAndAStep) {
  for (const bool is_used : {false, true}) {
    ModelProto model = EmptyModel();
    AddNode(model, "RandomNormalLike", {"x"}, {"noise"});
    AddNode(model, "Add", {"x", is_used ? "noise" : "x"}, {"y"});
    const auto imported = Import(model, {{"n", 3}});
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_TRUE(Verify(imported->graph).ok());
    EXPECT_EQ(imported->graph.inputs().size(), is_used ? 3u : 1u);
    EXPECT_EQ(imported->graph.results().size(), is_used ? 2u : 1u);
    EXPECT_EQ(imported->graph.FindResult("random/step", /*is_state=*/true) != nullptr, is_used);
    EXPECT_EQ(imported->graph.FindInput("random/seed") != nullptr, is_used);
    EXPECT_TRUE(imported->parameters.empty());
  }
}

TEST(OnnxImporterTest, BatchNormalizationOfTrainingFormIsImportedInInferenceForm) {
  ModelProto model = EmptyModel();
  for (const char* name : {"scale", "bias", "mean", "var"})
    AddInitializer(model, name, Tensor::Full({DType::kF32, {4}}, 1));
  NodeProto& node =
      AddNode(model, "BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"y", "next_mean", "next_var"});
  AttributeProto& mode = *node.add_attribute();
  mode.set_name("training_mode");
  mode.set_type(AttributeProto::INT);
  mode.set_i(1);
  AttributeProto& momentum = *node.add_attribute();
  momentum.set_name("momentum");
  momentum.set_type(AttributeProto::FLOAT);
  momentum.set_f(0.75);
  AddValue("next_mean", {"4"}, *model.mutable_graph()->add_output());
  const auto imported = Import(model, {{"n", 3}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->notes, ElementsAre(HasSubstr("inference form")));
  ASSERT_EQ(imported->graph.nodes().size(), 1u);
  const Node& imported_node = imported->graph.nodes().front();
  EXPECT_TRUE(imported_node.Is("batch_norm_inference"));
  EXPECT_EQ(imported_node.attr<double>("momentum"), 0.75);
  EXPECT_EQ(imported->graph.FindResult("next_mean")->value.name(), "mean");
}

TEST(OnnxImporterTest, OnlyOnnxsOwnBatchNormalizationHasStatistics) {
  ModelProto model = EmptyModel();
  for (const char* name : {"scale", "bias", "mean", "var"})
    AddInitializer(model, name, Tensor::Full({DType::kF32, {4}}, 1));
  AddNode(model, "BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"y"});
  auto imported = Import(model, {{"n", 3}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->unmarked_parameters, ElementsAre("scale", "bias"));
  model.mutable_graph()->mutable_node(0)->set_domain("local");
  onnx::FunctionProto& function = *model.add_functions();
  function.set_name("BatchNormalization");
  function.set_domain("local");
  for (const char* name : {"a", "b", "c", "d", "e"}) function.add_input(name);
  function.add_output("t");
  NodeProto& add = *function.add_node();
  add.set_op_type("Add");
  add.add_input("a");
  add.add_input("e");
  add.add_output("t");
  imported = Import(model, {{"n", 3}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->unmarked_parameters, ElementsAre("var"));  // the function uses no other
}

// --- External data ---------------------------------------------------------------------------------------------------

void SetExternal(TensorProto& tensor, const std::string& location, const std::string& offset,
                 const std::string& length) {
  ClearData(tensor);
  tensor.set_data_location(TensorProto::EXTERNAL);
  for (const auto& [key, value] :
       {std::pair<std::string, std::string>("location", location), {"offset", offset}, {"length", length}}) {
    auto& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  }
}

TEST(OnnxImporterTest, ExternalDataIsRead) {
  ModelProto model = MatMulModel();
  const Tensor value = Tensor::Of<float>({4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  WriteFile(TemporaryPath("weights.bin"), "1234" + std::string(reinterpret_cast<const char*>(value.bytes()), 48));
  SetExternal(*model.mutable_graph()->mutable_initializer(0), "weights.bin", "4", "48");
  const auto imported = Import(model, {{"n", 2}});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->parameters.at("fc1.weight"), value);
}

// Every byte except 0 is true. In memory true is 1, as kernels expect.
TEST(OnnxImporterTest, BoolsAreZeroAndOne) {
  const std::string bytes("\x02\x00\xff", 3);
  WriteFile(TemporaryPath("bools.bin"), bytes);
  TensorProto raw;
  raw.set_data_type(TensorProto::BOOL);
  raw.add_dims(3);
  TensorProto external = raw;
  raw.set_raw_data(bytes);
  SetExternal(external, "bools.bin", "0", "3");
  for (const TensorProto& tensor : {raw, external}) {
    const absl::StatusOr<Tensor> decoded = DecodeTensor(tensor, TemporaryPath("model.onnx"));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    for (const auto& [i, expected] : {std::pair(0, 1), {1, 0}, {2, 1}})
      EXPECT_EQ(decoded->bytes()[i], static_cast<std::byte>(expected)) << i;
  }
}

TEST(OnnxImporterTest, ExternalDataMustLieBesideTheModelAndBeComplete) {
  WriteFile(TemporaryPath("weights.bin"), std::string(52, 'x'));
  const std::string outside = (std::filesystem::path(testing::TempDir()) / "outside.bin").string();
  WriteFile(outside, std::string(52, 'x'));
  std::filesystem::remove(TemporaryPath("up"));
  std::filesystem::create_directory_symlink("..", TemporaryPath("up"));
  struct Case {
    std::string location, offset, length, message;
  };
  for (const Case& c : std::vector<Case>{{"../outside.bin", "0", "48", "outside the model's directory"},
                                         {outside, "0", "48", "outside the model's directory"},
                                         {"up/outside.bin", "0", "48", "outside the model's directory"},
                                         {"a/../../outside.bin", "0", "48", "outside the model's directory"},
                                         {"missing.bin", "0", "48", "missing.bin is not a file"},
                                         {"weights.bin", "8", "48", "end before offset 8 plus length 48"},
                                         {"weights.bin", "18446744073709551615", "48", "end before"},
                                         {"weights.bin", "0", "-48", "length '-48' is not a number"},
                                         {"weights.bin", "0", "44", "gives 44 bytes, its type f32[4,3] takes 48"},
                                         {"", "0", "48", "without a location"}}) {
    ModelProto model = MatMulModel();
    SetExternal(*model.mutable_graph()->mutable_initializer(0), c.location, c.offset, c.length);
    const auto imported = Import(model, {{"n", 2}});
    ASSERT_FALSE(imported.ok()) << c.message;
    EXPECT_THAT(imported.status().message(),
                AllOf(HasSubstr("model.onnx: initializer 'fc1.weight': "), HasSubstr(c.message)));
  }
}

// --- Errors ----------------------------------------------------------------------------------------------------------

TEST(OnnxImporterTest, FilesThatAreNoModels) {
  EXPECT_THAT(ErrorOf(ImportOnnx("nowhere/no.onnx")), "nowhere/no.onnx: there is no such file");
  EXPECT_THAT(ErrorOf(ImportOnnx("examples/mnist")), "examples/mnist: is not a file");
  EXPECT_THAT(ErrorOf(ImportOnnx("examples/mnist/export_lenet.py")),
              HasSubstr("export_lenet.py: is not an ONNX model"));
  const std::string path = TemporaryPath("bad.onnx");
  WriteFile(path, "");
  EXPECT_THAT(ErrorOf(ImportOnnx(path)), HasSubstr("bad.onnx: is not an ONNX model"));
  const std::string lenet = ReadFile(kLenet);
  WriteFile(path, lenet.substr(0, lenet.size() / 2));
  EXPECT_THAT(ErrorOf(ImportOnnx(path)), HasSubstr("bad.onnx: is not an ONNX model, or is damaged or truncated"));
}

TEST(OnnxImporterTest, VersionsAreChecked) {
  ModelProto model = MatMulModel();
  model.set_ir_version(99);
  EXPECT_THAT(ErrorOf(Import(model)), HasSubstr("IR version 99; supported are 3 to 14"));
  model.set_ir_version(8);
  model.mutable_opset_import(0)->set_version(29);
  EXPECT_THAT(ErrorOf(Import(model)), HasSubstr("opset 29 of the domain ai.onnx; supported are 1 to 28"));
  model.clear_opset_import();
  EXPECT_THAT(ErrorOf(Import(model)), HasSubstr("imports no operator set of the domain ai.onnx"));
}

TEST(OnnxImporterTest, DimensionsMustBeBoundAndMustExist) {
  EXPECT_THAT(ErrorOf(Import(MatMulModel())),
              HasSubstr("input 'x': dimension 0 ('n') has no extent; give it in dims, as in dims={\"n\": 128}"));
  EXPECT_THAT(ErrorOf(Import(MatMulModel(), {{"n", 2}, {"batch", 2}})),
              HasSubstr("no symbolic dimension 'batch'; the model's inputs have 'n'"));
  EXPECT_THAT(ErrorOf(Import(MatMulModel(), {{"n", 0}})), HasSubstr("'n' is 0, expected at least 1"));
  EXPECT_THAT(ErrorOf(Import(MatMulModel(), {{"n", int64_t{1} << 60}})), HasSubstr("too large"));
}

TEST(OnnxImporterTest, InputsAtTheEndMayBeLeftOutByAnEmptyName) {
  ModelProto model = EmptyModel();
  AddNode(model, "Add", {"x", "x", ""}, {"y"});
  const auto imported = Import(model, {{"n", 2}});
  EXPECT_TRUE(imported.ok()) << imported.status();
}

TEST(OnnxImporterTest, MessagesAreTextWhateverTheFileSays) {
  ModelProto model = MatMulModel();
  model.mutable_graph()->mutable_node(0)->set_op_type("Mat\xffMul");
  const std::string message(ImportOnnxBytes(model.SerializeAsString(), "<model>").status().message());
  EXPECT_THAT(message, HasSubstr("Mat"));
  EXPECT_EQ(FindInvalidText(message), std::string::npos) << message;
}

TEST(OnnxImporterTest, UnknownOperators) {
  ModelProto model = EmptyModel();
  NodeProto& node = AddNode(model, "Frobnicate", {"x"}, {"y"});
  node.set_name("/odd/one");
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("operator Frobnicate of domain ai.onnx (opset 20) is not supported, at onnx:/odd/one"));
  node.set_domain("com.example");
  model.add_opset_import()->set_domain("com.example");
  model.mutable_opset_import(1)->set_version(3);
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("operator Frobnicate of domain com.example (opset 3) is not supported; "
                        "supported are the domains ai.onnx, com.microsoft, at onnx:"));
  node.clear_domain();
  node.set_op_type("Swish");
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("operator Swish of domain ai.onnx is not supported in opset 20"));
}

TEST(OnnxImporterTest, OperatorsOfAnotherDomain) {
  ModelProto model = EmptyModel();
  NodeProto& node = AddNode(model, "QuickGelu", {"x"}, {"y"});
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("operator QuickGelu of domain ai.onnx (opset 20) is not supported, at onnx:"));
  node.set_domain("com.microsoft");
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("operator QuickGelu of domain com.microsoft: the file does not import this domain, at onnx:"));
  onnx::OperatorSetIdProto& imported = *model.add_opset_import();
  imported.set_domain("com.microsoft");
  imported.set_version(2);
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("operator QuickGelu of domain com.microsoft is not supported in opset 2, at onnx:"));
  imported.set_version(1);
  EXPECT_TRUE(Import(model, {{"n", 2}}).ok());
  AttributeProto& attribute = *node.add_attribute();
  attribute.set_name("consumed_inputs");
  attribute.set_type(AttributeProto::INTS);
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("QuickGelu: attribute consumed_inputs is not supported in opset 1, at onnx:"));
  node.clear_attribute();
  node.set_op_type("BiasGelu");
  node.add_input("x");
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("BiasGelu: bias f32[2,4] is not of the last dimension of f32[2,4], at onnx:"));
  node.set_op_type("Relu");
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("operator Relu of domain com.microsoft (opset 1) is not supported; supported are BiasGelu, "
                        "Gelu, QuickGelu, at onnx:"));
}

TEST(OnnxImporterTest, WrongShapesNameTheNode) {
  ModelProto model = MatMulModel();
  model.mutable_graph()->clear_initializer();
  AddInitializer(model, "fc1.weight", Tensor::Full({DType::kF32, {5, 3}}, 0.5));
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("MatMul: f32[2,4] times f32[5,3]: the summed dimensions are 4 and 5, at onnx:/fc1/MatMul"));
  model = EmptyModel();
  AddInitializer(model, "b", Tensor::Full({DType::kF32, {3}}, 0.5));
  AddNode(model, "Add", {"x", "b"}, {"y"});
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("Add: shapes do not broadcast: f32[2,4] f32[3], at onnx:Add_0"));
}

TEST(OnnxImporterTest, AnAxisThatIsAnInputIsOneOfTheAxes) {
  ModelProto model = EmptyModel();
  AddInitializer(model, "axis", Tensor::Of<int64_t>({2}, {0, 1}));
  AddNode(model, "CumSum", {"x", "axis"}, {"y"});
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("CumSum: axis [0, 1], expected one axis, at onnx:CumSum_0"));
  model.mutable_graph()->clear_initializer();
  AddInitializer(model, "axis", Tensor::Of<int64_t>({1}, {2}));
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("CumSum: axis 2 is outside a tensor of rank 2, at onnx:CumSum_0"));
}

TEST(OnnxImporterTest, AttributesThatNobodyUnderstands) {
  ModelProto model = EmptyModel();
  NodeProto& node = AddNode(model, "Relu", {"x"}, {"y"});
  AddInts(node, "steepness", {3});
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("Relu: attribute steepness is not supported in opset 20, at onnx:Relu_0"));
  node.set_op_type("LeakyRelu");
  node.mutable_attribute(0)->set_name("alpha");
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("LeakyRelu: attribute alpha is of type INTS, expected FLOAT, at onnx:LeakyRelu_0"));
}

TEST(OnnxImporterTest, RestsShiftsAndBitsThatHaveNoMeaning) {
  const auto error_of = [](const char* type, std::vector<std::string> inputs, const char* attribute, int64_t value,
                           const char* word = nullptr) {
    ModelProto model = EmptyModel(26);
    NodeProto& cast = AddNode(model, "Cast", {"x"}, {"i64"});
    AddInt(cast, "to", TensorProto::INT64);
    NodeProto& node = AddNode(model, type, std::move(inputs), {"y"});
    if (word == nullptr) AddInt(node, attribute, value);
    else AddString(node, attribute, word);
    return ErrorOf(Import(model, {{"n", 2}}));
  };
  EXPECT_THAT(error_of("Mod", {"x", "x"}, "fmod", 2), HasSubstr("Mod: attribute fmod is 2, expected 0 or 1"));
  EXPECT_THAT(error_of("BitShift", {"i64", "i64"}, "direction", 0, "UP"),
              HasSubstr("BitShift: attribute direction is 'UP', expected LEFT or RIGHT, at onnx:BitShift_1"));
  EXPECT_THAT(error_of("BitShift", {"x", "x"}, "direction", 0, "LEFT"),
              HasSubstr("expected integers, at onnx:BitShift"));
  EXPECT_THAT(error_of("BitCast", {"x"}, "to", TensorProto::INT64),
              HasSubstr("has elements of 4 bytes, dtype i64 of 8, at onnx:BitCast_1"));
  EXPECT_THAT(error_of("BitCast", {"x"}, "to", TensorProto::STRING), HasSubstr("STRING is not supported"));
  EXPECT_THAT(error_of("Shrink", {"i64"}, "lambd", 0), HasSubstr("attribute lambd is of type INT, expected FLOAT"));
}

TEST(OnnxImporterTest, CausalConvolutionsThatHaveNoMeaning) {
  const auto error_of = [](const std::vector<int64_t>& weight, const std::vector<int64_t>& past,
                           const char* activation) {
    ModelProto model = EmptyModel(27);
    AddInitializer(model, "sequence", Tensor::Of<int64_t>({3}, {2, 1, 4}));
    AddNode(model, "Reshape", {"x", "sequence"}, {"x3"});
    AddInitializer(model, "w", Tensor::Full({DType::kF32, Shape(weight)}, 0.5));
    AddInitializer(model, "past", Tensor::Full({DType::kF32, Shape(past)}, 0.5));
    AddString(AddNode(model, "CausalConvWithState", {"x3", "w", "", "past"}, {"y"}), "activation", activation);
    return ErrorOf(Import(model, {{"n", 2}}));
  };
  EXPECT_EQ(error_of({1, 1, 3}, {2, 1, 2}, "silu"), "imported");
  EXPECT_THAT(error_of({1, 1, 3}, {2, 1, 2}, "relu"),
              HasSubstr("attribute activation is 'relu', expected none, silu or swish, at onnx:CausalConvWithState_1"));
  EXPECT_THAT(error_of({4, 1, 3}, {2, 1, 2}, "none"),
              HasSubstr("input is f32[2,1,4] and weight f32[4,1,3], expected [batch, channels, length] and"));
  EXPECT_THAT(error_of({1, 1, 0}, {2, 1, 0}, "none"), HasSubstr("with k of at least 1"));
  EXPECT_THAT(error_of({1, 1, 3}, {2, 1, 3}, "none"), HasSubstr("past_state is f32[2,1,3], expected f32[2,1,2]"));
}

TEST(OnnxImporterTest, LinearAttentionThatHasNoMeaning) {
  using Dims = std::vector<int64_t>;
  const auto error_of = [](const char* rule, int64_t heads, const std::vector<Dims>& inputs) {
    ModelProto model = EmptyModel(27);
    std::vector<std::string> names;
    for (const Dims& dims : inputs) {
      names.push_back(dims.empty() ? "" : "input" + std::to_string(names.size()));
      if (!dims.empty()) AddInitializer(model, names.back(), Tensor::Full({DType::kF32, Shape(dims)}, 0.5));
    }
    NodeProto& node = AddNode(model, "LinearAttention", names, {"y"});
    AddString(node, "update_rule", rule);
    AddInt(node, "q_num_heads", 2);
    AddInt(node, "kv_num_heads", heads);
    return ErrorOf(Import(model, {{"n", 2}}));
  };
  const Dims q = {2, 5, 6}, v = {2, 5, 8}, past = {2, 2, 3, 4}, decay = {2, 5, 2}, beta = {2, 5, 1};
  EXPECT_EQ(error_of("gated_delta", 2, {q, q, v, past, decay, beta}), "imported");
  EXPECT_THAT(error_of("rotated", 2, {q, q, v}),
              HasSubstr("attribute update_rule is 'rotated', expected linear, gated, delta or gated_delta"));
  EXPECT_THAT(error_of("delta", 2, {q, q, v}), HasSubstr("input 5 (beta) is missing, which update_rule 'delta' needs"));
  EXPECT_THAT(
      error_of("linear", 2, {q, q, v, {}, decay}),
      HasSubstr("input 4 (decay) is given, which update_rule 'linear' does not have, at onnx:LinearAttention_0"));
  EXPECT_THAT(error_of("linear", 3, {q, q, v}), HasSubstr("q_num_heads is 2 and kv_num_heads 3, expected a multiple"));
  EXPECT_THAT(error_of("linear", 2, {q, v, v}), HasSubstr("input 1 is f32[2,5,8], expected floats of shape [2, 5, 6]"));
  EXPECT_THAT(error_of("gated", 2, {q, q, v, {}, {2, 5, 3}}),
              HasSubstr("input 4 is f32[2,5,3], expected floats of shape [2, 5, 2] or with 6 in the last dimension"));
  EXPECT_THAT(error_of("linear", 2, {q, q, v, {2, 2, 4, 3}}),
              HasSubstr("input 3 (past_state) is f32[2,2,4,3], expected floats of shape [2,2,3,4]"));
}

TEST(OnnxImporterTest, ValuesThatDoNotExistOrExistTwice) {
  ModelProto model = EmptyModel();
  AddNode(model, "Relu", {"z"}, {"y"});
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})), HasSubstr("input 0 ('z') is neither an input of the graph"));
  model.mutable_graph()->mutable_node(0)->set_input(0, "x");
  AddNode(model, "Tanh", {"x"}, {"y"});
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})), HasSubstr("two values are named 'y', at onnx:Tanh_1"));
  model.mutable_graph()->clear_node();
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})), HasSubstr("output 'y' is not computed by any node"));
  AddNode(model, "Add", {"x"}, {"y"});
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})), HasSubstr("Add: input 1 is missing"));
}

// --- Indices ---------------------------------------------------------------------------------------------------------

// Known indices with a constant step become a slice; other indices, and indices that are data, become a gather.
TEST(OnnxImporterTest, GatherIsASliceWhereOneDoes) {
  const auto nodes = [](const std::vector<int64_t>& indices) {
    ModelProto model = EmptyModel();
    AddInitializer(model, "i", Tensor::Of<int64_t>({static_cast<int64_t>(indices.size())}, indices));
    AttributeProto& axis = *AddNode(model, "Gather", {"x", "i"}, {"y"}).add_attribute();
    axis.set_name("axis");
    axis.set_type(AttributeProto::INT);
    axis.set_i(1);
    const auto imported = Import(model, {{"n", 2}});
    EXPECT_TRUE(imported.ok()) << imported.status();
    std::vector<std::string> names;
    for (const Node& node : imported->graph.nodes()) names.push_back(node.op_name());
    return names;
  };
  EXPECT_THAT(nodes({1, 3}), ElementsAre("slice"));
  EXPECT_THAT(nodes({-2}), ElementsAre("slice"));
  EXPECT_THAT(nodes({0, 1, 2, -1}), ElementsAre());
  EXPECT_THAT(nodes({3, 1}), ElementsAre("constant", "gather"));
  EXPECT_THAT(nodes({1, 1}), ElementsAre("constant", "gather"));
  EXPECT_THAT(nodes({0, 1, 3}), ElementsAre("constant", "gather"));
}

// A tuple with one index out of range must not become the index of another element.
TEST(OnnxImporterTest, TuplesOutOfRangeAreErrors) {
  const auto status = [](const std::vector<int64_t>& tuples) {
    ModelProto model = EmptyModel();
    AddInitializer(model, "i", Tensor::Of<int64_t>({static_cast<int64_t>(tuples.size()) / 2, 2}, tuples));
    AddNode(model, "GatherND", {"x", "i"}, {"y"});
    const auto imported = Import(model, {{"n", 2}});
    if (!imported.ok()) return imported.status();
    return InterpretOneRank(imported->graph, {Tensor({DType::kF32, {2, 4}})}).status();
  };
  EXPECT_TRUE(status({1, 3, -2, -4}).ok()) << status({1, 3, -2, -4});
  for (const std::vector<int64_t>& tuple : std::vector<std::vector<int64_t>>{{0, 4}, {2, 0}, {1, -5}, {-3, 1}}) {
    EXPECT_THAT(std::string(status(tuple).message()),
                AllOf(HasSubstr("gather (C6): index 8"), HasSubstr("onnx:GatherND_0")))
        << tuple[0] << ", " << tuple[1];
  }
}

// If there are fewer indices along another axis than elements, the elements beyond them are not gathered, or not
// changed.
TEST(OnnxImporterTest, ElementsAreIndexedInPart) {
  const auto result = [](const std::string& type) {
    ModelProto model = EmptyModel();
    AddInitializer(model, "i", Tensor::Of<int64_t>({1, 2}, {1, -1}));
    AddInitializer(model, "u", Tensor::Of<int64_t>({1, 2}, {90, 80}));
    AddNode(model, "Cast", {"u"}, {"f"});
    AttributeProto& to = *model.mutable_graph()->mutable_node(0)->add_attribute();
    to.set_name("to");
    to.set_type(AttributeProto::INT);
    to.set_i(TensorProto::FLOAT);
    NodeProto& node = AddNode(model, type, {"x", "i"}, {"y"});
    if (type != "GatherElements") node.add_input("f");
    AttributeProto& axis = *node.add_attribute();
    axis.set_name("axis");
    axis.set_type(AttributeProto::INT);
    const auto imported = Import(model, {{"n", 2}});
    EXPECT_TRUE(imported.ok()) << imported.status();
    const auto results = InterpretOneRank(imported->graph, {Tensor::Of<float>({2, 4}, {0, 1, 2, 3, 4, 5, 6, 7})});
    EXPECT_TRUE(results.ok()) << results.status();
    return (*results)[0];
  };
  EXPECT_EQ(result("GatherElements"), Tensor::Of<float>({1, 2}, {4, 5}));
  EXPECT_EQ(result("ScatterElements"), Tensor::Of<float>({2, 4}, {0, 1, 2, 3, 90, 80, 6, 7}));
}

TEST(OnnxImporterTest, ShapesThatDependOnData) {
  ModelProto model = EmptyModel();
  AddNode(model, "Cast", {"x"}, {"c"}).add_attribute()->set_name("to");
  model.mutable_graph()->mutable_node(0)->mutable_attribute(0)->set_type(AttributeProto::INT);
  model.mutable_graph()->mutable_node(0)->mutable_attribute(0)->set_i(TensorProto::INT64);
  AddNode(model, "Reshape", {"x", "c"}, {"y"});
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("Reshape: input 1 (c) must be known before the program runs, at onnx:Reshape_1"));
}

TEST(OnnxImporterTest, TensorsWhoseDataDoesNotFit) {
  ModelProto model = MatMulModel();
  model.mutable_graph()->mutable_initializer(0)->set_raw_data("123");
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})),
              HasSubstr("initializer 'fc1.weight': has 3 bytes of data, its type f32[4,3] takes 48"));
  model.mutable_graph()->mutable_initializer(0)->set_dims(0, int64_t{1} << 40);
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})), HasSubstr("is too large"));
  model.mutable_graph()->mutable_initializer(0)->set_data_type(TensorProto::STRING);
  EXPECT_THAT(ErrorOf(Import(model, {{"n", 2}})), HasSubstr("element type STRING is not supported"));
}

// A converter may read the shapes of its inputs after an attribute of the wrong type.
TEST(OnnxImporterTest, AWrongAttributeIsFoundBeforeAnInputIsUsed) {
  ModelProto model = EmptyModel();
  AddInitializer(model, "sizes", Tensor::Of<int64_t>({2}, {1, 1}));
  NodeProto& node = AddNode(model, "SplitToSequence", {"x", "sizes"}, {"parts"});
  onnx::AttributeProto* axis = node.add_attribute();
  axis->set_name("axis");
  axis->set_type(onnx::AttributeProto::FLOAT);
  AddNode(model, "ConcatFromSequence", {"parts"}, {"y"});
  EXPECT_THAT(ErrorOf(ImportOnnxBytes(model.SerializeAsString(), "m.onnx", {.dims = {{"n", 2}}})),
              HasSubstr("SplitToSequence: attribute axis"));
}

}  // namespace
}  // namespace lockstep
