// Declares the classes of ONNX's schema that our headers name; source files that use their members include
// onnx/onnx.pb.h.

#pragma once

namespace google::protobuf {
template <typename Element>
class RepeatedPtrField;
}  // namespace google::protobuf

namespace lockstep::onnx {
class AttributeProto;
class FunctionProto;
class GraphProto;
class ModelProto;
class NodeProto;
class OperatorSetIdProto;
class TensorProto;
class ValueInfoProto;
}  // namespace lockstep::onnx
