#include "test/fuzz/onnx_mutator.h"

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "frontends/onnx_importer.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  void Mutate(onnx::ModelProto& model) {
    onnx::GraphProto& graph = *model.mutable_graph();
    for (size_t changes = 1 + Below(3); changes > 0; --changes) {
      onnx::NodeProto& node = *graph.mutable_node(Index(graph.node_size()));
      switch (Below(9)) {
        case 0: SetOperator(node); break;
        case 1: ChangeInput(graph, node); break;
        case 2:
          if (node.attribute_size() > 0) ChangeAttribute(*node.mutable_attribute(Index(node.attribute_size())));
          break;
        case 3: AddAttribute(node); break;
        case 4:
          if (graph.initializer_size() > 0) ChangeTensor(*graph.mutable_initializer(Index(graph.initializer_size())));
          break;
        case 5:
          if (graph.input_size() > 0) ChangeShape(*graph.mutable_input(Index(graph.input_size())));
          break;
        case 6: *graph.add_node() = node; break;
        case 7: graph.mutable_node()->SwapElements(Index(graph.node_size()), Index(graph.node_size())); break;
        default:
          if (model.opset_import_size() > 0) model.mutable_opset_import(0)->set_version(1 + Index(28));
      }
    }
  }

 private:
  size_t Below(size_t limit) { return static_cast<size_t>(random_() % limit); }
  int Index(int size) { return static_cast<int>(Below(static_cast<size_t>(size))); }

  int64_t AnyInt() {
    static constexpr std::array<int64_t, 12> kInts = {0,
                                                      1,
                                                      2,
                                                      3,
                                                      5,
                                                      7,
                                                      -1,
                                                      -2,
                                                      16,
                                                      1 << 16,
                                                      std::numeric_limits<int64_t>::max(),
                                                      std::numeric_limits<int64_t>::min()};
    return kInts[Below(kInts.size())];
  }

  void SetOperator(onnx::NodeProto& node) {
    static const std::vector<OnnxOperator> operators = SupportedOnnxOperators();
    const OnnxOperator& chosen = operators[Below(operators.size())];
    node.set_domain(chosen.domain);
    node.set_op_type(chosen.type);
  }

  // Replaces an input by another value of the graph, removes one, or adds one.
  void ChangeInput(onnx::GraphProto& graph, onnx::NodeProto& node) {
    std::vector<std::string> names = {""};
    for (const onnx::NodeProto& other : graph.node())
      names.insert(names.end(), other.output().begin(), other.output().end());
    for (const onnx::TensorProto& tensor : graph.initializer()) names.push_back(tensor.name());
    for (const onnx::ValueInfoProto& input : graph.input()) names.push_back(input.name());
    const std::string& name = names[Below(names.size())];
    if (node.input_size() == 0 || Below(4) == 0) node.add_input(name);
    else node.set_input(Index(node.input_size()), name);
  }

  void ChangeAttribute(onnx::AttributeProto& attribute) {
    switch (attribute.type()) {
      case onnx::AttributeProto::INT: attribute.set_i(AnyInt()); break;
      case onnx::AttributeProto::FLOAT: attribute.set_f(static_cast<float>(AnyInt()) / 3); break;
      case onnx::AttributeProto::INTS:
        if (attribute.ints_size() == 0 || Below(3) == 0) attribute.add_ints(AnyInt());
        else if (Below(3) == 0) attribute.mutable_ints()->RemoveLast();
        else attribute.set_ints(Index(attribute.ints_size()), AnyInt());
        break;
      case onnx::AttributeProto::TENSOR: ChangeTensor(*attribute.mutable_t()); break;
      case onnx::AttributeProto::GRAPH:
        if (attribute.g().node_size() > 0) {
          onnx::NodeProto& node = *attribute.mutable_g()->mutable_node(Index(attribute.g().node_size()));
          if (Below(2) == 0) SetOperator(node);
          else ChangeInput(*attribute.mutable_g(), node);
        }
        break;
      default: attribute.set_name("axis");
    }
  }

  void AddAttribute(onnx::NodeProto& node) {
    static constexpr std::array kNames = {"axis", "axes",     "perm",  "to",        "kernel_shape", "strides",
                                          "pads", "keepdims", "group", "dilations", "mode",         "direction"};
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(kNames[Below(kNames.size())]);
    if (Below(2) == 0) {
      attribute.set_type(onnx::AttributeProto::INT);
      attribute.set_i(AnyInt());
    } else {
      attribute.set_type(onnx::AttributeProto::INTS);
      for (size_t count = Below(4); count > 0; --count) attribute.add_ints(AnyInt());
    }
  }

  void ChangeTensor(onnx::TensorProto& tensor) {
    if (tensor.dims_size() > 0 && Below(2) == 0) {
      tensor.set_dims(Index(tensor.dims_size()), AnyInt());
    } else if (!tensor.raw_data().empty()) {
      std::string& raw = *tensor.mutable_raw_data();
      raw[Below(raw.size())] = static_cast<char>(random_());
    } else if (tensor.int64_data_size() > 0) {
      tensor.set_int64_data(Index(tensor.int64_data_size()), AnyInt());
    } else {
      tensor.set_data_type(1 + Index(16));
    }
  }

  void ChangeShape(onnx::ValueInfoProto& value) {
    onnx::TypeProto::Tensor& type = *value.mutable_type()->mutable_tensor_type();
    onnx::TensorShapeProto& shape = *type.mutable_shape();
    switch (Below(4)) {
      case 0: type.set_elem_type(1 + Index(16)); break;
      case 1: shape.add_dim()->set_dim_value(1 + Index(4)); break;
      case 2:
        if (shape.dim_size() > 0) shape.mutable_dim()->RemoveLast();
        break;
      default:
        if (shape.dim_size() > 0)
          shape.mutable_dim(Index(shape.dim_size()))->set_dim_value(Below(2) == 0 ? AnyInt() : Index(5));
    }
  }

  std::mt19937 random_;
};

}  // namespace

std::string MutateOnnx(std::string_view bytes, unsigned seed) {
  onnx::ModelProto model;
  if (!model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || model.graph().node_size() == 0) return "";
  Mutator(seed).Mutate(model);
  return model.SerializeAsString();
}

}  // namespace lockstep
