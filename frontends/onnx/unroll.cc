#include "frontends/onnx/unroll.h"

#include <algorithm>

#include "core/builder.h"
#include "frontends/onnx/tensor_data.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

std::string Describe(const OnnxValue& value) {
  const Value* tensor = std::get_if<Value>(&value);
  return tensor != nullptr ? tensor->type().ToString() : std::string(KindOf(value));
}

// The type in `info`; an error unless each dimension has an extent.
absl::StatusOr<TensorType> TypeOfInfo(const OnnxNode& n, const onnx::ValueInfoProto& info) {
  const onnx::TypeProto::Tensor& type = info.type().tensor_type();
  if (!info.type().has_tensor_type() || !type.has_shape()) {
    return n.Error() << "has no iterations, and its body does not declare the type of output '" << info.name() << "'";
  }
  ASSIGN_OR_RETURN(const DType dtype, DTypeFromOnnx(type.elem_type()));
  std::vector<int64_t> dims;
  for (const onnx::TensorShapeProto::Dimension& dim : type.shape().dim()) {
    if (!dim.has_dim_value()) {
      return n.Error() << "has no iterations, and its body does not declare the shape of output '" << info.name()
                       << "'";
    }
    dims.push_back(dim.dim_value());
  }
  ASSIGN_OR_RETURN(Shape shape, n.CheckedShape(std::move(dims)));
  return TensorType{dtype, std::move(shape)};
}

}  // namespace

absl::StatusOr<bool> KnownCondition(OnnxNode& n, const OnnxValue& condition, std::string_view what) {
  const Value* value = std::get_if<Value>(&condition);
  if (value == nullptr) return n.Error() << what << " is " << KindOf(condition) << ", expected a condition";
  if (value->dtype() != DType::kBool || value->shape().num_elements() != 1)
    return n.Error() << what << " is " << value->type() << ", expected one bool";
  const Tensor* known = n.FindConstant(*value);
  if (known == nullptr) return n.Unsupported() << what << " must be known before the program runs";
  return known->At(0) != 0;
}

absl::StatusOr<std::vector<Value>> AddScan(OnnxNode& n, const Graph& body, const ScanParts& parts, int64_t length,
                                           bool reverse) {
  ASSIGN_OR_RETURN(NodeSpec spec, MakeScan(body, parts, length, reverse, n.source()));
  std::vector<Value> results = n.b().Ops("scan", std::move(spec.operands), std::move(spec.attributes));
  RETURN_IF_ERROR(n.b().status());
  return results;
}

absl::StatusOr<std::vector<Value>> ScanOf(OnnxNode& n, OnnxLoopBody loop, size_t num_carried, int64_t length,
                                          bool reverse) {
  for (size_t i = 0; i < num_carried; ++i) {
    const TensorType &first = loop.parts.carried[i].outer.type(), &next = loop.outputs[i].type();
    if (first == next) continue;
    return n.Error() << "a carried value becomes " << next << " in an iteration, expected " << first;
  }
  const auto carried = static_cast<std::ptrdiff_t>(num_carried);
  loop.parts.next_carried.assign(loop.outputs.begin(), loop.outputs.begin() + carried);
  loop.parts.stacked.assign(loop.outputs.begin() + carried, loop.outputs.end());
  return AddScan(n, loop.body, loop.parts, length, reverse);
}

absl::Status CheckUnrolled(const OnnxNode& n, int64_t count, std::string_view of_what, const absl::Status& not_a_loop) {
  if (count <= kMaxUnrolled) return absl::OkStatus();
  if (!not_a_loop.ok()) {
    return n.Unsupported() << "more than " << kMaxUnrolled << " " << of_what
                           << ", and the body cannot run as a loop: " << not_a_loop.message();
  }
  return n.Unsupported() << "more than " << kMaxUnrolled << " " << of_what
                         << ": each becomes nodes of its own, and so many would take too long to compile";
}

Value ElementAlong(Builder& b, Value x, int64_t axis, int64_t at) {
  if (!x) return x;
  std::vector<int64_t> start(static_cast<size_t>(x.shape().rank()), 0), limit = x.shape().dims();
  start[static_cast<size_t>(axis)] = at;
  limit[static_cast<size_t>(axis)] = at + 1;
  const Value slice = x.shape()[axis] == 1 ? x : b.Slice(x, start, limit);
  return b.Reshape(slice, x.shape().Without({axis}));
}

absl::StatusOr<Value> Stack(OnnxNode& n, const std::vector<OnnxValue>& parts, int64_t axis,
                            const onnx::ValueInfoProto& info) {
  RETURN_IF_ERROR(n.b().status());
  TensorType type;
  if (parts.empty()) {
    ASSIGN_OR_RETURN(type, TypeOfInfo(n, info));
  } else if (const Value* first = std::get_if<Value>(&parts[0])) {
    type = first->type();
  }
  for (const OnnxValue& part : parts) {
    const Value* tensor = std::get_if<Value>(&part);
    if (tensor != nullptr && tensor->type() == type) continue;
    return n.Error() << "the body's output '" << info.name() << "' is " << Describe(parts[0]) << " in one run, and "
                     << Describe(part) << " in another; expected tensors of one type";
  }
  ASSIGN_OR_RETURN(axis, n.Axis(axis, type.shape.rank() + 1));
  std::vector<int64_t> dims = type.shape.dims();
  dims.insert(dims.begin() + axis, parts.empty() ? 0 : 1);
  const Shape shape{dims};
  if (parts.empty()) return n.b().Constant(Tensor(TensorType{type.dtype, shape}));
  std::vector<Value> stretched;
  for (const OnnxValue& part : parts) stretched.push_back(n.b().Reshape(std::get<Value>(part), shape));
  const Value result = stretched.size() == 1 ? stretched[0] : n.b().Concat(stretched, axis);
  RETURN_IF_ERROR(n.b().status());
  return result;
}

}  // namespace lockstep
