// Regions of interest: RoiAlign samples each region, MaxRoiPool takes maxima in it.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/builder.h"
#include "frontends/onnx/interpolation.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Column `column` of a matrix [R, columns].
Value Column(Builder& b, Value matrix, int64_t column) {
  if (!matrix) return matrix;
  const int64_t rows = matrix.shape()[0];
  return b.Reshape(b.Slice(matrix, {0, column}, {rows, column + 1}), Shape({rows}));
}

absl::Status CheckImages(OnnxNode& n, int64_t columns) {
  RETURN_IF_ERROR(n.b().status());
  if (n.shape(0).rank() != 4 || !IsFloat(n.type(0).dtype))
    return n.Error() << "input is " << n.type(0) << ", expected floats [N, C, height, width]";
  if (n.shape(1).rank() != 2 || n.shape(1)[1] != columns || !IsFloat(n.type(1).dtype))
    return n.Error() << "rois are " << n.type(1) << ", expected floats [R, " << columns << "]";
  if (n.shape(0).num_elements() == 0) return n.Error() << "input " << n.type(0) << " is empty";
  return absl::OkStatus();
}

// Indices of images, as i64. Negative ones become an index that is out of range, so that using them is an error.
Value Images(Builder& b, Value indices, int64_t count) {
  const Value wide = b.Convert(indices, DType::kI64);
  const Value is_negative = b.Compare(wide, b.SplatLike(0, wide), "lt");
  return b.Select(is_negative, b.SplatLike(static_cast<double>(count), wide), wide);
}

// --- RoiAlign --------------------------------------------------------------------------------------------------------

struct Alignment {
  bool half_pixel, is_max;
  int64_t output[2], samples[2];  // for height and width; `samples` per bin, at most
  int64_t sampling_ratio;
  double scale;
};

// The number of samples per bin that the largest region needs along dimension i, if sampling_ratio is 0.
int64_t MostSamples(const Tensor& rois, const Alignment& a, int64_t i) {
  double most = 1;
  for (int64_t r = 0; r < rois.shape()[0]; ++r) {
    const double size = (rois.At(r * 4 + 3 - i) - rois.At(r * 4 + 1 - i)) * a.scale;
    most = std::max(most, std::ceil(size / static_cast<double>(a.output[i])));
  }
  return static_cast<int64_t>(std::min(most, 1e6));
}

absl::StatusOr<Alignment> ReadAlignment(OnnxNode& n) {
  Alignment a{};
  const std::string transform =
      n.String("coordinate_transformation_mode", n.opset() >= 16 ? "half_pixel" : "output_half_pixel");
  const std::string mode = n.String("mode", "avg");
  a.half_pixel = transform == "half_pixel";
  a.is_max = mode == "max";
  a.output[0] = n.Int("output_height", 1);
  a.output[1] = n.Int("output_width", 1);
  a.sampling_ratio = n.Int("sampling_ratio", 0);
  a.scale = n.Float("spatial_scale", 1);
  if (!a.half_pixel && transform != "output_half_pixel") {
    return n.Error() << "attribute coordinate_transformation_mode is '" << transform
                     << "', expected half_pixel or output_half_pixel";
  }
  if (!a.is_max && mode != "avg") return n.Error() << "attribute mode is '" << mode << "', expected avg or max";
  if (a.output[0] < 1 || a.output[1] < 1 || a.sampling_ratio < 0 || !(a.scale > 0)) {
    return n.Error() << "output " << a.output[0] << " x " << a.output[1] << ", sampling_ratio " << a.sampling_ratio
                     << ", spatial_scale " << a.scale << ": expected positive numbers";
  }
  a.samples[0] = a.samples[1] = a.sampling_ratio;
  if (a.sampling_ratio > 0) return a;
  const absl::StatusOr<Tensor> rois = n.ConstantInput(1);
  if (!rois.ok()) {
    return n.Unsupported() << "attribute sampling_ratio is 0: as many samples as a region is large, and the regions "
                           << "are not known before the program runs; expected a positive number";
  }
  for (int64_t i = 0; i < 2; ++i) a.samples[i] = MostSamples(*rois, a, i);
  return a;
}

// The samples of all regions along one dimension.
struct Samples {
  Value low, high;     // the elements before and after each sample, i64 [R, bins, samples]
  Value below, above;  // their weights; 0 for samples outside the image
  Value count;         // number of samples per bin, [R]
  Value is_counted;    // true for samples that exist, below `count`
};

Samples SamplesAlong(Builder& b, Value rois, const Alignment& a, int64_t i, int64_t extent) {
  Samples s;
  const double offset = a.half_pixel ? 0.5 : 0;
  const Value start = b.AddScalar(b.Scale(Column(b, rois, 1 - i), a.scale), -offset);
  const Value end = b.AddScalar(b.Scale(Column(b, rois, 3 - i), a.scale), -offset);
  if (!start || !end) return s;
  Value size = b.Sub(end, start);
  if (!a.half_pixel) size = b.Max(size, b.SplatLike(1, size));
  const Value bin = b.Scale(size, 1 / static_cast<double>(a.output[i]));
  s.count = a.sampling_ratio > 0 ? b.SplatLike(static_cast<double>(a.sampling_ratio), bin) : b.Unary("ceil", bin);
  const TensorType all{rois.dtype(), {rois.shape()[0], a.output[i], a.samples[i]}};
  const auto each = [&](Value of_region) { return b.BroadcastAlong(of_region, all.shape, 0); };
  const Value sample = b.Iota(all, 2), bins = b.Mul(b.Iota(all, 1), each(bin));
  const Value in_bin = b.Mul(b.AddScalar(sample, 0.5), each(b.Div(bin, s.count)));
  const Value position = b.Add(b.Add(each(start), bins), in_bin);
  s.is_counted = b.Compare(sample, each(s.count), "lt");
  const auto limit = [&](double value) { return b.Splat(value, all); };
  const Value is_near = b.Op(
      "and", {b.Compare(position, limit(-1), "ge"), b.Compare(position, limit(static_cast<double>(extent)), "le")});
  const Value inside = b.Min(b.Max(position, limit(0)), limit(static_cast<double>(extent - 1)));
  const Value index = IndexBelow(b, inside);
  const Value last = b.SplatLike(static_cast<double>(extent - 1), index);
  s.low = b.Min(b.Max(index, b.SplatLike(0, index)), last);  // also if the position is NaN
  s.high = b.Min(b.AddScalar(s.low, 1), last);
  const Value weighs = b.Op("and", {is_near, s.is_counted});
  const Value fraction = b.Sub(inside, b.Convert(index, inside.dtype()));
  s.above = b.Select(weighs, fraction, limit(0));
  s.below = b.Select(weighs, b.Sub(limit(1), fraction), limit(0));
  return s;
}

// Gathers the elements of all images, [C, N * height * width], at rows and columns of samples, and multiplies them by
// their weights. Returns [C, R, bins, samples, bins, samples].
Value Corner(Builder& b, Value elements, Value images, const Shape& x, Value row, Value row_weight, Value column,
             Value column_weight) {
  if (!row || !column) return Value();
  const Shape &rows = row.shape(), &columns = column.shape();
  const Shape at({rows[0], rows[1], rows[2], columns[1], columns[2]});
  const auto splat = [&](int64_t value) { return b.Splat(static_cast<double>(value), {DType::kI64, at}); };
  const auto of_row = [&](Value v) { return b.Broadcast(v, at, {0, 1, 2}); };
  const auto of_column = [&](Value v) { return b.Broadcast(v, at, {0, 3, 4}); };
  const Value begin = b.Mul(b.BroadcastAlong(images, at, 0), splat(x[2] * x[3]));
  const Value index = b.Add(b.Add(begin, b.Mul(of_row(row), splat(x[3]))), of_column(column));
  const Value found = b.Gather(elements, index, 1);
  if (!found) return found;
  const Value weight = b.Convert(b.Mul(of_row(row_weight), of_column(column_weight)), found.dtype());
  return b.Mul(found, b.Broadcast(weight, found.shape(), {1, 2, 3, 4, 5}));
}

// The mean of each bin's samples, or its maximum, which the operator defines as that of all weighted elements.
Value OfBins(Builder& b, const std::vector<Value>& corners, const Samples& rows, const Samples& columns, bool is_max) {
  Value bins;
  for (const Value& corner : corners) bins = !bins ? corner : is_max ? b.Max(bins, corner) : b.Add(bins, corner);
  if (!bins) return bins;
  const Shape& shape = bins.shape();
  if (is_max) {
    const Value counts = b.Op(
        "and", {b.Broadcast(rows.is_counted, shape, {1, 2, 3}), b.Broadcast(columns.is_counted, shape, {1, 4, 5})});
    return b.ReduceMax(b.Select(counts, bins, b.SplatLike(-std::numeric_limits<double>::infinity(), bins)), {3, 5});
  }
  const Value count = b.Mul(rows.count, columns.count);
  const Value sum = b.ReduceSum(bins, {3, 5});
  const Value divisor = b.Convert(b.Max(count, b.SplatLike(1, count)), sum.dtype());
  return b.Div(sum, b.BroadcastAlong(divisor, sum.shape(), 1));
}

absl::Status RoiAlign(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0), rois = n.input(1), indices = n.input(2);
  RETURN_IF_ERROR(CheckImages(n, 4));
  if (indices.shape() != Shape({rois.shape()[0]}) || !IsInteger(indices.dtype()))
    return n.Error() << "batch_indices are " << indices.type() << " for rois " << rois.type();
  ASSIGN_OR_RETURN(const Alignment a, ReadAlignment(n));
  const Shape& shape = x.shape();
  RETURN_IF_ERROR(
      n.CheckedShape({shape[1], rois.shape()[0], a.output[0], a.samples[0], a.output[1], a.samples[1]}).status());
  if (rois.shape()[0] == 0) {
    n.SetOutput(0, b.Splat(0, {x.dtype(), {0, shape[1], a.output[0], a.output[1]}}));
    return absl::OkStatus();
  }
  const Value elements = b.Reshape(b.Transpose(x, {1, 0, 2, 3}), {shape[1], shape[0] * shape[2] * shape[3]});
  const Value images = Images(b, indices, shape[0]);
  const Samples rows = SamplesAlong(b, rois, a, 0, shape[2]), columns = SamplesAlong(b, rois, a, 1, shape[3]);
  std::vector<Value> corners;
  for (const auto& [row, row_weight] : {std::pair(rows.low, rows.below), std::pair(rows.high, rows.above)}) {
    for (const auto& [column, weight] :
         {std::pair(columns.low, columns.below), std::pair(columns.high, columns.above)}) {
      corners.push_back(Corner(b, elements, images, shape, row, row_weight, column, weight));
    }
  }
  RETURN_IF_ERROR(b.status());
  n.SetOutput(0, b.Transpose(OfBins(b, corners, rows, columns, a.is_max), {1, 0, 2, 3}));
  return absl::OkStatus();
}

// --- MaxRoiPool ------------------------------------------------------------------------------------------------------

// x rounded to the nearest whole number, halves away from zero.
Value RoundedAway(Builder& b, Value x) {
  const Value up = b.Unary("floor", b.AddScalar(x, 0.5)), down = b.Unary("ceil", b.AddScalar(x, -0.5));
  return b.Select(b.Compare(x, b.SplatLike(0, x), "ge"), up, down);
}

// True where an element of an extent is in a bin of a region: bool [R, bins, extent].
Value InBins(Builder& b, Value start, Value end, int64_t bins, int64_t extent) {
  if (!start) return start;
  const TensorType all{start.dtype(), {start.shape()[0], bins, extent}};
  const auto each = [&](Value of_region) { return b.BroadcastAlong(of_region, all.shape, 0); };
  const Value length = b.AddScalar(b.Sub(end, start), 1);
  const Value size = b.Scale(b.Max(length, b.SplatLike(1, length)), 1 / static_cast<double>(bins));
  const Value bin = b.Iota(all, 1), at = b.Sub(b.Iota(all, 2), each(start));
  const Value first = b.Unary("floor", b.Mul(bin, each(size)));
  const Value after = b.Unary("ceil", b.Mul(b.AddScalar(bin, 1), each(size)));
  return b.Op("and", {b.Compare(at, first, "ge"), b.Compare(at, after, "lt")});
}

// Takes maxima along the rows of each region's image, then along the columns. An empty bin gives 0.
absl::Status MaxRoiPool(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0), rois = n.input(1);
  RETURN_IF_ERROR(CheckImages(n, 5));
  const Ints pooled = n.Ints("pooled_shape");
  const double scale = n.Float("spatial_scale", 1);
  if (pooled.size() != 2 || pooled[0] < 1 || pooled[1] < 1)
    return n.Error() << "attribute pooled_shape is " << ListToString(pooled) << ", expected two positive numbers";
  const Shape& shape = x.shape();
  const int64_t regions = rois.shape()[0];
  RETURN_IF_ERROR(n.CheckedShape({regions, shape[1], shape[2], pooled[1], shape[3]}).status());
  RETURN_IF_ERROR(n.CheckedShape({regions, shape[1], pooled[0], pooled[1], shape[2]}).status());
  const auto bound = [&](int64_t column) { return RoundedAway(b, b.Scale(Column(b, rois, column), scale)); };
  const Value of_rows = InBins(b, bound(2), bound(4), pooled[0], shape[2]);
  const Value of_columns = InBins(b, bound(1), bound(3), pooled[1], shape[3]);
  const Value images = b.Gather(x, Images(b, Column(b, rois, 0), shape[0]), 0);
  const double lowest = -std::numeric_limits<double>::infinity();
  const Shape across({regions, shape[1], shape[2], pooled[1], shape[3]});
  const Value by_columns =
      b.ReduceMax(b.Select(b.Broadcast(of_columns, across, {0, 3, 4}), b.Broadcast(images, across, {0, 1, 2, 4}),
                           b.Splat(lowest, {x.dtype(), across})),
                  {4});
  const Shape down({regions, shape[1], pooled[0], shape[2], pooled[1]});
  const Value maxima =
      b.ReduceMax(b.Select(b.Broadcast(of_rows, down, {0, 2, 3}), b.Broadcast(by_columns, down, {0, 1, 3, 4}),
                           b.Splat(lowest, {x.dtype(), down})),
                  {3});
  const Value is_empty = b.Compare(maxima, b.SplatLike(lowest, maxima), "eq");
  n.SetOutput(0, b.Select(is_empty, b.SplatLike(0, maxima), maxima));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> RegionOps() {
  return {
      {"RoiAlign", 10, kNoEnd, 3, 3, RoiAlign},
      {"MaxRoiPool", 1, kNoEnd, 2, 2, MaxRoiPool},
  };
}

}  // namespace lockstep
