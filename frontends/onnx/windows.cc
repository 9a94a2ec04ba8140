#include "frontends/onnx/windows.h"

#include <algorithm>

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kMost = int64_t{1} << 30;  // limit of all sizes, so that positions fit in 63 bits

absl::Status CheckList(const OnnxNode& n, const char* name, const Ints& list, size_t length, int64_t least) {
  if (list.size() != length)
    return n.Error() << "attribute " << name << " is " << ListToString(list) << ", expected " << length << " entries";
  for (int64_t entry : list) {
    if (entry < least || entry > kMost)
      return n.Error() << "attribute " << name << " is " << ListToString(list) << ", expected at least " << least;
  }
  return absl::OkStatus();
}

// The total padding that auto_pad SAME needs: the number of windows is ceil(input / stride).
int64_t SamePadding(int64_t input, int64_t span, int64_t stride) {
  const int64_t output = (input + stride - 1) / stride;
  return std::max<int64_t>((output - 1) * stride + span - input, 0);
}

// The number of elements by which the last window ends after the padded input if the number of windows is rounded up. A
// window that would begin after the input does not count.
int64_t CeilOverhang(int64_t padded, int64_t low_and_input, int64_t span, int64_t stride) {
  if (padded < span) return 0;
  int64_t output = (padded - span + stride - 1) / stride + 1;
  if ((output - 1) * stride >= low_and_input) --output;
  return std::max<int64_t>((output - 1) * stride + span - padded, 0);
}

}  // namespace

absl::StatusOr<OnnxWindows> ReadWindows(OnnxNode& n, Ints size, bool has_dilation, bool has_ceil_mode) {
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Shape& x = n.shape(0);
  const size_t rank = static_cast<size_t>(x.rank() - 2);
  OnnxWindows windows;
  windows.size = std::move(size);
  windows.stride = n.Ints("strides", Ints(rank, 1));
  windows.dilation = has_dilation ? n.Ints("dilations", Ints(rank, 1)) : Ints(rank, 1);
  const bool ceil = has_ceil_mode && n.Flag("ceil_mode", false);
  const std::string auto_pad = n.String("auto_pad", "NOTSET");
  const Ints pads = n.Ints("pads", Ints(2 * rank, 0));
  RETURN_IF_ERROR(CheckList(n, "kernel_shape", windows.size, rank, 1));
  RETURN_IF_ERROR(CheckList(n, "strides", windows.stride, rank, 1));
  RETURN_IF_ERROR(CheckList(n, "dilations", windows.dilation, rank, 1));
  RETURN_IF_ERROR(CheckList(n, "pads", pads, 2 * rank, 0));
  if (auto_pad != "NOTSET" && auto_pad != "VALID" && auto_pad != "SAME_UPPER" && auto_pad != "SAME_LOWER") {
    return n.Unsupported() << "attribute auto_pad is '" << auto_pad
                           << "', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER";
  }
  for (size_t i = 0; i < rank; ++i) {
    const int64_t input = x[static_cast<int64_t>(i) + 2], span = (windows.size[i] - 1) * windows.dilation[i] + 1;
    int64_t low = 0, high = 0, overhang = 0;
    if (auto_pad == "NOTSET") {
      low = pads[i];
      high = pads[i + rank];
      if (ceil) overhang = CeilOverhang(low + input + high, low + input, span, windows.stride[i]);
    } else if (auto_pad != "VALID") {
      const int64_t total = SamePadding(input, span, windows.stride[i]);
      low = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      high = total - low;
    }
    windows.padding_low.push_back(low);
    windows.padding_high.push_back(high);
    windows.overhang.push_back(overhang);
  }
  return windows;
}

}  // namespace lockstep
