#include "test/fake_cuda/cudnn_descriptors.h"

#include <algorithm>
#include <iterator>

#include "test/fake_cuda/cudnn_convolution.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kMaxDims = 8;

struct AttributeRow {
  cudnnBackendDescriptorType_t of;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t most = 1;
  cudnnBackendDescriptorType_t descriptor = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;  // the kind it must have
  bool is_required = true;
};

// The attributes of an operation: its tensors, its convolution, and its factors.
#define LOCKSTEP_FAKE_OPERATION(of, prefix, x, w, y)                                                   \
  {of, prefix##x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR},                  \
      {of, prefix##w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR},              \
      {of, prefix##y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR},              \
      {of, prefix##CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR}, \
      {of, prefix##ALPHA, CUDNN_TYPE_FLOAT}, {of, prefix##BETA, CUDNN_TYPE_FLOAT},                     \
      {of, prefix##ALPHA, CUDNN_TYPE_DOUBLE}, {                                                        \
    of, prefix##BETA, CUDNN_TYPE_DOUBLE                                                                \
  }

constexpr AttributeRow kRows[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, kMaxDims},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, kMaxDims},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, kMaxDims},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, kMaxDims},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, kMaxDims},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, kMaxDims},
    LOCKSTEP_FAKE_OPERATION(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_, X, W, Y),
    LOCKSTEP_FAKE_OPERATION(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_, DX, W, DY),
    LOCKSTEP_FAKE_OPERATION(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_, X, DW, DY),
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     CUDNN_BACKEND_ENGINECFG_DESCRIPTOR},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 64},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 64},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
     CUDNN_BACKEND_POINTWISE_DESCRIPTOR, false},
};

std::string CheckTensor(const FakeDescriptor& tensor) {
  const auto dims = tensor.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
             strides = tensor.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if (dims.size() != strides.size()) return "a tensor's strides and dimensions differ in number";
  for (const auto* list : {&dims, &strides}) {
    if (std::any_of(list->begin(), list->end(), [](int64_t i) { return i < 1; }))
      return "a dimension or stride below 1";
  }
  const auto alignment = tensor.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  return alignment < 1 || (alignment & (alignment - 1)) != 0 ? "an alignment that is not a power of two" : "";
}

std::string CheckWindow(const FakeDescriptor& window) {
  const auto spatial = window.One<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
  if (spatial < 2 || spatial > 3) return "a convolution has two or three spatial dimensions";
  for (const auto& [name, least] :
       {std::pair(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0), std::pair(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0),
        std::pair(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1), std::pair(CUDNN_ATTR_CONVOLUTION_DILATIONS, 1)}) {
    const auto values = window.All<int64_t>(name);
    if (static_cast<int64_t>(values.size()) != spatial) return "not one value for each spatial dimension";
    for (int64_t value : values) {
      if (value < least) return "a value of a window is too small";
    }
  }
  return "";
}

std::string CheckPack(const FakeDescriptor& pack) {
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  return ids.size() != pointers.size() ? "not one pointer for each tensor" : "";
}

}  // namespace

size_t BytesOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_FLOAT:
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_NUMERICAL_NOTE: return 4;
    default: return 0;
  }
}

std::string CheckAttribute(const FakeDescriptor& descriptor, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count,
                           const std::vector<std::shared_ptr<FakeDescriptor>>& descriptors) {
  const std::string attribute = "attribute " + std::to_string(name) + ": ";
  if (descriptor.is_final) return attribute + "the descriptor is final";
  const auto is_of = [&](const AttributeRow& row) { return row.of == descriptor.type && row.name == name; };
  if (std::none_of(std::begin(kRows), std::end(kRows), is_of))
    return attribute + "this kind of descriptor does not have it";
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const AttributeRow& r) { return is_of(r) && r.type == type; });
  if (row == std::end(kRows)) return attribute + "type " + std::to_string(type) + " is not its type";
  if (count < 1 || count > row->most) return attribute + std::to_string(count) + " elements";
  for (const auto& value : descriptors) {
    if (value == nullptr) return attribute + "no descriptor, or one that was destroyed";
    if (!value->is_final) return attribute + "a descriptor that is not final";
    const bool fits =
        name == CUDNN_ATTR_OPERATIONGRAPH_OPS ? FakeConvolution::IsOne(value->type) : value->type == row->descriptor;
    if (!fits) return attribute + "a descriptor of another kind";
  }
  return "";
}

std::string CheckFinal(const FakeDescriptor& descriptor) {
  bool is_known = false;
  for (const AttributeRow& row : kRows) {
    if (row.of != descriptor.type) continue;
    is_known = true;
    if (row.is_required && descriptor.attributes.count(row.name) == 0) {
      return "attribute " + std::to_string(row.name) + " is missing";
    }
  }
  if (!is_known) return "a descriptor of kind " + std::to_string(descriptor.type) + " is not made final by the caller";
  if (descriptor.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) return CheckTensor(descriptor);
  if (descriptor.type == CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR) return CheckWindow(descriptor);
  if (descriptor.type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) return CheckPack(descriptor);
  if (FakeConvolution::IsOne(descriptor.type)) return FakeConvolution(descriptor).Check();
  return "";
}

}  // namespace lockstep::cuda
