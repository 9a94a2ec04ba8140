// Convolution, and transposed convolution, in one to three spatial dimensions.

#include <algorithm>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/products.h"
#include "frontends/onnx/windows.h"

namespace lockstep {

namespace {

using Ints = std::vector<int64_t>;

// The extents of a filter's window; an error if the attribute kernel_shape differs.
absl::StatusOr<Ints> WindowOf(OnnxNode& n, Value filter) {
  if (filter.shape().rank() < 3) return n.Error() << "the filter is " << filter.type() << ", expected rank 3 or more";
  const Ints size(filter.shape().dims().begin() + 2, filter.shape().dims().end());
  const Ints kernel_shape = n.Ints("kernel_shape", size);
  if (kernel_shape == size) return size;
  return n.Error() << "attribute kernel_shape is " << ListToString(kernel_shape) << ", the filter is " << filter.type();
}

// y plus the bias, which is input i if present, one number per channel.
absl::StatusOr<Value> PlusBias(OnnxNode& n, Value y, int i) {
  if (!n.has_input(i)) return y;
  const Value bias = n.input(i);
  RETURN_IF_ERROR(n.b().status());
  const Shape channels({y.shape()[1]});
  if (bias.shape() != channels) return n.Error() << "bias is " << n.type(i) << ", expected shape " << channels;
  return n.b().Add(y, n.b().BroadcastAlong(bias, y.shape(), 1));
}

}  // namespace

absl::StatusOr<Value> Convolve(OnnxNode& n, Value x, Value filter) {
  ASSIGN_OR_RETURN(const Ints size, WindowOf(n, filter));
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

// True if the bias is the one that PyTorch 2.13's exporter writes for a conv3d without bias: zeros, in a shape that a
// bias cannot have.
bool IsNoBias(OnnxNode& n) {
  if (!n.has_input(2) || n.TorchOperator() != "conv3d.default") return false;
  const Tensor* const bias = n.DataIndependentInput(2);
  return bias != nullptr && bias->shape().rank() != 1 && *bias == Tensor::Full(bias->type(), 0);
}

absl::Status Conv(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Value x = n.input(0), filter = n.input(1);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Value y, Convolve(n, x, filter));
  if (IsNoBias(n)) {
    n.SetOutput(0, y);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Value result, PlusBias(n, y, 2));
  n.SetOutput(0, result);
  return absl::OkStatus();
}

// The attributes of ConvTranspose and the extents of its result, one entry for each spatial dimension.
struct Transposed {
  OnnxWindows windows;
  Ints output;  // extents of the result
};

// Chooses the paddings that give a result of extents `output`. If `output` is larger than the result without padding,
// zeros are added at its end.
void ChoosePadding(Transposed& t, const Ints& unpadded, bool upper) {
  for (size_t i = 0; i < unpadded.size(); ++i) {
    const int64_t total = std::max<int64_t>(unpadded[i] - t.output[i], 0);
    t.windows.padding_low[i] = upper ? total / 2 : total - total / 2;
    t.windows.padding_high[i] = total - t.windows.padding_low[i];
  }
}

absl::StatusOr<Transposed> ReadTransposed(OnnxNode& n, const Shape& x, const Ints& size) {
  Transposed t;
  ASSIGN_OR_RETURN(t.windows, ReadWindows(n, size, /*has_dilation=*/true, /*has_ceil_mode=*/false));
  const OnnxWindows& w = t.windows;
  const std::string auto_pad = n.String("auto_pad", "NOTSET");
  const Ints more = n.Ints("output_padding", Ints(size.size(), 0));
  t.output = n.Ints("output_shape");
  if (t.output.size() == size.size() + 2) t.output.erase(t.output.begin(), t.output.begin() + 2);  // with N and C
  const bool is_given = !t.output.empty(), is_same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  if (more.size() != size.size() || (is_given && t.output.size() != size.size())) {
    return n.Error() << "attributes output_padding " << ListToString(more) << " and output_shape "
                     << ListToString(t.output) << ", expected " << size.size() << " entries";
  }
  Ints unpadded;
  for (size_t i = 0; i < size.size(); ++i) {
    const int64_t extent = x.dims()[i + 2];
    if (more[i] < 0 || more[i] >= std::max(w.stride[i], w.dilation[i])) {
      return n.Error() << "attribute output_padding is " << ListToString(more)
                       << ", expected less than the stride or the dilation";
    }
    unpadded.push_back(w.stride[i] * (extent - 1) + (size[i] - 1) * w.dilation[i] + 1 + more[i]);
    if (is_given) continue;
    t.output.push_back(is_same ? extent * w.stride[i] : unpadded[i] - w.padding_low[i] - w.padding_high[i]);
  }
  if (is_given || is_same) ChoosePadding(t, unpadded, auto_pad == "SAME_UPPER");
  return t;
}

// Computes the gradient of a convolution with respect to its input, with x as the gradient of its result.
// output_padding first reduces the padding at the end, as far as there is any. The convolution's gradient covers at
// most stride - 1 places that no window reaches; zeros are added for the others.
absl::Status ConvTranspose(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Value x = n.input(0), filter = n.input(1);
  RETURN_IF_ERROR(b.status());
  const int64_t groups = n.Int("group", 1);
  ASSIGN_OR_RETURN(const Ints size, WindowOf(n, filter));
  ASSIGN_OR_RETURN(Transposed t, ReadTransposed(n, x.shape(), size));
  OnnxWindows& w = t.windows;
  if (groups < 1 || groups > int64_t{1} << 30) return n.Error() << "attribute group is " << groups;
  Ints reached = {x.shape()[0], filter.shape()[1] * groups}, rest = {0, 0};
  for (size_t i = 0; i < size.size(); ++i) {
    const int64_t unpadded = w.stride[i] * x.shape().dims()[i + 2] + (size[i] - 1) * w.dilation[i] - w.padding_low[i];
    w.padding_high[i] = std::min(w.padding_high[i], std::max<int64_t>(unpadded - t.output[i], 0));
    const int64_t most = unpadded - w.padding_high[i];
    reached.push_back(std::min(t.output[i], most));
    rest.push_back(t.output[i] - reached.back());
  }
  RETURN_IF_ERROR(n.CheckedShape(reached).status());
  const Value y = b.Op("convolution_grad_input", {filter, x},
                       {{"input_shape", reached},
                        {"stride", w.stride},
                        {"padding_low", w.padding_low},
                        {"padding_high", w.padding_high},
                        {"dilation", w.dilation},
                        {"groups", groups}});
  const bool is_all = rest == Ints(rest.size(), 0);
  const Value padded = is_all ? y : b.Pad(y, Ints(rest.size(), 0), rest);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Value result, PlusBias(n, padded, 2));
  n.SetOutput(0, result);
  return absl::OkStatus();
}

// A convolution of each channel of a sequence, [batch, channels, length], that sees no later positions. Before the
// first position are the past ones, or zeros.
absl::Status CausalConvWithState(OnnxNode& n) {
  Builder& b = n.b();
  enum Input { kX, kFilter, kBias, kPast };
  const std::string activation = n.String("activation", "none");
  RETURN_IF_ERROR(n.RequireRank(kX, 3));
  RETURN_IF_ERROR(n.RequireRank(kFilter, 3));
  const Value x = n.input(kX), filter = n.input(kFilter);
  if (activation != "none" && activation != "silu" && activation != "swish")
    return n.Error() << "attribute activation is '" << activation << "', expected none, silu or swish";
  const int64_t channels = x.shape()[1], size = filter.shape()[2];
  if (x.shape().rank() != 3 || filter.shape() != Shape({channels, 1, size}) || size < 1) {
    return n.Error() << "input is " << x.type() << " and weight " << filter.type()
                     << ", expected [batch, channels, length] and [channels, 1, k] with k of at least 1";
  }
  const bool has_past = n.has_input(kPast);
  const Shape past_shape({x.shape()[0], channels, size - 1});
  if (has_past && n.input(kPast) && n.type(kPast) != TensorType{x.dtype(), past_shape})
    return n.Error() << "past_state is " << n.type(kPast) << ", expected " << TensorType{x.dtype(), past_shape};
  const Value whole = has_past ? b.Concat({n.input(kPast), x}, 2) : b.Pad(x, {0, 0, size - 1}, {0, 0, 0});
  Value y = b.Op("convolution", {has_past ? whole : x, filter},
                 {{"stride", Ints{1}},
                  {"padding_low", Ints{has_past ? 0 : size - 1}},
                  {"padding_high", Ints{0}},
                  {"dilation", Ints{1}},
                  {"groups", channels}});
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(y, PlusBias(n, y, kBias));
  n.SetOutput(0, activation == "none" ? y : b.Mul(y, b.Unary("sigmoid", y)));
  n.SetOutput(1, b.Slice(whole, {0, 0, x.shape()[2]}, whole.shape().dims()));
  return b.status();
}

}  // namespace

std::vector<OnnxOp> ConvolutionOps() {
  return {
      {"CausalConvWithState", 27, kNoEnd, 2, 4, CausalConvWithState},
      {"Conv", 1, kNoEnd, 2, 3, Conv},
      {"ConvTranspose", 1, kNoEnd, 2, 3, ConvTranspose},
  };
}

}  // namespace lockstep
