// Resize and Upsample: one dimension after the other is resampled with weights that are known at import.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/resampling.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// The change of one dimension.
struct Axis {
  int64_t dim, input, output;
  double scale;               // number of new elements / number of old ones
  double begin = 0, end = 1;  // the region of tf_crop_and_resize, where 1 is the last old element
};

struct Method {
  std::string mode, nearest, transform;
  double cubic_a, extrapolation;
  bool antialias, exclude_outside;
};

// The position of new element i among the old elements.
double PositionOf(const Axis& a, const std::string& transform, int64_t i) {
  const auto at = static_cast<double>(i), input = static_cast<double>(a.input);
  const double output = a.scale * input;  // may be fractional
  const bool is_one = std::abs(output - 1) < 1e-9;
  if (transform == "align_corners") return is_one ? 0 : at * (input - 1) / (output - 1);
  if (transform == "asymmetric") return at / a.scale;
  if (transform == "tf_half_pixel_for_nn") return (at + 0.5) / a.scale;
  if (transform == "tf_crop_and_resize") {
    if (is_one) return (a.begin + a.end) * (input - 1) / 2;
    return (a.begin + at * (a.end - a.begin) / (output - 1)) * (input - 1);
  }
  if (transform == "pytorch_half_pixel" && is_one) return -0.5;
  double offset = 0;
  if (transform == "half_pixel_symmetric") offset = input / 2 * (1 - static_cast<double>(a.output) / output);
  return offset + (at + 0.5) / a.scale - 0.5;
}

int64_t NearestTo(double position, const Axis& a, const std::string& nearest) {
  double index = 0;
  if (nearest == "floor") index = std::floor(position);
  else if (nearest == "ceil") index = std::ceil(position);
  else if (nearest == "simple") index = a.scale < 1 ? std::ceil(position) : std::floor(position);
  else if (nearest == "round_prefer_ceil") index = std::floor(position + 0.5);
  else index = std::ceil(position - 0.5);
  return static_cast<int64_t>(std::clamp(index, 0.0, static_cast<double>(a.input - 1)));
}

// The weight of an element at `distance`.
double Kernel(const Method& method, double distance) {
  const double d = std::abs(distance), a = method.cubic_a;
  if (method.mode == "linear") return std::max(1 - d, 0.0);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// The factor on distances by which antialiasing widens the kernel when the extent shrinks; 1 otherwise.
double Narrowing(const Axis& a, const Method& method) { return method.antialias ? std::min(a.scale, 1.0) : 1.0; }

// The largest distance from a position at which elements have weights.
double Reach(const Axis& a, const Method& method) { return (method.mode == "linear" ? 1 : 2) / Narrowing(a, method); }

Taps TapsAt(double position, const Axis& a, const Method& method) {
  const double narrow = Narrowing(a, method), reach = Reach(a, method);
  Taps taps;
  double sum = 0;
  for (auto k = static_cast<int64_t>(std::floor(position - reach)); static_cast<double>(k) <= position + reach; ++k) {
    const double weight = Kernel(method, (static_cast<double>(k) - position) * narrow);
    const bool is_outside = k < 0 || k >= a.input;
    if (weight == 0 || (method.exclude_outside && is_outside)) continue;
    taps.emplace_back(k, weight);
    sum += weight;
  }
  if ((method.antialias || method.exclude_outside) && sum != 0) {
    for (auto& tap : taps) tap.second /= sum;
  }
  return taps;
}

Value ResizeAxis(Builder& b, Value x, const Axis& a, const Method& method) {
  if (a.input == a.output && a.scale == 1 && a.begin == 0 && a.end == 1) return x;
  Ints indices;
  std::vector<Taps> rows;
  for (int64_t i = 0; i < a.output; ++i) {
    const double position = PositionOf(a, method.transform, i);
    if (method.mode == "nearest") indices.push_back(NearestTo(position, a, method.nearest));
    else rows.push_back(TapsAt(position, a, method));
  }
  return method.mode == "nearest" ? Selected(b, x, a.dim, indices) : Resampled(b, x, a.dim, rows);
}

// y with the extrapolation value where the position is outside x in some dimension.
Value Extrapolated(Builder& b, Value y, const std::vector<Axis>& axes, const Method& method) {
  for (const Axis& a : axes) {
    std::vector<bool> outside;
    for (int64_t i = 0; i < a.output; ++i) {
      const double position = PositionOf(a, method.transform, i);
      outside.push_back(position < 0 || position > static_cast<double>(a.input - 1));
    }
    if (!y || std::find(outside.begin(), outside.end(), true) == outside.end()) continue;
    Tensor mask(TensorType{DType::kBool, Shape({a.output})});
    std::copy(outside.begin(), outside.end(), mask.mutable_data<bool>().begin());
    y = b.Select(b.BroadcastAlong(b.Constant(std::move(mask)), y.shape(), a.dim), b.SplatLike(method.extrapolation, y),
                 y);
  }
  return y;
}

absl::StatusOr<Value> Resize(OnnxNode& n, const std::vector<Axis>& axes, const Method& method) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  Ints dims = x.shape().dims();
  for (const Axis& a : axes) {
    dims[At(a.dim)] = a.output;
    if (a.input == 0 && a.output > 0) return n.Error() << "dimension " << a.dim << " of " << x.type() << " is empty";
  }
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(dims));
  if (shape.num_elements() == 0) return b.Splat(0, {x.dtype(), shape});
  const bool computes = method.mode != "nearest";
  for (const Axis& a : axes) {
    const double taps = computes ? 4 * (2 * Reach(a, method) + 1) : 1;  // 4 for merging and sorting
    RETURN_IF_ERROR(n.ReserveTable(static_cast<double>(a.output) * taps));
  }
  const DType wide = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  Value y = computes ? b.Convert(x, wide) : x;
  for (size_t i = axes.size(); i-- > 0;) y = ResizeAxis(b, y, axes[i], method);
  if (method.transform == "tf_crop_and_resize") y = Extrapolated(b, y, axes, method);
  if (computes && !IsFloat(x.dtype())) y = b.Unary("round", y);
  return b.Convert(y, x.dtype());
}

// --- Attributes and inputs of Resize ---------------------------------------------------------------------------------

absl::StatusOr<std::string> OneOf(OnnxNode& n, const char* name, const char* otherwise,
                                  const std::vector<std::string>& known) {
  const std::string value = n.String(name, otherwise);
  if (std::find(known.begin(), known.end(), value) != known.end()) return value;
  return n.Error() << "attribute " << name << " is '" << value << "', expected one of " << absl::StrJoin(known, ", ");
}

absl::StatusOr<Method> ReadMethod(OnnxNode& n) {
  Method method;
  ASSIGN_OR_RETURN(method.mode, OneOf(n, "mode", "nearest", {"nearest", "linear", "cubic"}));
  ASSIGN_OR_RETURN(method.transform, OneOf(n, "coordinate_transformation_mode", "half_pixel",
                                           {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                                            "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"}));
  ASSIGN_OR_RETURN(method.nearest, OneOf(n, "nearest_mode", "round_prefer_floor",
                                         {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}));
  method.cubic_a = n.Float("cubic_coeff_a", -0.75);
  method.extrapolation = n.Float("extrapolation_value", 0);
  method.exclude_outside = n.Flag("exclude_outside", false);
  method.antialias = n.opset() >= 18 && n.Flag("antialias", false);
  if (method.mode == "nearest" && method.antialias)
    return n.Error() << "attribute antialias is 1 in mode nearest, expected linear or cubic";
  return method;
}

// The new extent of an axis that is scaled by a float.
absl::StatusOr<int64_t> Scaled(OnnxNode& n, int64_t extent, double scale) {
  constexpr float kMost = 1 << 30;
  const float scaled = std::floor(static_cast<float>(extent) * static_cast<float>(scale));
  if (!(scale > 0) || !(scaled < kMost)) return n.Error() << "scale " << scale << " of an extent of " << extent;
  return static_cast<int64_t>(scaled);
}

// The axes for given new extents. Unless the policy is stretch, all axes get the same scale.
absl::StatusOr<std::vector<Axis>> SizedAxes(OnnxNode& n, const Ints& dims, const Ints& sizes) {
  ASSIGN_OR_RETURN(const std::string policy,
                   OneOf(n, "keep_aspect_ratio_policy", "stretch", {"stretch", "not_larger", "not_smaller"}));
  const Shape& x = n.shape(0);
  std::vector<Axis> axes;
  double least = 0, most = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > int64_t{1} << 30) return n.Error() << "sizes are " << ListToString(sizes);
    const double scale = x[dims[i]] > 0 ? static_cast<double>(sizes[i]) / static_cast<double>(x[dims[i]]) : 1;
    least = i == 0 ? scale : std::min(least, scale);
    most = std::max(most, scale);
    axes.push_back({dims[i], x[dims[i]], sizes[i], scale});
  }
  for (Axis& a : axes) {
    if (policy == "stretch") break;
    a.scale = policy == "not_larger" ? least : most;
    a.output = static_cast<int64_t>(a.scale * static_cast<double>(a.input) + 0.5);
  }
  return axes;
}

absl::StatusOr<std::vector<Axis>> ScaledAxes(OnnxNode& n, const Ints& dims, const std::vector<double>& scales) {
  std::vector<Axis> axes;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t input = n.shape(0)[dims[i]];
    ASSIGN_OR_RETURN(const int64_t output, Scaled(n, input, scales[i]));
    axes.push_back({dims[i], input, output, scales[i]});
  }
  return axes;
}

absl::Status CheckCount(OnnxNode& n, const char* what, size_t count, size_t expected) {
  if (count == expected) return absl::OkStatus();
  return n.Error() << what << " has " << count << " entries, expected " << expected;
}

absl::StatusOr<std::vector<Axis>> ReadAxes(OnnxNode& n, bool crops) {
  Ints dims;
  const int64_t rank = n.shape(0).rank();
  if (n.opset() >= 18 && n.has_attr("axes")) {
    dims = n.Ints("axes");
    RETURN_IF_ERROR(n.Axes(dims, rank).status());  // an error if one repeats
    for (int64_t& dim : dims) dim += dim < 0 ? rank : 0;
  } else {
    for (int64_t i = 0; i < rank; ++i) dims.push_back(i);
  }
  std::vector<double> scales;
  if (n.has_input(2)) {
    ASSIGN_OR_RETURN(scales, n.FloatsInput(2));
  }
  std::vector<Axis> axes;
  if (n.has_input(3) && scales.empty()) {
    ASSIGN_OR_RETURN(const Ints sizes, n.IntsInput(3));
    RETURN_IF_ERROR(CheckCount(n, "sizes", sizes.size(), dims.size()));
    ASSIGN_OR_RETURN(axes, SizedAxes(n, dims, sizes));
  } else {
    n.Ignore("keep_aspect_ratio_policy");  // only for sizes
    RETURN_IF_ERROR(CheckCount(n, "scales", scales.size(), dims.size()));
    ASSIGN_OR_RETURN(axes, ScaledAxes(n, dims, scales));
  }
  if (!crops) return axes;
  if (!n.has_input(1)) return n.Error() << "tf_crop_and_resize needs input 1 (roi)";
  ASSIGN_OR_RETURN(const std::vector<double> region, n.FloatsInput(1));
  RETURN_IF_ERROR(CheckCount(n, "roi", region.size(), 2 * dims.size()));
  for (double edge : region) {
    if (!(std::abs(edge) <= 1 << 30)) return n.Error() << "roi has " << edge << ", expected parts of an extent";
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    axes[i].begin = region[i];
    axes[i].end = region[i + axes.size()];
  }
  return axes;
}

absl::Status ResizeFrom11(OnnxNode& n) {
  n.input(0);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const Method method, ReadMethod(n));
  ASSIGN_OR_RETURN(const std::vector<Axis> axes, ReadAxes(n, method.transform == "tf_crop_and_resize"));
  ASSIGN_OR_RETURN(const Value y, Resize(n, axes, method));
  n.SetOutput(0, y);
  return absl::OkStatus();
}

// --- Upsample, and Resize before opset 11 ----------------------------------------------------------------------------

absl::Status ResizeByScales(OnnxNode& n, const std::vector<double>& scales, const char* nearest) {
  ASSIGN_OR_RETURN(std::string mode, OneOf(n, "mode", "nearest", {"nearest", "linear", "bilinear"}));
  if (mode == "bilinear") mode = "linear";
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  RETURN_IF_ERROR(CheckCount(n, "scales", scales.size(), At(x.shape().rank())));
  Ints dims;
  for (int64_t i = 0; i < x.shape().rank(); ++i) dims.push_back(i);
  ASSIGN_OR_RETURN(const std::vector<Axis> axes, ScaledAxes(n, dims, scales));
  const Method method{mode, nearest, "asymmetric", /*cubic_a=*/0, /*extrapolation=*/0, false, false};
  ASSIGN_OR_RETURN(const Value y, Resize(n, axes, method));
  n.SetOutput(0, y);
  return absl::OkStatus();
}

absl::Status ScalesAreInput(OnnxNode& n) {
  ASSIGN_OR_RETURN(const std::vector<double> scales, n.FloatsInput(1));
  return ResizeByScales(n, scales, n.opset() == 10 ? "simple" : "floor");
}

absl::Status ScalesAreAttribute(OnnxNode& n) { return ResizeByScales(n, n.Floats("scales"), "floor"); }

absl::Status ScalesAreTwoAttributes(OnnxNode& n) {
  return ResizeByScales(n, {1, 1, n.Float("height_scale", 1), n.Float("width_scale", 1)}, "floor");
}

}  // namespace

std::vector<OnnxOp> ResizeOps() {
  return {
      {"Resize", 10, 10, 2, 2, ScalesAreInput},         {"Resize", 11, kNoEnd, 1, 4, ResizeFrom11},
      {"Upsample", 1, 6, 1, 1, ScalesAreTwoAttributes}, {"Upsample", 7, 8, 1, 1, ScalesAreAttribute},
      {"Upsample", 9, 9, 2, 2, ScalesAreInput},
  };
}

}  // namespace lockstep
