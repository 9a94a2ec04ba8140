// Operators that read images at positions given as data: GridSample, AffineGrid, DeformConv. Gradients with respect to
// the positions follow from the weights; indices have none.

#include <algorithm>

#include "core/builder.h"
#include "frontends/onnx/interpolation.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/windows.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

Ints SpatialOf(const Shape& shape) { return {shape.dims().begin() + 2, shape.dims().end()}; }

// x [N, C, spatial...] with its spatial dimensions merged into one.
Value Flat(Builder& b, Value x) {
  return b.Reshape(x, {x.shape()[0], x.shape()[1], Shape(SpatialOf(x.shape())).num_elements()});
}

DType WideOf(DType a, DType b) { return a == DType::kF64 || b == DType::kF64 ? DType::kF64 : DType::kF32; }

// --- GridSample ------------------------------------------------------------------------------------------------------

struct Sampling {
  std::string mode, padding;
  bool align_corners;
};

absl::StatusOr<Sampling> ReadSampling(OnnxNode& n) {
  Sampling s;
  s.mode = n.String("mode", n.opset() < 20 ? "bilinear" : "linear");
  s.padding = n.String("padding_mode", "zeros");
  s.align_corners = n.Flag("align_corners", false);
  if (s.mode == "bilinear") s.mode = "linear";
  if (s.mode == "bicubic") s.mode = "cubic";
  if (s.mode != "linear" && s.mode != "cubic" && s.mode != "nearest")
    return n.Error() << "attribute mode is '" << s.mode << "', expected linear, cubic or nearest";
  if (s.padding != "zeros" && s.padding != "border" && s.padding != "reflection") {
    return n.Error() << "attribute padding_mode is '" << s.padding << "', expected zeros, border or reflection";
  }
  return s;
}

// `x` limited to [low, high], with a gradient only inside.
Value Limited(Builder& b, Value x, double low, double high) {
  if (!x) return x;
  const Value least = b.SplatLike(low, x), most = b.SplatLike(high, x);
  const Value above = b.Select(b.Compare(x, least, "gt"), x, least);
  const Value limited = b.Select(b.Compare(x, most, "lt"), above, most);
  return b.Select(b.Compare(x, x, "eq"), limited, x);  // NaN stays
}

// x reflected at the ends of [low, high] until it is inside.
Value Reflected(Builder& b, Value x, double low, double high) {
  if (!x) return x;
  const double span = high - low;
  if (span <= 0) return b.SplatLike(low, x);
  const Value moved = b.AddScalar(x, -low), spans = b.SplatLike(span, x);
  const Value distance = b.Select(b.Compare(moved, b.SplatLike(0, x), "lt"), b.Neg(moved), moved);
  const Value rest = b.Op("fmod", {distance, spans});
  const Value turns = b.Unary("floor", b.Div(distance, spans));
  const Value is_odd = b.Compare(b.Op("fmod", {turns, b.SplatLike(2, x)}), b.SplatLike(0, x), "ne");
  return b.AddScalar(b.Select(is_odd, b.Sub(spans, rest), rest), low);
}

// A position, which may be between elements, after applying the padding mode to positions outside the image.
Value Padded(Builder& b, Value position, const Sampling& s, int64_t extent) {
  const auto last = static_cast<double>(extent - 1);
  if (s.padding == "zeros") return position;
  if (s.padding == "reflection") {
    const double half = s.align_corners ? 0 : 0.5;
    position = Reflected(b, position, -half, last + half);
  }
  return Limited(b, position, 0, last);
}

// The positions of a grid in units of elements, one [N, P] for each spatial dimension. The grid is [N, positions...,
// rank] with numbers from -1 to 1; its last dimension has the innermost spatial dimension first.
std::vector<Value> PositionsOf(Builder& b, Value grid, const Ints& extents, bool align_corners) {
  const int64_t last = grid.shape().rank() - 1, rank = static_cast<int64_t>(extents.size());
  const Shape flat(
      {grid.shape()[0], Shape(Ints(grid.shape().dims().begin() + 1, grid.shape().dims().end() - 1)).num_elements()});
  std::vector<Value> positions;
  for (int64_t i = 0; i < rank; ++i) {
    Ints start(At(last + 1), 0), limit = grid.shape().dims();
    start[At(last)] = rank - 1 - i;
    limit[At(last)] = rank - i;
    const Value x = b.AddScalar(b.Reshape(b.Slice(grid, start, limit), flat), 1);
    const auto extent = static_cast<double>(extents[At(i)]);
    positions.push_back(align_corners ? b.Scale(x, (extent - 1) / 2) : b.AddScalar(b.Scale(x, extent / 2), -0.5));
  }
  return positions;
}

// The weights of the elements at offsets -1, 0, 1 and 2 from the one before a position, whose fraction is t.
std::vector<Value> CubicWeights(Builder& b, Value t) {
  constexpr double kA = -0.75;
  const auto polynomial = [&](Value x, double c3, double c2, double c1, double c0) {
    return b.AddScalar(b.Mul(b.AddScalar(b.Mul(b.AddScalar(b.Scale(x, c3), c2), x), c1), x), c0);
  };
  const auto outer = [&](Value x) { return polynomial(x, kA, -5 * kA, 8 * kA, -4 * kA); };
  const auto inner = [&](Value x) { return polynomial(x, kA + 2, -(kA + 3), 0, 1); };
  const Value rest = b.Sub(b.SplatLike(1, t), t);
  return {outer(b.AddScalar(t, 1)), inner(t), inner(rest), outer(b.AddScalar(rest, 1))};
}

Value Cubic(Builder& b, Value x, const Ints& extents, std::vector<Value> positions, const Sampling& s) {
  std::vector<std::vector<Value>> indices, weights;  // four for each spatial dimension
  size_t corners = 1;
  for (size_t i = 0; i < extents.size(); ++i, corners *= 4) {
    if (s.padding == "zeros") positions[i] = ClampToMargin(b, positions[i], extents[i], 2);
    if (!positions[i]) return Value();
    const Value floor = b.Convert(IndexBelow(b, positions[i]), positions[i].dtype());
    weights.push_back(CubicWeights(b, b.Sub(positions[i], floor)));
    indices.emplace_back();
    for (int distance = -1; distance <= 2; ++distance) {
      const Value at = Padded(b, b.AddScalar(floor, distance), s, extents[i]);
      indices.back().push_back(b.Convert(at, DType::kI64));
    }
  }
  Value sum;
  for (size_t corner = 0; corner < corners; ++corner) {
    std::vector<Value> at, weight;
    for (size_t i = 0, rest = corner; i < extents.size(); ++i, rest /= 4) {
      at.push_back(indices[i][rest % 4]);
      weight.push_back(weights[i][rest % 4]);
    }
    const Value found = ElementsAt(b, x, extents, at, s.padding == "zeros", positions[0].dtype());
    if (!found) return found;
    const Value term = b.Mul(found, WeightsFor(b, weight, found.shape()[1]));
    sum = sum ? b.Add(sum, term) : term;
  }
  return sum;
}

Value Sampled(Builder& b, Value x, const Ints& extents, std::vector<Value> positions, const Sampling& s) {
  const bool zeros = s.padding == "zeros";
  if (s.mode == "cubic") return Cubic(b, x, extents, positions, s);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = Padded(b, positions[i], s, extents[i]);
  if (s.mode == "linear") return InterpolatedAt(b, x, extents, positions, zeros);
  for (Value& position : positions) position = b.Convert(b.Unary("round", position), DType::kI64);
  return ElementsAt(b, x, extents, positions, zeros, x.dtype());
}

absl::Status GridSample(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Value x = n.input(0), grid = n.input(1);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Sampling sampling, ReadSampling(n));
  const Shape &of_x = x.shape(), &of_grid = grid.shape();
  const int64_t rank = of_x.rank() - 2;
  if (of_grid.rank() != of_x.rank() || of_grid[0] != of_x[0] || of_grid[rank + 1] != rank || !IsFloat(grid.dtype())) {
    return n.Error() << "grid is " << grid.type() << " for input " << x.type() << ", expected floats, as many "
                     << "dimensions, the same batch and " << rank << " in the last dimension";
  }
  if (sampling.mode != "nearest" && !IsFloat(x.dtype()))
    return n.Error() << "input is " << x.type() << ", expected floats in mode " << sampling.mode;
  const Ints extents = SpatialOf(of_x);
  Ints dims = of_grid.dims();
  dims.pop_back();
  dims.insert(dims.begin() + 1, of_x[1]);
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(dims));
  if (of_x.num_elements() == 0 && shape.num_elements() > 0) return n.Error() << "input is " << x.type();
  const DType wide = WideOf(grid.dtype(), x.dtype());
  const std::vector<Value> positions = PositionsOf(b, b.Convert(grid, wide), extents, sampling.align_corners);
  const Value y = Sampled(b, Flat(b, x), extents, positions, sampling);
  RETURN_IF_ERROR(b.status());
  n.SetOutput(0, b.Reshape(b.Convert(y, x.dtype()), shape));
  return absl::OkStatus();
}

// --- AffineGrid ------------------------------------------------------------------------------------------------------

// theta [N, rank, rank + 1] times the homogeneous positions of an image of the given size.
absl::Status AffineGrid(OnnxNode& n) {
  Builder& b = n.b();
  const Value theta = n.input(0);
  RETURN_IF_ERROR(b.status());
  const bool align_corners = n.Flag("align_corners", false);
  ASSIGN_OR_RETURN(const Ints size, n.IntsInput(1));
  const int64_t rank = static_cast<int64_t>(size.size()) - 2;
  if (rank < 1 || theta.shape() != Shape({size[0], rank, rank + 1}) || !IsFloat(theta.dtype())) {
    return n.Error() << "theta is " << theta.type() << " for a size of " << ListToString(size)
                     << ", expected [N, rank, rank + 1] for N, C and rank extents";
  }
  RETURN_IF_ERROR(n.CheckedShape(size).status());
  Ints dims(size.begin() + 2, size.end());
  const Shape image(dims);
  const int64_t count = image.num_elements();
  RETURN_IF_ERROR(n.ReserveTable(static_cast<double>(count) * static_cast<double>(rank + 1)));
  std::vector<double> grid(At(count * (rank + 1)), 1.0);
  for (int64_t at = 0; at < count; ++at) {
    for (int64_t i = rank - 1, rest = at; i >= 0; rest /= image[i], --i) {
      const auto extent = static_cast<double>(image[i]), place = static_cast<double>(rest % image[i]);
      const double position =
          align_corners ? (image[i] > 1 ? 2 * place / (extent - 1) - 1 : 0) : (2 * place + 1) / extent - 1;
      grid[At(at * (rank + 1) + rank - 1 - i)] = position;
    }
  }
  const Value positions = b.Constant(Tensor::Of<double>({count, rank + 1}, grid).Converted(theta.dtype()));
  const Value rows = b.Reshape(theta, {size[0] * rank, rank + 1});
  const Value product = b.Reshape(b.MatMul(rows, positions, false, true), {size[0], rank, count});
  dims.insert(dims.begin(), size[0]);
  dims.push_back(rank);
  n.SetOutput(0, b.Reshape(b.Transpose(product, {0, 2, 1}), Shape(dims)));
  return absl::OkStatus();
}

// --- DeformConv ------------------------------------------------------------------------------------------------------

// The positions that the taps read along dimension i, [N * groups, taps * positions]: the regular ones plus the
// offsets.
Value TapPositions(Builder& b, Value offsets, const OnnxWindows& w, const Shape& shape, int64_t i, int64_t groups) {
  // Offsets are [N, groups, taps, rank, positions...].
  const int64_t rank = static_cast<int64_t>(w.size.size());
  Ints dims = {shape[0] * groups}, start, limit;
  dims.insert(dims.end(), w.size.begin(), w.size.end());
  const Ints positions = SpatialOf(shape);
  const Shape grouped({shape[0] * groups, Shape(w.size).num_elements(), rank, Shape(positions).num_elements()});
  start = {0, 0, i, 0};
  limit = grouped.dims();
  limit[2] = i + 1;
  dims.insert(dims.end(), positions.begin(), positions.end());
  const Value offset = b.Reshape(b.Slice(b.Reshape(offsets, grouped), start, limit), Shape(dims));
  if (!offset) return offset;
  const Value taps = b.Scale(b.Iota(offset.type(), 1 + i), static_cast<double>(w.dilation[At(i)]));
  const Value begins = b.Scale(b.Iota(offset.type(), 1 + rank + i), static_cast<double>(w.stride[At(i)]));
  const Value place = b.AddScalar(b.Add(taps, begins), -static_cast<double>(w.padding_low[At(i)]));
  return b.Reshape(b.Add(place, offset), {grouped[0], grouped[1] * grouped[3]});
}

struct Deformation {
  int64_t groups, offset_groups;
  Shape result;  // result shape of DeformConv
};

absl::StatusOr<Deformation> ReadDeformation(OnnxNode& n, const OnnxWindows& w) {
  const Shape &x = n.shape(0), &filter = n.shape(1);
  Deformation d{n.Int("group", 1), n.Int("offset_group", 1), {}};
  const bool divide = d.groups >= 1 && d.offset_groups >= 1 && x[1] % d.groups == 0 && x[1] % d.offset_groups == 0 &&
                      filter[1] == x[1] / std::max<int64_t>(d.groups, 1) && filter[0] % d.groups == 0;
  if (!divide) {
    return n.Error() << "groups " << d.groups << " and " << d.offset_groups << " for input " << n.type(0)
                     << " and filter " << n.type(1);
  }
  Ints dims = {x[0], filter[0]};
  for (size_t i = 0; i < w.size.size(); ++i) {
    const int64_t room = x.dims()[i + 2] + w.padding_low[i] + w.padding_high[i] - (w.size[i] - 1) * w.dilation[i] - 1;
    if (room < 0) return n.Error() << "filter " << n.type(1) << " does not fit into the padded input " << n.type(0);
    dims.push_back(room / w.stride[i] + 1);
  }
  ASSIGN_OR_RETURN(d.result, n.CheckedShape(dims));
  Ints offsets = dims, mask = dims;
  mask[1] = d.offset_groups * Shape(w.size).num_elements();
  offsets[1] = mask[1] * static_cast<int64_t>(w.size.size());
  if (n.shape(2) != Shape(offsets)) return n.Error() << "offset is " << n.type(2) << ", expected " << Shape(offsets);
  if (n.has_input(4) && n.shape(4) != Shape(mask))
    return n.Error() << "mask is " << n.type(4) << ", expected " << Shape(mask);
  if (n.has_input(3) && n.shape(3) != Shape({filter[0]})) return n.Error() << "bias is " << n.type(3);
  return d;
}

// The elements that the taps read become channels of one image, to which a convolution with windows of one element
// applies.
absl::Status DeformConv(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  RETURN_IF_ERROR(n.RequireRank(1, 3));
  const Value x = n.input(0), filter = n.input(1);
  Value offsets = n.input(2);
  for (int i = 3; i < 5; ++i) {
    if (n.has_input(i)) n.input(i);
  }
  RETURN_IF_ERROR(b.status());
  const Ints size = SpatialOf(filter.shape());
  if (n.Ints("kernel_shape", size) != size || filter.shape().rank() != x.shape().rank() || !IsFloat(x.dtype()))
    return n.Error() << "filter is " << filter.type() << " for input " << x.type();
  ASSIGN_OR_RETURN(const OnnxWindows w, ReadWindows(n, size, /*has_dilation=*/true, /*has_ceil_mode=*/false));
  ASSIGN_OR_RETURN(const Deformation d, ReadDeformation(n, w));
  const int64_t samples = x.shape()[0], channels = x.shape()[1], taps = Shape(size).num_elements();
  const int64_t positions = Shape(SpatialOf(d.result)).num_elements(), images = samples * d.offset_groups;
  const DType wide = WideOf(x.dtype(), x.dtype());
  offsets = b.Convert(offsets, wide);
  std::vector<Value> places;
  for (int64_t i = 0; i < static_cast<int64_t>(size.size()); ++i)
    places.push_back(TapPositions(b, offsets, w, d.result, i, d.offset_groups));
  const Ints extents = SpatialOf(x.shape());
  const Value flat = b.Reshape(x, {images, channels / d.offset_groups, Shape(extents).num_elements()});
  Value read = InterpolatedAt(b, flat, extents, places, /*zeros=*/true);
  if (n.has_input(4) && read) {
    const Value mask = b.Reshape(b.Convert(n.input(4), wide), {images, taps * positions});
    read = b.Mul(read, b.Broadcast(mask, read.shape(), {0, 2}));
  }
  read = b.Reshape(b.Convert(read, x.dtype()), {samples, channels * taps, positions});
  const Value lines = b.Reshape(filter, {filter.shape()[0], filter.shape()[1] * taps, 1});
  Value y = b.Op("convolution", {read, lines},
                 {{"stride", Ints{1}},
                  {"padding_low", Ints{0}},
                  {"padding_high", Ints{0}},
                  {"dilation", Ints{1}},
                  {"groups", d.groups}});
  if (n.has_input(3)) y = b.Add(y, b.BroadcastAlong(n.input(3), {samples, d.result[1], positions}, 1));
  n.SetOutput(0, b.Reshape(y, d.result));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> SamplingOps() {
  return {
      {"GridSample", 16, kNoEnd, 2, 2, GridSample},
      {"AffineGrid", 20, kNoEnd, 2, 2, AffineGrid},
      {"DeformConv", 19, kNoEnd, 3, 5, DeformConv},
  };
}

}  // namespace lockstep
