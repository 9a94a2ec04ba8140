#include "test/op_cases/taps_over_zeros.h"

#include <array>
#include <optional>

#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

using Three = std::array<int64_t, 3>;  // one entry for each spatial dimension; missing dimensions come first

Three SpaceOf(const Shape& shape) {
  Three space = {1, 1, 1};
  for (int64_t i = 2; i < shape.rank(); ++i) space[static_cast<size_t>(i + 3 - shape.rank())] = shape[i];
  return space;
}

Three SpaceOf(const OpCase& row, const char* attribute, int64_t if_missing) {
  const auto& values = std::get<Ints>(row.attributes.at(attribute));
  Three space = {if_missing, if_missing, if_missing};
  std::copy(values.begin(), values.end(), space.end() - static_cast<int64_t>(values.size()));
  return space;
}

int64_t CountOf(const Three& extents) { return extents[0] * extents[1] * extents[2]; }

int64_t Flat(const Three& at, const Three& extents) { return (at[0] * extents[1] + at[1]) * extents[2] + at[2]; }

Three At(int64_t flat, const Three& extents) {
  return {flat / extents[2] / extents[1], flat / extents[2] % extents[1], flat % extents[2]};
}

struct Form {
  Shape x, filter, y;
  Three stride, padding, dilation;
  bool of_input;  // the result is x

  // The position of x under a tap at a position of y. If the result is x: the position of y that has this position of x
  // under the tap. Empty if it is a zero.
  std::optional<int64_t> Under(int64_t position, int64_t tap) const {
    const Three extents = SpaceOf(of_input ? y : x);
    const Three p = At(position, SpaceOf(of_input ? x : y)), k = At(tap, SpaceOf(filter));
    Three at;
    for (size_t i = 0; i < 3; ++i) {
      if (of_input) {
        const int64_t ahead = p[i] + padding[i] - k[i] * dilation[i];
        if (ahead % stride[i] != 0) return std::nullopt;
        at[i] = ahead / stride[i];
      } else {
        at[i] = p[i] * stride[i] + k[i] * dilation[i] - padding[i];
      }
      if (at[i] < 0 || at[i] >= extents[i]) return std::nullopt;
    }
    return Flat(at, extents);
  }
};

}  // namespace

bool HasTaps(const OpCase& row) {
  return row.op == "convolution" || row.op == "convolution_grad_input" || row.op == "convolution_grad_filter";
}

OverZeros ComputeOverZeros(const OpCase& row, const std::vector<Tensor>& operands) {
  const TensorType type = CaseGraph(row).value().results()[0].value.type();
  const Shape &a = operands[0].shape(), &b = operands[1].shape(), &r = type.shape;
  const bool of_input = row.op == "convolution_grad_input", of_filter = row.op == "convolution_grad_filter";
  const Form form = {of_input ? r : a,
                     of_input    ? a
                     : of_filter ? r
                                 : b,
                     of_input || of_filter ? b : r,
                     SpaceOf(row, "stride", 1),
                     SpaceOf(row, "padding_low", 0),
                     SpaceOf(row, "dilation", 1),
                     of_input};
  const int64_t filters = form.filter[0], channels = form.filter[1];  // channels of one group
  const int64_t taps = CountOf(SpaceOf(form.filter)), of_x = CountOf(SpaceOf(form.x)), of_y = CountOf(SpaceOf(form.y));
  const int64_t per_group = filters / (form.x[1] / channels);
  Tensor left_out({DType::kF64, r}), multiplied = left_out;
  double *const without = left_out.mutable_data<double>().data(), *const with =
                                                                      multiplied.mutable_data<double>().data();
  // Adds the product of one tap at one position of y, or of x if that is the result.
  const auto add = [&](int64_t n, int64_t o, int64_t c, int64_t tap, int64_t position) {
    const std::optional<int64_t> under = form.Under(position, tap);
    const int64_t in_filter = (o * channels + c) * taps + tap;
    const int64_t in_x =
        (n * form.x[1] + o / per_group * channels + c) * of_x + (of_input ? position : under.value_or(0));
    const int64_t in_y = (n * filters + o) * of_y + (of_input ? under.value_or(0) : position);
    const int64_t result = of_input ? in_x : of_filter ? in_filter : in_y;
    // The factor that may be a zero is dy for the gradient of the input, and x otherwise.
    const double moving = !under ? 0 : of_input ? operands[1].At(in_y) : operands[0].At(in_x);
    const double other = of_input ? operands[0].At(in_filter) : operands[1].At(of_filter ? in_y : in_filter);
    if (under) without[result] += moving * other;
    with[result] += moving * other;
  };
  for (int64_t n = 0; n < form.x[0]; ++n) {
    for (int64_t o = 0; o < filters; ++o) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t tap = 0; tap < taps; ++tap) {
          for (int64_t position = 0; position < (of_input ? of_x : of_y); ++position) add(n, o, c, tap, position);
        }
      }
    }
  }
  return {left_out.Converted(type.dtype), multiplied.Converted(type.dtype)};
}

}  // namespace lockstep
