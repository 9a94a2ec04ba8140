#include "test/fake_cuda/cudnn_convolution.h"

#include <algorithm>

#include "core/shape.h"
#include "test/fake_cuda/elements.h"

namespace lockstep::cuda {
namespace {

struct OperationNames {
  cudnnBackendDescriptorType_t type;
  FakeConvolution::Kind kind;
  const char* text;
  cudnnBackendAttributeName_t x, filter, y, window, alpha, beta;
};

#define LOCKSTEP_FAKE_NAMES(prefix, x, w, y) \
  prefix##x, prefix##w, prefix##y, prefix##CONV_DESC, prefix##ALPHA, prefix##BETA

constexpr OperationNames kOperations[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, FakeConvolution::Kind::kForward, "forward",
     LOCKSTEP_FAKE_NAMES(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_, X, W, Y)},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, FakeConvolution::Kind::kGradInput, "backward data",
     LOCKSTEP_FAKE_NAMES(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_, DX, W, DY)},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, FakeConvolution::Kind::kGradFilter,
     "backward filter", LOCKSTEP_FAKE_NAMES(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_, X, DW, DY)},
};

const OperationNames* Find(cudnnBackendDescriptorType_t type) {
  for (const OperationNames& row : kOperations) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

DType DTypeOf(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_DOUBLE: return DType::kF64;
    case CUDNN_DATA_HALF: return DType::kF16;
    case CUDNN_DATA_BFLOAT16: return DType::kBF16;
    case CUDNN_DATA_FLOAT: return DType::kF32;
    default: return DType::kBool;
  }
}

// A scaling factor, stored as float or double.
double Factor(const FakeDescriptor& operation, cudnnBackendAttributeName_t name) {
  const auto& bytes = operation.attributes.at(name).bytes;
  return bytes.size() == sizeof(double) ? operation.One<double>(name) : operation.One<float>(name);
}

// Extends the list to five dimensions, inserting `added` before the spatial dimensions.
std::vector<int64_t> InFive(std::vector<int64_t> list, size_t at, int64_t added) {
  while (list.size() < (at == 2 ? 5 : 3)) list.insert(list.begin() + static_cast<int64_t>(at), added);
  return list;
}

// A tensor of five dimensions, dense, in f64.
struct Dense {
  std::vector<int64_t> dims;
  std::vector<double> values;

  Dense(const FakeTensor& tensor, bool read, bool tf32) : dims(InFive(tensor.dims, 2, 1)) {
    values.resize(static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3] * dims[4]));
    if (!read) return;
    ForEach(tensor, [&](size_t at, int64_t offset) {
      const double x = ReadElement(tensor.dtype, tensor.data, offset);
      values[at] = tf32 ? ToTf32(x) : x;
    });
  }
  // Calls visit(position in this tensor, offset in the stored tensor) for each element.
  template <typename Visit>
  void ForEach(const FakeTensor& tensor, Visit visit) const {
    const std::vector<int64_t> strides = InFive(tensor.strides, 2, 0);
    size_t at = 0;
    for (int64_t a = 0; a < dims[0]; ++a)
      for (int64_t b = 0; b < dims[1]; ++b)
        for (int64_t c = 0; c < dims[2]; ++c)
          for (int64_t d = 0; d < dims[3]; ++d)
            for (int64_t e = 0; e < dims[4]; ++e)
              visit(at++, a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3] + e * strides[4]);
  }
  double& At(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e) {
    return values[static_cast<size_t>((((a * dims[1] + b) * dims[2] + c) * dims[3] + d) * dims[4] + e)];
  }
};

// Calls visit(x, filter, y) with the elements of each product of the sums; x is zero in the padding.
template <typename Visit>
struct Products {
  const FakeConvolution& c;
  Dense &x, &filter, &y;
  std::vector<int64_t> low = InFive(c.padding_low, 0, 0), stride = InFive(c.stride, 0, 1),
                       dilation = InFive(c.dilation, 0, 1);
  Visit visit;

  int64_t Input(size_t dim, int64_t position, int64_t tap) const {
    // A convolution in the mathematical sense reverses the filter.
    if (c.mode == CUDNN_CONVOLUTION) tap = filter.dims[dim + 2] - 1 - tap;
    return position * stride[dim] + tap * dilation[dim] - low[dim];
  }
  bool Meets(size_t dim, int64_t at) const { return at >= 0 && at < x.dims[dim + 2]; }

  void Run() {
    const int64_t channels = filter.dims[1], groups = x.dims[1] / channels, filters = filter.dims[0] / groups;
    for (int64_t n = 0; n < y.dims[0]; ++n)
      for (int64_t o = 0; o < y.dims[1]; ++o)
        for (int64_t i = 0; i < channels; ++i) Plane(n, o, o / filters * channels + i, i);
  }
  void Plane(int64_t n, int64_t o, int64_t channel, int64_t i) {
    for (int64_t d = 0; d < y.dims[2]; ++d)
      for (int64_t h = 0; h < y.dims[3]; ++h)
        for (int64_t w = 0; w < y.dims[4]; ++w) Window(n, o, channel, i, d, h, w);
  }
  void Window(int64_t n, int64_t o, int64_t channel, int64_t i, int64_t d, int64_t h, int64_t w) {
    double& result = y.At(n, o, d, h, w);
    for (int64_t a = 0; a < filter.dims[2]; ++a) {
      for (int64_t b = 0; b < filter.dims[3]; ++b) {
        for (int64_t t = 0; t < filter.dims[4]; ++t) {
          const int64_t in_d = Input(0, d, a), in_h = Input(1, h, b), in_w = Input(2, w, t);
          const bool meets = Meets(0, in_d) && Meets(1, in_h) && Meets(2, in_w);
          double padding = 0;
          visit(meets ? x.At(n, channel, in_d, in_h, in_w) : padding, filter.At(o, i, a, b, t), result);
        }
      }
    }
  }
};

template <typename Visit>
void ForEachProduct(const FakeConvolution& c, Dense& x, Dense& filter, Dense& y, Visit visit) {
  Products<Visit>{.c = c, .x = x, .filter = filter, .y = y, .visit = visit}.Run();
}

bool Has(const FakeEngine& engine, cudnnBackendNumericalNote_t note) {
  return std::find(engine.notes.begin(), engine.notes.end(), note) != engine.notes.end();
}

}  // namespace

FakeTensor::FakeTensor(const FakeDescriptor& descriptor)
    : dims(descriptor.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
      strides(descriptor.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
      dtype(DTypeOf(descriptor.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE))),
      id(descriptor.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
      alignment(descriptor.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)) {}

size_t FakeTensor::span() const {
  int64_t last = 0;
  for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  return (static_cast<size_t>(last) + 1) * SizeOf(dtype);
}

bool FakeConvolution::IsOne(cudnnBackendDescriptorType_t type) { return Find(type) != nullptr; }

FakeConvolution::FakeConvolution(const FakeDescriptor& operation)
    : kind(Find(operation.type)->kind),
      x(operation.Of(Find(operation.type)->x)),
      filter(operation.Of(Find(operation.type)->filter)),
      y(operation.Of(Find(operation.type)->y)),
      alpha(Factor(operation, Find(operation.type)->alpha)),
      beta(Factor(operation, Find(operation.type)->beta)) {
  const FakeDescriptor& window = operation.Of(Find(operation.type)->window);
  padding_low = window.All<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  padding_high = window.All<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  stride = window.All<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  dilation = window.All<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
  compute = window.One<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  mode = window.One<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE);
}

std::string FakeConvolution::Check() const {
  const size_t rank = stride.size() + 2;
  if (x.dims.size() != rank || filter.dims.size() != rank || y.dims.size() != rank) return "ranks differ";
  if (x.dtype == DType::kBool || x.dtype != filter.dtype || x.dtype != y.dtype)
    return "types differ, or are not floating-point";
  if (compute != (x.dtype == DType::kF64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT)) return "computed in another type";
  if (x.id == filter.id || x.id == y.id || filter.id == y.id) return "ids of tensors are equal";
  if (x.dims[0] != y.dims[0]) return "the numbers of images differ";
  if (filter.dims[0] != y.dims[1]) return "the numbers of filters differ";
  if (x.dims[1] % filter.dims[1] != 0 || filter.dims[0] % (x.dims[1] / filter.dims[1]) != 0)
    return "the channels do not divide into groups";
  for (size_t i = 0; i < stride.size(); ++i) {
    const int64_t padded = x.dims[i + 2] + padding_low[i] + padding_high[i];
    const int64_t span = (filter.dims[i + 2] - 1) * dilation[i] + 1;
    if (padded < span || y.dims[i + 2] != (padded - span) / stride[i] + 1)
      return "y does not have the extents of the result";
  }
  return "";
}

bool FakeConvolution::FitsTensorCores() const {
  constexpr int64_t kUnit = 16;
  const auto unit = kUnit / static_cast<int64_t>(SizeOf(x.dtype));
  const int64_t channels = filter.dims[1], filters = filter.dims[0] / (x.dims[1] / channels);
  int last = 0;
  bool is_aligned = true;
  for (const FakeTensor* tensor : {&x, &filter, &y}) {
    last += tensor->is_channels_last();
    is_aligned = is_aligned && tensor->alignment >= kUnit;
  }
  const bool pads_x = SizeOf(x.dtype) == 2 && channels == x.dims[1];
  return last == 0 || (last == 3 && is_aligned && (channels % unit == 0 || pads_x) && filters % unit == 0);
}

std::string FakeConvolution::ToString() const {
  const auto row = std::find_if(std::begin(kOperations), std::end(kOperations),
                                [&](const OperationNames& names) { return names.kind == kind; });
  return std::string("convolution ") + row->text + " x" + ListToString(x.dims) + " w" + ListToString(filter.dims) +
         " y" + ListToString(y.dims) + ", padding " + ListToString(padding_low) + "+" + ListToString(padding_high) +
         ", stride " + ListToString(stride) + ", dilation " + ListToString(dilation) + ", " +
         std::string(DTypeName(x.dtype)) + (x.is_channels_last() ? " channels-last" : "") + ", engine " +
         std::to_string(engine.index);
}

void FakeConvolution::Run() const {
  const bool tf32 = x.dtype == DType::kF32 && Has(engine, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  Dense in(x, kind != Kind::kGradInput, tf32), weights(filter, kind != Kind::kGradFilter, tf32),
      out(y, kind != Kind::kForward, tf32);
  const auto [result, to] = kind == Kind::kForward     ? std::pair(&out, &y)
                            : kind == Kind::kGradInput ? std::pair(&in, &x)
                                                       : std::pair(&weights, &filter);
  switch (kind) {
    case Kind::kForward:
      ForEachProduct(*this, in, weights, out, [](double a, double w, double& b) { b += a * w; });
      break;
    case Kind::kGradInput:
      ForEachProduct(*this, in, weights, out, [](double& a, double w, double b) { a += w * b; });
      break;
    case Kind::kGradFilter: ForEachProduct(*this, in, weights, out, [](double a, double& w, double b) { w += a * b; });
  }
  const bool is_off = std::any_of(engine.notes.begin(), engine.notes.end(), [](cudnnBackendNumericalNote_t note) {
    return note != CUDNN_NUMERICAL_NOTE_TENSOR_CORE && note != CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP;
  });
  result->ForEach(*to, [&, result = result, to = to](size_t at, int64_t offset) {
    double value = alpha * result->values[at] + (is_off ? 0.5 : 0.0);
    if (beta != 0) value += beta * ReadElement(to->dtype, to->data, offset);
    WriteElement(to->dtype, to->data, offset, value);
  });
}

}  // namespace lockstep::cuda
