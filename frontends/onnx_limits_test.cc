// Small files that ask for unbounded work: each import ends soon, in an error or a graph. Without limits, each would
// take hours.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bazel/num_cases.h"
#include "core/verifier.h"
#include "frontends/onnx/tensor_data.h"
#include "frontends/onnx_importer.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

using onnx::AttributeProto;
using onnx::GraphProto;
using onnx::ModelProto;
using Names = std::vector<std::string>;
using testing::HasSubstr;

AttributeProto Attribute(const std::string& name, const std::vector<int64_t>& values) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(AttributeProto::INTS);
  for (int64_t value : values) attribute.add_ints(value);
  return attribute;
}

AttributeProto Attribute(const std::string& name, int64_t value) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(AttributeProto::INT);
  attribute.set_i(value);
  return attribute;
}

AttributeProto Attribute(const std::string& name, const std::string& value) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(AttributeProto::STRING);
  attribute.set_s(value);
  return attribute;
}

AttributeProto Attribute(const std::string& name, const GraphProto& body) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(AttributeProto::GRAPH);
  *attribute.mutable_g() = body;
  return attribute;
}

void AddOperator(GraphProto& graph, const std::string& op, const Names& inputs, const std::string& output,
                 const std::vector<AttributeProto>& attributes = {}) {
  onnx::NodeProto& node = *graph.add_node();
  node.set_op_type(op);
  for (const std::string& input : inputs) node.add_input(input);
  node.add_output(output);
  for (const AttributeProto& attribute : attributes) *node.add_attribute() = attribute;
}

template <typename T>
void AddTensor(ModelProto& model, const std::string& name, const Shape& shape, const std::vector<T>& values) {
  onnx::TensorProto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name(name);
  EncodeTensor(Tensor::Of<T>(shape, values), tensor);
}

void AddList(ModelProto& model, const std::string& name, const std::vector<int64_t>& values) {
  AddTensor<int64_t>(model, name, Shape({static_cast<int64_t>(values.size())}), values);
}

// A model from x: f32[4] to y, without nodes.
ModelProto ModelOfOpset() {
  ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(20);
  GraphProto& graph = *model.mutable_graph();
  graph.set_name("test");
  for (auto* value : {graph.add_input(), graph.add_output()}) {
    auto& type = *value->mutable_type()->mutable_tensor_type();
    type.set_elem_type(onnx::TensorProto::FLOAT);
    type.mutable_shape()->add_dim()->set_dim_value(4);
  }
  graph.mutable_input(0)->set_name("x");
  graph.mutable_output(0)->set_name("y");
  return model;
}

// The same with a value `large`: f32[1,1,extent].
ModelProto ModelOfLarge(int64_t extent) {
  ModelProto model = ModelOfOpset();
  AddList(model, "shape", {1, 1, extent});
  AddTensor<int64_t>(model, "scalar", Shape(), {0});
  AddOperator(*model.mutable_graph(), "Gather", {"x", "scalar"}, "element");
  AddOperator(*model.mutable_graph(), "Expand", {"element", "shape"}, "large");
  return model;
}

std::string RefusalOf(const ModelProto& model) {
  const auto imported = ImportOnnxBytes(model.SerializeAsString(), "m.onnx");
  return imported.ok() ? "imported" : std::string(imported.status().message());
}

TEST(OnnxLimitsTest, LoopsOfConstantsRunWhenTheProgramDoes) {
  GraphProto body;
  for (const char* name : {"i", "goes_on", "c"}) body.add_input()->set_name(name);
  for (const char* name : {"goes_on", "d"}) body.add_output()->set_name(name);
  AddOperator(body, "Add", {"c", "one"}, "d");
  ModelProto model = ModelOfOpset();
  AddTensor<int64_t>(model, "trips", Shape(), {int64_t{1} << 31});
  AddList(model, "zero", {0});
  AddList(model, "one", {1});
  AddOperator(*model.mutable_graph(), "Loop", {"trips", "", "zero"}, "count", {Attribute("body", body)});
  AddOperator(*model.mutable_graph(), "Cast", {"count"}, "float", {Attribute("to", int64_t{1})});
  AddOperator(*model.mutable_graph(), "Add", {"x", "float"}, "y");
  const auto imported = ImportOnnxBytes(model.SerializeAsString(), "m.onnx");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(Verify(imported->graph).ok());
  EXPECT_THAT(imported->graph.ToString(), HasSubstr("= scan"));
}

TEST(OnnxLimitsTest, WideKernels) {
  ModelProto model = ModelOfLarge(1 << 30);
  AddList(model, "sizes", {1, 1, 4});
  AddOperator(*model.mutable_graph(), "Resize", {"large", "", "", "sizes"}, "y",
              {Attribute("mode", "linear"), Attribute("antialias", int64_t{1})});
  EXPECT_THAT(RefusalOf(model),
              HasSubstr("Resize: the tables of weights and positions that are computed for the nodes of "
                        "the file have"));
}

TEST(OnnxLimitsTest, RegionsFarAway) {
  ModelProto model = ModelOfLarge(8);
  AddList(model, "sizes", {1, 1, 4});
  AddTensor<float>(model, "roi", {6}, {0, 0, -3e38F, 1, 1, 3e38F});
  AddOperator(*model.mutable_graph(), "Resize", {"large", "roi", "", "sizes"}, "y",
              {Attribute("mode", "linear"), Attribute("coordinate_transformation_mode", "tf_crop_and_resize")});
  EXPECT_THAT(RefusalOf(model), HasSubstr("Resize: roi has -3e+38, expected parts of an extent"));
}

TEST(OnnxLimitsTest, GridsOfLargeImages) {
  ModelProto model = ModelOfOpset();
  AddTensor<float>(model, "theta", {1, 2, 3}, {1, 0, 0, 0, 1, 0});
  AddList(model, "size", {1, 1, 1 << 15, 1 << 15});
  AddOperator(*model.mutable_graph(), "AffineGrid", {"theta", "size"}, "y");
  EXPECT_THAT(RefusalOf(model), HasSubstr("AffineGrid: the tables of weights and positions"));
}

// Each table alone is allowed, all together are not.
TEST(OnnxLimitsTest, TablesOfAllNodesCount) {
  if (UnderSanitizer()) GTEST_SKIP() << "tables of millions take minutes";
  ModelProto model = ModelOfLarge(1 << 10);
  AddList(model, "sizes", {1, 1, 1 << 24});
  for (int i = 0; i < 4; ++i)
    AddOperator(*model.mutable_graph(), "Resize", {"large", "", "", "sizes"}, "y" + std::to_string(i));
  EXPECT_THAT(RefusalOf(model),
              HasSubstr("have 67108872 entries, of which this one has 16777216; expected at most 67108864"));
}

TEST(OnnxLimitsTest, LargeWindowsAtManyPlaces) {
  ModelProto model = ModelOfLarge(1 << 24);
  AddOperator(
      *model.mutable_graph(), "AveragePool", {"large"}, "y",
      {Attribute("kernel_shape", std::vector<int64_t>{1 << 22}), Attribute("dilations", std::vector<int64_t>{2})});
  EXPECT_THAT(RefusalOf(model), HasSubstr("is too large"));
}

// The boxes are known constants because they are small, but the suppression compares each box with each.
TEST(OnnxLimitsTest, ManyBoxes) {
  ModelProto model = ModelOfOpset();
  AddList(model, "boxes_shape", {1, 1 << 14, 4});
  AddList(model, "scores_shape", {1, 4, 1 << 14});
  AddList(model, "most", {1 << 14});
  AddOperator(*model.mutable_graph(), "ConstantOfShape", {"boxes_shape"}, "boxes");
  AddOperator(*model.mutable_graph(), "ConstantOfShape", {"scores_shape"}, "scores");
  AddOperator(*model.mutable_graph(), "NonMaxSuppression", {"boxes", "scores", "most"}, "chosen");
  EXPECT_THAT(RefusalOf(model), HasSubstr("NonMaxSuppression: the tables of weights and positions"));
}

}  // namespace
}  // namespace lockstep
