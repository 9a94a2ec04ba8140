// Convolution and pooling by plain loops, for the element types that oneDNN does not have (f64), or that this processor does
// not, and for empty tensors. Sums are taken in double.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backends/cpu/emitters.h"

namespace lockstep::cpu {
namespace {

using Ints = std::vector<int64_t>;

// One spatial dimension of a window.
struct Axis {
  int64_t x = 1, y = 1, size = 1, stride = 1, low = 0, dilation = 1;
  // Where tap `k` of output position `p` reads; outside [0, x) it is padding.
  int64_t At(int64_t p, int64_t k) const { return p * stride + k * dilation - low; }
};

struct Windows {
  std::array<Axis, 3> axes;

  Windows(const Node& node, const Shape& x, const Shape& y, const Ints& sizes) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      Axis& axis = axes[3 - sizes.size() + i];
      axis.x = x[static_cast<int64_t>(i) + 2];
      axis.y = y[static_cast<int64_t>(i) + 2];
      axis.size = sizes[i];
      axis.stride = node.attr<Ints>("stride")[i];
      axis.low = node.attr<Ints>("padding_low")[i];
      if (node.attributes().contains("dilation")) axis.dilation = node.attr<Ints>("dilation")[i];
    }
  }
  int64_t x_plane() const { return axes[0].x * axes[1].x * axes[2].x; }
  int64_t y_plane() const { return axes[0].y * axes[1].y * axes[2].y; }
  int64_t taps() const { return axes[0].size * axes[1].size * axes[2].size; }

  // Calls f(x_at, tap) for the taps of output position `p` of a plane that meet x, in row-major order.
  template <typename F>
  void ForEachTap(int64_t p, F f) const {
    const auto& [d, h, w] = axes;
    const int64_t pd = p / (h.y * w.y), ph = p / w.y % h.y, pw = p % w.y;
    int64_t tap = 0;
    for (int64_t i = 0; i < d.size; ++i) {
      for (int64_t j = 0; j < h.size; ++j) {
        for (int64_t k = 0; k < w.size; ++k, ++tap) {
          const int64_t xd = d.At(pd, i), xh = h.At(ph, j), xw = w.At(pw, k);
          if (xd < 0 || xd >= d.x || xh < 0 || xh >= h.x || xw < 0 || xw >= w.x) continue;
          f((xd * h.x + xh) * w.x + xw, tap);
        }
      }
    }
  }
};

// y[n,o,p] = sum of x[n,c,at] * filter[o,c,tap]; visits every product once. The three ops sum over different sides of it.
struct ConvolutionLoop {
  Windows windows;
  int64_t samples, filters, channels, groups;  // channels of a group

  template <typename F>
  void ForEachProduct(F f) const {
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t o = 0; o < filters; ++o) {
        const int64_t first_channel = n * channels * groups + o / (filters / groups) * channels;
        for (int64_t channel = 0; channel < channels; ++channel) {
          const int64_t x_first = (first_channel + channel) * windows.x_plane();
          const int64_t filter_first = (o * channels + channel) * windows.taps();
          const int64_t y_first = (n * filters + o) * windows.y_plane();
          for (int64_t p = 0; p < windows.y_plane(); ++p) {
            windows.ForEachTap(p, [&](int64_t at, int64_t tap) { f(x_first + at, filter_first + tap, y_first + p); });
          }
        }
      }
    }
  }
};

template <typename T>
void Store(const std::vector<double>& sums, T* to) {
  for (size_t i = 0; i < sums.size(); ++i) to[i] = ConvertElement<T>(sums[i]);
}

enum class Side { kX, kFilter, kY };  // what is computed from the other two

template <typename T>
void Convolve(const ConvolutionLoop& loop, Side side, int64_t count, const KernelArgs& args) {
  std::vector<double> sums(static_cast<size_t>(count), 0.0);
  const T *a = args.read<T>(0), *b = args.read<T>(1);
  loop.ForEachProduct([&](int64_t x, int64_t filter, int64_t y) {
    const auto product = [&](int64_t i, int64_t j) { return static_cast<double>(a[i]) * static_cast<double>(b[j]); };
    if (side == Side::kY) sums[static_cast<size_t>(y)] += product(x, filter);
    if (side == Side::kX) sums[static_cast<size_t>(x)] += product(filter, y);
    if (side == Side::kFilter) sums[static_cast<size_t>(filter)] += product(x, y);
  });
  Store(sums, args.write<T>(0));
}

// Where the first maximum under the window at `p` is; -1 if it covers nothing. A NaN is the maximum.
template <typename T>
int64_t FirstMaximum(const Windows& windows, const T* x, int64_t p) {
  int64_t best = -1;
  windows.ForEachTap(p, [&](int64_t at, int64_t) {
    if (best < 0 ||
        (!std::isnan(static_cast<double>(x[best])) && !(static_cast<double>(x[at]) <= static_cast<double>(x[best])))) {
      best = at;
    }
  });
  return best;
}

struct PoolingLoop {
  Windows windows;
  int64_t planes;
  bool include_padding = false;

  double Divisor(int64_t p) const {
    if (include_padding) return static_cast<double>(windows.taps());
    int64_t count = 0;
    windows.ForEachTap(p, [&](int64_t, int64_t) { ++count; });
    return static_cast<double>(std::max<int64_t>(count, 1));
  }
  template <typename T>
  void Max(const T* x, T* y) const {
    for (int64_t i = 0; i < planes; ++i, x += windows.x_plane()) {
      for (int64_t p = 0; p < windows.y_plane(); ++p) {
        const int64_t best = FirstMaximum(windows, x, p);
        *y++ = best < 0 ? static_cast<T>(-std::numeric_limits<float>::infinity()) : x[best];
      }
    }
  }
  template <typename T>
  void MaxGrad(const T* x, const T* dy, T* dx) const {
    for (int64_t i = 0; i < planes; ++i, x += windows.x_plane(), dx += windows.x_plane()) {
      std::vector<double> sums(static_cast<size_t>(windows.x_plane()), 0.0);
      for (int64_t p = 0; p < windows.y_plane(); ++p, ++dy) {
        const int64_t best = FirstMaximum(windows, x, p);
        if (best >= 0) sums[static_cast<size_t>(best)] += static_cast<double>(*dy);
      }
      Store(sums, dx);
    }
  }
  template <typename T>
  void Avg(const T* x, T* y) const {
    for (int64_t i = 0; i < planes; ++i, x += windows.x_plane()) {
      for (int64_t p = 0; p < windows.y_plane(); ++p) {
        double sum = 0;
        windows.ForEachTap(p, [&](int64_t at, int64_t) { sum += static_cast<double>(x[at]); });
        *y++ = ConvertElement<T>(sum / Divisor(p));
      }
    }
  }
  template <typename T>
  void AvgGrad(const T* dy, T* dx) const {
    for (int64_t i = 0; i < planes; ++i, dx += windows.x_plane()) {
      std::vector<double> sums(static_cast<size_t>(windows.x_plane()), 0.0);
      for (int64_t p = 0; p < windows.y_plane(); ++p, ++dy) {
        const double share = static_cast<double>(*dy) / Divisor(p);
        windows.ForEachTap(p, [&](int64_t at, int64_t) { sums[static_cast<size_t>(at)] += share; });
      }
      Store(sums, dx);
    }
  }
};

// Calls f with a value of the dtype's C++ type. Requires a float dtype.
template <typename F>
void DispatchFloat(DType dtype, F f) {
  switch (dtype) {
    case DType::kF64: return f(double());
    case DType::kF32: return f(float());
    case DType::kF16: return f(Float16());
    case DType::kBF16: return f(BFloat16());
    default: LOCKSTEP_CHECK(false) << dtype;
  }
}

absl::AnyInvocable<absl::Status(const KernelArgs&)> ConvolutionRun(const Node& node) {
  const bool is_grad_input = node.Is("convolution_grad_input"), is_grad_filter = node.Is("convolution_grad_filter");
  const Shape& x = is_grad_input ? node.type().shape : node.operand(0).shape();
  const Shape& filter = is_grad_filter ? node.type().shape : node.operand(is_grad_input ? 0 : 1).shape();
  const Shape& y = is_grad_input || is_grad_filter ? node.operand(1).shape() : node.type().shape;
  const ConvolutionLoop loop{Windows(node, x, y, {filter.dims().begin() + 2, filter.dims().end()}), x[0], filter[0],
                             filter[1], node.attr<int64_t>("groups")};
  const Side side = is_grad_input ? Side::kX : is_grad_filter ? Side::kFilter : Side::kY;
  return [loop, side, count = node.type().num_elements(), dtype = node.type().dtype](const KernelArgs& args) {
    DispatchFloat(dtype, [&](auto element) { Convolve<decltype(element)>(loop, side, count, args); });
    return absl::OkStatus();
  };
}

absl::AnyInvocable<absl::Status(const KernelArgs&)> PoolingRun(const Node& node) {
  const bool is_max = node.Is("max_pool"), is_avg = node.Is("avg_pool"), is_max_grad = node.Is("max_pool_grad");
  const Shape& x = is_max || is_avg || is_max_grad ? node.operand(0).shape() : node.type().shape;
  const Shape& y = is_max || is_avg ? node.type().shape : node.operand(is_max_grad ? 1 : 0).shape();
  PoolingLoop loop{Windows(node, x, y, node.attr<Ints>("window")), x[0] * x[1]};
  if (!is_max && !is_max_grad) loop.include_padding = node.attr<bool>("include_padding");
  return [=, dtype = node.type().dtype](const KernelArgs& args) {
    DispatchFloat(dtype, [&](auto element) {
      using T = decltype(element);
      if (is_max) loop.Max(args.read<T>(0), args.write<T>(0));
      else if (is_max_grad) loop.MaxGrad(args.read<T>(0), args.read<T>(1), args.write<T>(0));
      else if (is_avg) loop.Avg(args.read<T>(0), args.write<T>(0));
      else loop.AvgGrad(args.read<T>(0), args.write<T>(0));
    });
    return absl::OkStatus();
  };
}

}  // namespace

absl::Status EmitWindowLoop(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  Kernel kernel;
  kernel.name = "loop." + node.op_name();
  kernel.run = node.op_name().starts_with("convolution") ? ConvolutionRun(node) : PoolingRun(node);
  c.Add(node, std::move(kernel), std::move(reads), {c.Write(node)});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
