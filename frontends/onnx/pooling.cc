// Pooling over windows, and over everything.

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/windows.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

Ints Sum(Ints a, const Ints& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

absl::Status MaxPool(OnnxNode& n) {
  n.Ignore("storage_order");  // of the indices, which are not supported
  ASSIGN_OR_RETURN(const OnnxWindows windows, ReadWindows(n, n.Ints("kernel_shape"), /*has_dilation=*/n.opset() >= 10,
                                                          /*has_ceil_mode=*/n.opset() >= 10));
  n.SetOutput(0, n.b().Op("max_pool", {n.input(0)},
                          {{"window", windows.size},
                           {"stride", windows.stride},
                           {"padding_low", windows.padding_low},
                           {"padding_high", Sum(windows.padding_high, windows.overhang)},
                           {"dilation", windows.dilation}}));
  return absl::OkStatus();
}

absl::Status AveragePool(OnnxNode& n) {
  Builder& b = n.b();
  bool include_padding = n.Flag("count_include_pad", false);
  ASSIGN_OR_RETURN(OnnxWindows windows, ReadWindows(n, n.Ints("kernel_shape"), /*has_dilation=*/n.opset() >= 19,
                                                    /*has_ceil_mode=*/n.opset() >= 10));
  const Ints none(windows.size.size(), 0);
  if (windows.dilation != Ints(windows.size.size(), 1)) {
    return n.Unsupported() << "attribute dilations is " << ListToString(windows.dilation) << ", expected 1";
  }
  Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  if (include_padding && windows.overhang != none) {
    // The padding counts, what lies after it does not: so the padding becomes part of x.
    Ints low = {0, 0}, high = {0, 0};
    low.insert(low.end(), windows.padding_low.begin(), windows.padding_low.end());
    high.insert(high.end(), windows.padding_high.begin(), windows.padding_high.end());
    x = b.Pad(x, low, high);
    windows.padding_low = windows.padding_high = none;
    include_padding = false;
  }
  n.SetOutput(0, b.Op("avg_pool", {x},
                      {{"window", windows.size},
                       {"stride", windows.stride},
                       {"padding_low", windows.padding_low},
                       {"padding_high", Sum(windows.padding_high, windows.overhang)},
                       {"include_padding", include_padding}}));
  return absl::OkStatus();
}

// Reduces all dimensions after the first two, which stay with extent 1.
absl::Status GlobalPool(OnnxNode& n, bool mean) {
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Value x = n.input(0);
  Ints dims;
  Shape kept = x.shape();
  for (int64_t i = 2; i < x.shape().rank(); ++i) {
    dims.push_back(i);
    kept = kept.WithDim(i, 1);
  }
  n.SetOutput(0, n.b().Reshape(mean ? n.b().ReduceMean(x, dims) : n.b().ReduceMax(x, dims), kept));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> PoolingOps() {
  return {
      {"MaxPool", 1, kNoEnd, 1, 1, MaxPool},
      {"AveragePool", 1, kNoEnd, 1, 1, AveragePool},
      {"GlobalAveragePool", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return GlobalPool(n, true); }},
      {"GlobalMaxPool", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return GlobalPool(n, false); }},
  };
}

}  // namespace lockstep
