#include "backends/cuda/convolution_problem.h"

#include <algorithm>

#include "backends/loops/channels_last.h"
#include "core/attributes.h"

namespace lockstep::cuda {
namespace {

using Dims = std::vector<int64_t>;

constexpr uint32_t kUnit = 16;  // bytes that tensor cores read at once; engines see no larger alignment

ConvolutionProblem::Side RowMajor(const TensorType& type) {
  Dims dims = type.shape.dims();
  if (dims.size() == 3) dims.insert(dims.begin() + 2, 1);
  return {dims, Shape(dims).Strides()};
}

// Returns the attribute, with one value for each spatial dimension that the library sees.
Dims Spatial(const Node& node, std::string_view attribute, int64_t of_added) {
  Dims values = node.attr<Dims>(attribute);
  if (values.size() == 1) values.insert(values.begin(), of_added);
  return values;
}

uint64_t BytesInEights(const ConvolutionProblem::Side& side, uint64_t element) {
  uint64_t bytes = element;
  for (size_t i = 0; i < side.dims.size(); ++i) {
    const auto dim = static_cast<uint64_t>(side.dims[i]);
    bytes *= i == 1 ? (dim + 7) / 8 * 8 : dim;
  }
  return bytes;
}

}  // namespace

ConvolutionProblem::ConvolutionProblem(const Node& node, bool with_tf32, uint32_t of_values)
    : padding_low(Spatial(node, "padding_low", 0)),
      padding_high(Spatial(node, "padding_high", 0)),
      stride(Spatial(node, "stride", 1)),
      dilation(Spatial(node, "dilation", 1)) {
  const Side a = RowMajor(node.operand(0).type()), b = RowMajor(node.operand(1).type()), c = RowMajor(node.type());
  if (node.Is("convolution")) {
    x = a, filter = b, y = c;
  } else if (node.Is("convolution_grad_input")) {
    kind = Kind::kGradInput, filter = a, y = b, x = c;
  } else {
    kind = Kind::kGradFilter, x = a, y = b, filter = c;
  }
  switch (node.operand(0).dtype()) {
    case DType::kF64: type = compute = CUDNN_DATA_DOUBLE; break;
    case DType::kF16: type = CUDNN_DATA_HALF; break;
    case DType::kBF16: type = CUDNN_DATA_BFLOAT16; break;
    default: tf32 = with_tf32;
  }
  alignment = std::min(kUnit, std::max(of_values, static_cast<uint32_t>(SizeOf(node.operand(0).dtype()))));
  is_wide_product = node.type().dtype != node.operand(0).dtype();
  const auto unit = static_cast<int64_t>(kUnit / ElementBytes());
  const bool has_tensor_cores = ElementBytes() == 2 || tf32;
  const bool may_pad_x = ElementBytes() == 2 && groups() == 1;
  channels_last =
      is_wide_product || (has_tensor_cores && alignment == kUnit && (filter.dims[1] % unit == 0 || may_pad_x) &&
                          filter.dims[0] % (groups() * unit) == 0);
  if (!channels_last) return;
  for (Side* side : {&x, &filter, &y}) side->strides = ChannelsLastStrides(side->dims);
}

uint64_t ConvolutionProblem::ElementBytes() const {
  return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}

std::array<uint64_t, 3> ConvolutionProblem::BytesOfTensors() const {
  const auto bytes = [&](const Side& side) {
    return static_cast<uint64_t>(Shape(side.dims).num_elements()) * ElementBytes();
  };
  if (kind == Kind::kForward) return {bytes(x), bytes(filter), bytes(y)};
  if (kind == Kind::kGradInput) return {bytes(filter), bytes(y), bytes(x)};
  return {bytes(x), bytes(y), bytes(filter)};
}

uint64_t ConvolutionProblem::WorkspaceLimit() const {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const uint64_t element = ElementBytes();
  return 32 * kMiB + BytesInEights(x, element) + BytesInEights(filter, element) + BytesInEights(y, element);
}

std::string ConvolutionProblem::ToString() const {
  const char* op = kind == Kind::kForward     ? "convolution"
                   : kind == Kind::kGradInput ? "convolution_grad_input"
                                              : "convolution_grad_filter";
  const char* name = type == CUDNN_DATA_DOUBLE     ? "f64"
                     : type == CUDNN_DATA_HALF     ? "f16"
                     : type == CUDNN_DATA_BFLOAT16 ? "bf16"
                                                   : "f32";
  return std::string(op) + " of x" + Shape(x.dims).ToString() + ", filter" + Shape(filter.dims).ToString() + ", y" +
         Shape(y.dims).ToString() + ", padding " + ListToString(padding_low) + "+" + ListToString(padding_high) +
         ", stride " + ListToString(stride) + ", dilation " + ListToString(dilation) + ", " + name +
         (tf32 ? " in tf32" : "") + (channels_last ? ", channels-last" : "");
}

}  // namespace lockstep::cuda
