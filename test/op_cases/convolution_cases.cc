#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

struct ConvolutionGeometry {
  Shape x, filter, y;
  Ints stride, padding_low, padding_high, dilation;
  int64_t groups = 1;

  AttributeMap Attributes() const {
    return {{"stride", stride},
            {"padding_low", padding_low},
            {"padding_high", padding_high},
            {"dilation", dilation},
            {"groups", groups}};
  }
  AttributeMap With(const char* name, const Shape& shape) const {
    AttributeMap attributes = Attributes();
    attributes.emplace(name, shape.dims());
    return attributes;
  }
};

const ConvolutionGeometry kPlainConvolution = {{6, 3, 5, 5}, {6, 3, 3, 3}, {6, 6, 3, 3}, {1, 1},
                                               {0, 0},       {0, 0},       {1, 1}};

std::vector<ConvolutionGeometry> ConvolutionGeometries() {
  return {
      kPlainConvolution,
      {{2, 6, 5, 5}, {6, 6, 2, 3}, {2, 6, 4, 3}, {1, 1}, {0, 0}, {0, 0}, {1, 1}},     // channels that ranks split
      {{6, 2, 7, 6}, {4, 2, 3, 2}, {6, 4, 4, 3}, {2, 3}, {1, 0}, {1, 3}, {1, 2}},     // everything combined
      {{2, 6, 4, 4}, {6, 2, 3, 3}, {2, 6, 4, 4}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 3},  // groups
      {{6, 4, 4, 4}, {4, 1, 2, 2}, {6, 4, 2, 2}, {2, 2}, {0, 0}, {0, 0}, {1, 1}, 4},  // depthwise
      {{6, 2, 9}, {2, 2, 3}, {6, 2, 4}, {2}, {0}, {2}, {2}},                          // one spatial dimension
      {{6, 1, 3, 4, 3}, {2, 1, 2, 2, 3}, {6, 2, 2, 3, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, {1, 1, 1}},  // and three
      {{1, 1, 6, 6}, {1, 1, 2, 2}, {1, 1, 2, 2}, {4, 4}, {0, 0}, {0, 0}, {1, 1}},  // input outside of all windows
      {{1, 1, 2, 2}, {1, 1, 1, 1}, {1, 1, 8, 8}, {1, 1}, {3, 3}, {3, 3}, {1, 1}},  // windows entirely in the padding
  };
}

// Adds one row for each of the three ops.
void AddConvolution(std::vector<OpCase>& rows, const ConvolutionGeometry& g, DType dtype) {
  const CaseOperand x = Typed(dtype, g.x), filter = Typed(dtype, g.filter), dy = Typed(dtype, g.y);
  rows.push_back(Case("convolution", {x, filter}, g.Attributes()));
  rows.push_back(Case("convolution_grad_input", {filter, dy}, g.With("input_shape", g.x)));
  rows.push_back(Case("convolution_grad_filter", {x, dy}, g.With("filter_shape", g.filter)));
  if (SizeOf(x.type.dtype) == 2) {
    AttributeMap wide = g.With("filter_shape", g.filter);
    wide["wide_result"] = true;
    rows.push_back(Case("convolution_grad_filter", {x, dy}, std::move(wide)));
  }
}

void AddRefusedConvolution(std::vector<OpCase>& rows, const ConvolutionGeometry& g, const char* constraint) {
  rows.push_back(Case("convolution", {F32(g.x), F32(g.filter)}, g.Attributes()).Refused(constraint));
  rows.push_back(
      Case("convolution_grad_input", {F32(g.filter), F32(g.y)}, g.With("input_shape", g.x)).Refused(constraint));
  rows.push_back(
      Case("convolution_grad_filter", {F32(g.x), F32(g.y)}, g.With("filter_shape", g.filter)).Refused(constraint));
}

ConvolutionGeometry ChangedConvolution(void (*change)(ConvolutionGeometry&)) {
  ConvolutionGeometry g = kPlainConvolution;
  change(g);
  return g;
}

}  // namespace

std::vector<OpCase> ConvolutionCases() {
  std::vector<OpCase> rows;
  for (const ConvolutionGeometry& g : ConvolutionGeometries()) AddConvolution(rows, g, DType::kF64);
  for (const ConvolutionGeometry& g : ConvolutionGeometries()) AddConvolution(rows, g, DType::kF32);
  AddConvolution(rows, kPlainConvolution, DType::kF16);
  AddConvolution(rows, kPlainConvolution, DType::kBF16);
  const ConvolutionGeometry empty =
      ChangedConvolution([](ConvolutionGeometry& g) { g.x = g.x.WithDim(0, 0), g.y = g.y.WithDim(0, 0); });
  rows.push_back(Case("convolution", {F32(empty.x), F32(empty.filter)}, empty.Attributes()).NoGradient("no elements"));
  rows.push_back(Case("convolution_grad_input", {F32(empty.filter), F32(empty.y)}, empty.With("input_shape", empty.x))
                     .NoGradient("no elements"));
  rows.push_back(Case("convolution_grad_filter", {F32(empty.x), F32(empty.y)}, empty.With("filter_shape", empty.filter))
                     .NoGradient("no elements"));

  rows.push_back(
      Case("convolution", {F32(kPlainConvolution.x), F64(kPlainConvolution.filter)}, kPlainConvolution.Attributes())
          .Refused("C1"));
  rows.push_back(
      Case("convolution", {I32(kPlainConvolution.x), I32(kPlainConvolution.filter)}, kPlainConvolution.Attributes())
          .Refused("C1"));
  rows.push_back(Case("convolution_grad_input", {I32(kPlainConvolution.filter), I32(kPlainConvolution.y)},
                      kPlainConvolution.With("input_shape", kPlainConvolution.x))
                     .Refused("C1"));
  rows.push_back(Case("convolution_grad_filter", {I32(kPlainConvolution.x), I32(kPlainConvolution.y)},
                      kPlainConvolution.With("filter_shape", kPlainConvolution.filter))
                     .Refused("C1"));
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.x = {6, 3, 5}; }), "C2");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.x = {6, 3}, g.filter = {6, 3}; }),
                        "C2");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.stride = {1}; }), "C3");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.dilation = {1, 1, 1}; }), "C3");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.stride = {1, 0}; }), "C4");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.dilation = {0, 1}; }), "C4");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.padding_low = {-1, 0}; }), "C4");
  AddRefusedConvolution(
      rows, ChangedConvolution([](ConvolutionGeometry& g) { g.padding_high = {0, int64_t{1} << 62}; }), "C4");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.filter = {6, 3, 0, 3}; }), "C4");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.filter = {6, 3, 6, 3}; }), "C5");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.dilation = {1, 3}; }), "C5");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.groups = 2; }), "C6");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.groups = 0; }), "C6");
  AddRefusedConvolution(rows, ChangedConvolution([](ConvolutionGeometry& g) { g.groups = 3; }), "C7");
  const ConvolutionGeometry other = ChangedConvolution([](ConvolutionGeometry& g) { g.y = {6, 6, 3, 4}; });
  rows.push_back(Case("convolution_grad_input", {F32(other.filter), F32(other.y)}, other.With("input_shape", other.x))
                     .Refused("C8"));
  rows.push_back(Case("convolution_grad_filter", {F32(other.x), F32(other.y)}, other.With("filter_shape", other.filter))
                     .Refused("C8"));
  rows.push_back(Case("convolution_grad_input", {F32(kPlainConvolution.filter), F32(kPlainConvolution.y)},
                      kPlainConvolution.With("input_shape", {6, 3, -5, 5}))
                     .Refused("C9"));
  rows.push_back(Case("convolution_grad_filter", {F32(kPlainConvolution.x), F32(kPlainConvolution.y)},
                      kPlainConvolution.With("filter_shape", {6, 3, 3, -3}))
                     .Refused("C9"));
  return rows;
}

}  // namespace lockstep
