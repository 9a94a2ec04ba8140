// Convolution in one to three spatial dimensions.

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/products.h"
#include "frontends/onnx/windows.h"

namespace lockstep {

absl::StatusOr<Value> Convolve(OnnxNode& n, Value x, Value filter) {
  if (filter.shape().rank() < 3) return n.Error() << "the filter is " << filter.type() << ", expected rank 3 or more";
  const std::vector<int64_t>& dims = filter.shape().dims();
  const std::vector<int64_t> size(dims.begin() + 2, dims.end());
  const std::vector<int64_t> kernel_shape = n.Ints("kernel_shape", size);
  if (kernel_shape != size) {
    return n.Error() << "attribute kernel_shape is " << ListToString(kernel_shape) << ", the filter is "
                     << filter.type();
  }
  ASSIGN_OR_RETURN(const OnnxWindows windows, ReadWindows(n, size, /*has_dilation=*/true, /*has_ceil_mode=*/false));
  const Value y = n.b().Op("convolution", {x, filter},
                           {{"stride", windows.stride},
                            {"padding_low", windows.padding_low},
                            {"padding_high", windows.padding_high},
                            {"dilation", windows.dilation},
                            {"groups", n.Int("group", 1)}});
  RETURN_IF_ERROR(n.b().status());
  return y;
}

namespace {

absl::Status Conv(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Value x = n.input(0), filter = n.input(1);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(Value y, Convolve(n, x, filter));
  if (n.has_input(2)) {
    if (n.shape(2) != Shape({y.shape()[1]}))
      return n.Error() << "bias is " << n.type(2) << ", expected shape " << Shape({y.shape()[1]});
    y = b.Add(y, b.BroadcastAlong(n.input(2), y.shape(), 1));
  }
  n.SetOutput(0, y);
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> ConvolutionOps() { return {{"Conv", 1, kNoEnd, 2, 3, Conv}}; }

}  // namespace lockstep
