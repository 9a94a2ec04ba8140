// Windows, filter banks and Fourier transforms: constants that are computed at import, and products with them. A
// transform of length N takes N products for each frequency, which is cheap for the lengths of audio frames.

#include <cmath>
#include <numbers>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kMaxMatrix = int64_t{1} << 24;  // elements of a constant matrix

absl::StatusOr<int64_t> IntInput(OnnxNode& n, int i, int64_t least) {
  ASSIGN_OR_RETURN(const Ints list, n.IntsInput(i));
  if (list.size() != 1 || list[0] < least || list[0] > kMaxElements)
    return n.Error() << "input " << i << " is " << ListToString(list) << ", expected one number of at least " << least;
  return list[0];
}

// Sets output 0 to `values` in the dtype that the attribute output_datatype names.
absl::Status SetConstant(OnnxNode& n, Shape shape, const std::vector<double>& values) {
  const absl::StatusOr<DType> dtype = DTypeFromOnnx(static_cast<int>(n.Int("output_datatype", 1)));
  if (!dtype.ok()) return n.Unsupported() << "attribute output_datatype: " << dtype.status().message();
  n.SetOutput(0, n.b().Constant(Tensor::Of<double>(std::move(shape), values).Converted(*dtype)));
  return absl::OkStatus();
}

// Element i of a window is a - b cos(t) + c cos(2t), where t goes from 0 to 2 pi.
absl::Status Window(OnnxNode& n, double a, double b, double c) {
  ASSIGN_OR_RETURN(const int64_t size, IntInput(n, 0, 0));
  if (size > kMaxMatrix) return n.Unsupported() << "size " << size;
  RETURN_IF_ERROR(n.ReserveTable(static_cast<double>(size)));
  const int64_t turn = n.Flag("periodic", true) ? size : size - 1;
  std::vector<double> values;
  for (int64_t i = 0; i < size; ++i) {
    const double t = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(turn);
    values.push_back(turn == 0 ? 1.0 : a - b * std::cos(t) + c * std::cos(2 * t));
  }
  return SetConstant(n, Shape({size}), values);
}

absl::Status HannWindow(OnnxNode& n) { return Window(n, 0.5, 0.5, 0); }
absl::Status HammingWindow(OnnxNode& n) { return Window(n, 25.0 / 46, 21.0 / 46, 0); }
absl::Status BlackmanWindow(OnnxNode& n) { return Window(n, 0.42, 0.5, 0.08); }

// The bins at which the triangles of a mel filter bank begin, peak and end: `triangles` + 2 of them.
absl::StatusOr<Ints> MelEdges(OnnxNode& n, int64_t triangles, int64_t dft_length) {
  ASSIGN_OR_RETURN(const int64_t rate, IntInput(n, 2, 1));
  ASSIGN_OR_RETURN(const double lowest, n.FloatInput(3));
  ASSIGN_OR_RETURN(const double highest, n.FloatInput(4));
  if (!(lowest >= 0 && highest >= lowest && std::isfinite(highest)))
    return n.Error() << "edges are " << lowest << " and " << highest << " hertz, expected increasing ones";
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double low = mel(lowest), step = (mel(highest) - low) / static_cast<double>(triangles + 2);
  Ints edges;
  for (int64_t i = 0; i < triangles + 2; ++i) {
    const double hertz = 700 * (std::pow(10, (static_cast<double>(i) * step + low) / 2595) - 1);
    const double bin = std::floor(static_cast<double>(dft_length + 1) * hertz / static_cast<double>(rate));
    if (!(bin >= 0 && bin <= static_cast<double>(dft_length / 2)))
      return n.Error() << hertz << " hertz are outside the frequencies of a transform of length " << dft_length
                       << " at the rate " << rate;
    edges.push_back(static_cast<int64_t>(bin));
  }
  return edges;
}

absl::Status MelWeightMatrix(OnnxNode& n) {
  ASSIGN_OR_RETURN(const int64_t triangles, IntInput(n, 0, 1));
  ASSIGN_OR_RETURN(const int64_t dft_length, IntInput(n, 1, 1));
  const int64_t bins = dft_length / 2 + 1;
  if (bins > kMaxMatrix / triangles) return n.Unsupported() << bins << " bins times " << triangles << " triangles";
  RETURN_IF_ERROR(n.ReserveTable(static_cast<double>(bins * triangles)));
  ASSIGN_OR_RETURN(const Ints edges, MelEdges(n, triangles, dft_length));
  std::vector<double> values(static_cast<size_t>(bins * triangles), 0.0);
  for (int64_t i = 0; i < triangles; ++i) {
    const size_t at = static_cast<size_t>(i);
    const int64_t begin = edges[at], peak = edges[at + 1], end = edges[at + 2];
    const auto weight = [&](int64_t bin) -> double& { return values[static_cast<size_t>(bin * triangles + i)]; };
    if (begin == peak) weight(peak) = 1;
    for (int64_t bin = begin; begin < peak && bin <= peak; ++bin)
      weight(bin) = static_cast<double>(bin - begin) / static_cast<double>(peak - begin);
    for (int64_t bin = peak; bin < end; ++bin)
      weight(bin) = static_cast<double>(end - bin) / static_cast<double>(end - peak);
  }
  return SetConstant(n, Shape({bins, triangles}), values);
}

// A Fourier transform as a matrix that maps `inputs` numbers, complex or real, to `outputs` numbers.
struct Transform {
  int64_t length = 0;  // N: the angles are multiples of 2 pi / N
  int64_t inputs = 0, outputs = 0;
  int64_t input_parts = 2, output_parts = 2;  // 1 if real
  bool inverse = false, mirrored = false;     // mirrored: inputs are one half, which determines the other
};

absl::Status CheckSize(OnnxNode& n, const Transform& t) {
  if (t.inputs * t.input_parts <= kMaxMatrix / (t.outputs * t.output_parts))
    return n.ReserveTable(static_cast<double>(t.inputs * t.input_parts * t.outputs * t.output_parts));
  return n.Unsupported() << "a transform of length " << t.length << " is too long to be a product with a matrix";
}

// The matrix element that maps part `p` of input `i` to part `q` of output `k`. Part 0 is the real one.
double Factor(const Transform& t, int64_t i, int64_t p, int64_t k, int64_t q) {
  const double turns = static_cast<double>(i * k % t.length) / static_cast<double>(t.length);
  const double angle = (t.inverse ? 2 : -2) * std::numbers::pi * turns;
  // (re + j im) (cos + j sin)
  double factor = p == q ? std::cos(angle) : (q == 1 ? std::sin(angle) : -std::sin(angle));
  if (t.mirrored && i != 0 && 2 * i != t.length) factor *= 2;
  return t.inverse ? factor / static_cast<double>(t.length) : factor;
}

// x with `extent` elements along `dim`: its first ones, or padded with zeros.
Value WithExtent(Builder& b, Value x, int64_t dim, int64_t extent) {
  const size_t rank = static_cast<size_t>(x.shape().rank()), at = static_cast<size_t>(dim);
  if (x.shape()[dim] > extent) return b.Slice(x, Ints(rank, 0), x.shape().WithDim(dim, extent).dims());
  if (x.shape()[dim] == extent) return x;
  Ints high(rank, 0);
  high[at] = extent - x.shape()[dim];
  return b.Pad(x, Ints(rank, 0), high);
}

// Applies the transform along dimension -2 of x = [..., n, parts].
absl::StatusOr<Value> Apply(OnnxNode& n, Value x, const Transform& t) {
  Builder& b = n.b();
  RETURN_IF_ERROR(CheckSize(n, t));
  Ints dims = x.shape().dims();
  const int64_t rank = x.shape().rank();
  x = WithExtent(b, x, rank - 2, t.inputs);
  std::vector<double> matrix;
  for (int64_t i = 0; i < t.inputs; ++i) {
    for (int64_t p = 0; p < t.input_parts; ++p) {
      for (int64_t k = 0; k < t.outputs; ++k) {
        for (int64_t q = 0; q < t.output_parts; ++q) matrix.push_back(Factor(t, i, p, k, q));
      }
    }
  }
  const int64_t rows = t.inputs * t.input_parts, columns = t.outputs * t.output_parts;
  dims.resize(static_cast<size_t>(rank - 2));
  const int64_t batch = Shape(dims).num_elements();
  const Value factors = b.Constant(Tensor::Of<double>(Shape({rows, columns}), matrix).Converted(x.dtype()));
  dims.insert(dims.end(), {t.outputs, t.output_parts});
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(dims));
  return b.Reshape(b.MatMul(b.Reshape(x, Shape({batch, rows})), factors), shape);
}

// The axis, which is an attribute before opset 20. It cannot be the last one, which has the real and imaginary parts.
absl::StatusOr<int64_t> DftAxis(OnnxNode& n, int64_t rank) {
  int64_t axis = n.opset() < 20 ? n.Int("axis", 1) : -2;
  if (n.has_input(2)) {
    ASSIGN_OR_RETURN(const Ints list, n.IntsInput(2));
    if (list.size() != 1) return n.Error() << "axis " << ListToString(list) << ", expected one";
    axis = list[0];
  }
  ASSIGN_OR_RETURN(axis, n.Axis(axis, rank));
  if (axis == rank - 1)
    return n.Error() << "axis " << axis << " has the real and imaginary parts, expected another one";
  return axis;
}

absl::Status Dft(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  const Value x = n.input(0);
  const int64_t rank = x.shape().rank(), parts = x.shape()[rank - 1];
  if ((parts != 1 && parts != 2) || !IsFloat(x.dtype()))
    return n.Error() << "input is " << x.type() << ", expected floats and a last dimension of 1 or 2";
  ASSIGN_OR_RETURN(const int64_t axis, DftAxis(n, rank));
  const bool one_sided = n.Flag("onesided", false);
  Transform t;
  t.inverse = n.Flag("inverse", false);
  t.mirrored = one_sided && t.inverse;
  t.length = t.mirrored ? 2 * (x.shape()[axis] - 1) : x.shape()[axis];
  if (n.has_input(1)) {
    ASSIGN_OR_RETURN(t.length, IntInput(n, 1, 1));
  }
  if (t.length < 1) return n.Error() << "a transform of length " << t.length << " of " << x.type();
  const int64_t half = t.length / 2 + 1;
  t.inputs = t.mirrored ? half : t.length;
  t.outputs = one_sided && !t.inverse ? half : t.length;
  t.input_parts = parts;
  t.output_parts = t.mirrored ? 1 : 2;
  Ints order;  // swaps the axis with dimension -2, and is its own inverse
  for (int64_t i = 0; i < rank; ++i) order.push_back(i);
  std::swap(order[static_cast<size_t>(axis)], order[static_cast<size_t>(rank - 2)]);
  const bool moves = axis != rank - 2;
  const Value moved = moves ? b.Transpose(x, order) : x;
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Value y, Apply(n, moved, t));
  n.SetOutput(0, moves ? b.Transpose(y, order) : y);
  return absl::OkStatus();
}

// Frames are the windows of a convolution, whose filters are the rows of a transform times the window.
absl::Status Stft(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  Value x = n.input(0);
  if (x.shape().rank() == 2) x = b.Reshape(x, Shape({x.shape()[0], x.shape()[1], 1}));
  RETURN_IF_ERROR(b.status());
  if (x.shape().rank() != 3 || (x.shape()[2] != 1 && x.shape()[2] != 2) || !IsFloat(x.dtype()))
    return n.Error() << "signal is " << x.type() << ", expected floats [batch, length] with one or two parts";
  ASSIGN_OR_RETURN(const int64_t step, IntInput(n, 1, 1));
  Transform t;
  t.length = x.shape()[1];
  if (n.has_input(2)) {
    if (n.shape(2).rank() != 1 || n.type(2).dtype != x.dtype())
      return n.Error() << "window is " << n.type(2) << ", expected a list of " << x.dtype();
    t.length = n.shape(2)[0];
  }
  if (n.has_input(3)) {
    ASSIGN_OR_RETURN(const int64_t length, IntInput(n, 3, 1));
    if (n.has_input(2) && length != t.length)
      return n.Error() << "frame_length is " << length << ", the window " << n.type(2);
    t.length = length;
  }
  if (t.length < 1 || t.length > x.shape()[1])
    return n.Error() << "frames of length " << t.length << " of signal " << x.type();
  t.inputs = t.length;
  t.outputs = n.Flag("onesided", true) ? t.length / 2 + 1 : t.length;
  t.input_parts = x.shape()[2];
  RETURN_IF_ERROR(CheckSize(n, t));
  std::vector<double> filters;
  for (int64_t k = 0; k < t.outputs; ++k) {
    for (int64_t q = 0; q < 2; ++q) {
      for (int64_t p = 0; p < t.input_parts; ++p) {
        for (int64_t i = 0; i < t.length; ++i) filters.push_back(Factor(t, i, p, k, q));
      }
    }
  }
  const Shape filter_shape({2 * t.outputs, t.input_parts, t.length});
  Value filter = b.Constant(Tensor::Of<double>(filter_shape, filters).Converted(x.dtype()));
  if (n.has_input(2)) filter = b.Mul(filter, b.BroadcastAlong(n.input(2), filter_shape, 2));
  const Ints zero{0}, one{1};
  const Value frames = b.Op("convolution", {b.Transpose(x, {0, 2, 1}), filter},
                            {{"stride", Ints{step}},
                             {"padding_low", zero},
                             {"padding_high", zero},
                             {"dilation", one},
                             {"groups", int64_t{1}}});
  RETURN_IF_ERROR(b.status());
  const Shape shape({x.shape()[0], frames.shape()[2], t.outputs, 2});
  n.SetOutput(0, b.Reshape(b.Transpose(frames, {0, 2, 1}), shape));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> SignalOps() {
  return {
      {"HannWindow", 17, kNoEnd, 1, 1, HannWindow},
      {"HammingWindow", 17, kNoEnd, 1, 1, HammingWindow},
      {"BlackmanWindow", 17, kNoEnd, 1, 1, BlackmanWindow},
      {"MelWeightMatrix", 17, kNoEnd, 5, 5, MelWeightMatrix},
      {"DFT", 17, 19, 1, 2, Dft},
      {"DFT", 20, kNoEnd, 1, 3, Dft},
      {"STFT", 17, kNoEnd, 2, 4, Stft},
  };
}

}  // namespace lockstep
