// Matrix products and convolutions.

#include <algorithm>

#include "core/ops/matmul.h"
#include "core/ops/window.h"
#include "verify/meaning.h"

namespace lockstep::verify {
namespace {

absl::Status MatMul(Meaning& m) {
  const ops::MatMulForm form(m.attributes(), m.operand(0).shape(), m.operand(1).shape());
  const int64_t rank = form.y.rank(), rows = form.y[rank - 2], columns = form.y[rank - 1];
  const int64_t contracted = form.a[form.contracted_a];
  const auto stride = [](const Shape& shape, int64_t dim) { return shape.Strides()[static_cast<size_t>(dim)]; };
  const int64_t a_row = stride(form.a, form.rows), a_sum = stride(form.a, form.contracted_a);
  const int64_t b_column = stride(form.b, form.columns), b_sum = stride(form.b, form.contracted_b);
  const int64_t size = rows * columns;
  for (int64_t batch = 0; size > 0 && batch < form.y.num_elements() / size; ++batch) {
    const Exact* a = m.x(0).data() + batch * rows * contracted;
    const Exact* b = m.x(1).data() + batch * columns * contracted;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        ExactProducts sum;
        for (int64_t k = 0; k < contracted; ++k) sum.Add(a[i * a_row + k * a_sum], b[j * b_column + k * b_sum]);
        m.y()[static_cast<size_t>(batch * size + i * columns + j)] = sum.total();
      }
    }
  }
  return absl::OkStatus();
}

// Calls f(x, filter, y) with the positions of each three elements that a convolution multiplies: y += x * filter.
template <typename F>
void ForEachTerm(const NodeContext& c, const Shape& x, const Shape& filter, const Shape& y, F f) {
  const auto axes = ops::ThreeAxes(c, x, y, ops::SpatialDims(filter));
  const auto& [depth, height, width] = axes;
  const int64_t groups = c.attr<int64_t>("groups"), channels = filter[1], filters = filter[0];
  const int64_t plane = depth.input * height.input * width.input;
  const int64_t taps = depth.window.size * height.window.size * width.window.size;
  const int64_t positions = depth.output * height.output * width.output;
  const auto for_each_tap = [&](auto&& tap) {
    for (int64_t i = 0; i < depth.window.size; ++i) {
      for (int64_t j = 0; j < height.window.size; ++j) {
        for (int64_t k = 0; k < width.window.size; ++k) tap(i, j, k);
      }
    }
  };
  const auto terms_of_plane = [&](int64_t x_at, int64_t filter_at, int64_t y_at) {
    for_each_tap([&](int64_t i, int64_t j, int64_t k) {
      const int64_t tap = (i * height.window.size + j) * width.window.size + k;
      for (int64_t d = depth.Begin(i); d < depth.End(i); ++d) {
        const int64_t x_d = d * depth.window.stride + depth.Offset(i);
        for (int64_t h = height.Begin(j); h < height.End(j); ++h) {
          const int64_t x_h = x_d * height.input + h * height.window.stride + height.Offset(j);
          for (int64_t w = width.Begin(k); w < width.End(k); ++w) {
            const int64_t x_w = x_h * width.input + w * width.window.stride + width.Offset(k);
            f(static_cast<size_t>(x_at + x_w), static_cast<size_t>(filter_at + tap),
              static_cast<size_t>(y_at + (d * height.output + h) * width.output + w));
          }
        }
      }
    });
  };
  for (int64_t n = 0; n < x[0]; ++n) {
    for (int64_t o = 0; o < filters; ++o) {
      const int64_t first = o / (filters / groups) * channels;  // the first channel of its group
      for (int64_t channel = 0; channel < channels; ++channel)
        terms_of_plane((n * x[1] + first + channel) * plane, (o * channels + channel) * taps,
                       (n * filters + o) * positions);
    }
  }
}

absl::Status Total(const std::vector<ExactProducts>& sums, std::vector<Exact>& totals) {
  std::transform(sums.begin(), sums.end(), totals.begin(), [](const ExactProducts& sum) { return sum.total(); });
  return absl::OkStatus();
}

absl::Status Convolution(Meaning& m) {
  std::vector<ExactProducts> sums(m.y().size());
  ForEachTerm(m, m.operand(0).shape(), m.operand(1).shape(), m.result().shape(),
              [&](size_t x, size_t filter, size_t y) { sums[y].Add(m.x(0)[x], m.x(1)[filter]); });
  return Total(sums, m.y());
}

absl::Status ConvolutionGradInput(Meaning& m) {
  std::vector<ExactProducts> sums(m.y().size());
  ForEachTerm(m, m.result().shape(), m.operand(0).shape(), m.operand(1).shape(),
              [&](size_t x, size_t filter, size_t y) { sums[x].Add(m.x(0)[filter], m.x(1)[y]); });
  return Total(sums, m.y());
}

absl::Status ConvolutionGradFilter(Meaning& m) {
  std::vector<ExactProducts> sums(m.y().size());
  ForEachTerm(m, m.operand(0).shape(), m.result().shape(), m.operand(1).shape(),
              [&](size_t x, size_t filter, size_t y) { sums[filter].Add(m.x(0)[x], m.x(1)[y]); });
  return Total(sums, m.y());
}

}  // namespace

std::map<std::string_view, MeaningFn> ProductMeanings() {
  return {
      {"matmul", MatMul},
      {"convolution", Convolution},
      {"convolution_grad_input", ConvolutionGradInput},
      {"convolution_grad_filter", ConvolutionGradFilter},
  };
}

}  // namespace lockstep::verify
