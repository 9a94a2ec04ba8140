#include "core/ops/window.h"

#include "core/ops/rules.h"

namespace lockstep::ops {
std::vector<Window> WindowsOf(const NodeContext& c, const std::vector<int64_t>& sizes) {
  using Ints = std::vector<int64_t>;
  const Ints &stride = c.attr<Ints>("stride"), &low = c.attr<Ints>("padding_low"), &high = c.attr<Ints>("padding_high");
  const bool dilated = c.attributes().contains("dilation");
  std::vector<Window> windows;
  for (size_t i = 0; i < sizes.size(); ++i) {
    windows.push_back({sizes[i], stride[i], low[i], high[i], dilated ? c.attr<Ints>("dilation")[i] : 1});
  }
  return windows;
}

absl::StatusOr<std::vector<int64_t>> CheckWindows(const NodeContext& c, const Shape& x,
                                                  const std::vector<int64_t>& sizes) {
  const size_t spatial = static_cast<size_t>(x.rank() - 2);
  const auto check = [&](std::string_view name, const std::vector<int64_t>& values, int64_t least) -> absl::Status {
    if (values.size() != spatial) {
      return c.Error("C3") << name << " " << ListToString(values) << " has " << values.size() << " values, expected "
                           << spatial << ", one per spatial dimension of " << x;
    }
    for (int64_t value : values) {
      if (value < least || value > kLargestWindowValue) {
        return c.Error("C4") << name << " " << ListToString(values) << ", expected values from " << least << " to 2^30";
      }
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(check("window", sizes, 1));
  for (const std::string_view name : {"stride", "dilation", "padding_low", "padding_high"}) {
    if (!c.attributes().contains(name)) continue;  // average pooling has no dilation
    RETURN_IF_ERROR(check(name, c.attr<std::vector<int64_t>>(name), name.starts_with("padding") ? 0 : 1));
  }
  std::vector<int64_t> output;
  for (const Window& window : WindowsOf(c, sizes)) {
    const int64_t dim = static_cast<int64_t>(output.size()) + 2;
    const int64_t padded = x[dim] + window.padding_low + window.padding_high;
    if (window.span() > padded) {
      return c.Error("C5") << "a window of " << window.size << " with dilation " << window.dilation << " spans "
                           << window.span() << ", but dimension " << dim << " of " << x << " has " << padded
                           << " with its padding";
    }
    output.push_back(window.Positions(x[dim]));
  }
  return output;
}

std::array<WindowAxis, 3> ThreeAxes(const NodeContext& c, const Shape& x, const Shape& y,
                                    const std::vector<int64_t>& sizes) {
  const std::vector<Window> windows = WindowsOf(c, sizes);
  std::array<WindowAxis, 3> axes;
  for (size_t i = 0; i < windows.size(); ++i) {
    const int64_t dim = static_cast<int64_t>(i) + 2;
    axes[3 - windows.size() + i] = {x[dim], y[dim], windows[i]};
  }
  return axes;
}

std::vector<int64_t> SpatialDims(const Shape& shape) { return {shape.dims().begin() + 2, shape.dims().end()}; }

}  // namespace lockstep::ops
