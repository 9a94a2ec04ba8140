// Pools and their gradients.

#include <array>

#include "core/ops/window.h"
#include "verify/meaning.h"

namespace lockstep::verify {
namespace {

using Ints = std::vector<int64_t>;
using Axes = std::array<ops::WindowAxis, 3>;

// Calls window(taps, y) for each window: the positions in x of the elements that it covers, in order, and its own in y.
template <typename F>
void ForEachWindow(const NodeContext& c, const Shape& x, const Shape& y, F window) {
  const Axes axes = ops::ThreeAxes(c, x, y, c.attr<Ints>("window"));
  const auto& [depth, height, width] = axes;
  std::vector<size_t> taps;
  const auto taps_along = [](const ops::WindowAxis& axis, int64_t position, auto&& tap) {
    for (int64_t i = 0; i < axis.window.size; ++i) {
      const int64_t at = position * axis.window.stride + axis.Offset(i);
      if (at >= 0 && at < axis.input) tap(at);
    }
  };
  size_t y_at = 0;
  for (int64_t plane = 0; plane < x[0] * x[1]; ++plane) {
    for (int64_t d = 0; d < depth.output; ++d) {
      for (int64_t h = 0; h < height.output; ++h) {
        for (int64_t w = 0; w < width.output; ++w) {
          taps.clear();
          taps_along(depth, d, [&](int64_t i) {
            taps_along(height, h, [&](int64_t j) {
              taps_along(width, w, [&](int64_t k) {
                taps.push_back(static_cast<size_t>(((plane * depth.input + i) * height.input + j) * width.input + k));
              });
            });
          });
          window(taps, y_at++);
        }
      }
    }
  }
}

// The position of the first largest element among `taps`, of which there is one.
size_t FirstLargest(const std::vector<Exact>& x, const std::vector<size_t>& taps) {
  size_t best = taps[0];
  for (size_t tap : taps) {
    if (!x[best].is_nan() && (x[tap].is_nan() || x[best] < x[tap])) best = tap;
  }
  return best;
}

absl::Status MaxPool(Meaning& m) {
  const auto maxima = PositionsOfMaxima(m, m.operand(0), m.result().shape());
  for (size_t y = 0; y < maxima.size(); ++y) m.y()[y] = maxima[y] ? m.x()[*maxima[y]] : Exact::Infinity(true);
  return absl::OkStatus();
}

absl::Status MaxPoolGrad(Meaning& m) {
  const auto maxima = PositionsOfMaxima(m, m.operand(0), m.operand(1).shape());
  for (size_t y = 0; y < maxima.size(); ++y) {
    if (maxima[y]) m.y()[*maxima[y]] += m.x(1)[y];
  }
  return absl::OkStatus();
}

Exact Divisor(const NodeContext& c, const std::vector<size_t>& taps) {
  if (!c.attr<bool>("include_padding")) return Exact::Of(static_cast<int64_t>(taps.size()));
  int64_t all = 1;
  for (int64_t extent : c.attr<Ints>("window")) all *= extent;
  return Exact::Of(all);
}

absl::Status AvgPool(Meaning& m) {
  ForEachWindow(m, m.operand(0).shape(), m.result().shape(), [&](const std::vector<size_t>& taps, size_t y) {
    for (size_t tap : taps) m.y()[y] += m.x()[tap];
    m.y()[y] = m.y()[y] / Divisor(m, taps);
  });
  return absl::OkStatus();
}

absl::Status AvgPoolGrad(Meaning& m) {
  ForEachWindow(m, m.result().shape(), m.operand(0).shape(), [&](const std::vector<size_t>& taps, size_t y) {
    const Exact share = m.x()[y] / Divisor(m, taps);
    for (size_t tap : taps) m.y()[tap] += share;
  });
  return absl::OkStatus();
}

}  // namespace

std::vector<std::optional<size_t>> PositionsOfMaxima(const NodeContext& max_pool, const ExactTensor& x,
                                                     const Shape& y) {
  std::vector<std::optional<size_t>> maxima(static_cast<size_t>(y.num_elements()));
  ForEachWindow(max_pool, x.shape(), y, [&](const std::vector<size_t>& taps, size_t at) {
    if (!taps.empty()) maxima[at] = FirstLargest(x.numbers(), taps);
  });
  return maxima;
}

std::map<std::string_view, MeaningFn> PoolMeanings() {
  return {{"max_pool", MaxPool}, {"max_pool_grad", MaxPoolGrad}, {"avg_pool", AvgPool}, {"avg_pool_grad", AvgPoolGrad}};
}

}  // namespace lockstep::verify
