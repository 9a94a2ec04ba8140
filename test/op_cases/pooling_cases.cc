#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

struct Geometry {
  Shape x, y;
  Ints window, stride, padding_low, padding_high, dilation;

  AttributeMap Windows() const {
    return {{"window", window}, {"stride", stride}, {"padding_low", padding_low}, {"padding_high", padding_high}};
  }
  AttributeMap Max() const {
    AttributeMap attributes = Windows();
    attributes.emplace("dilation", dilation);
    return attributes;
  }
  AttributeMap Average(bool include_padding) const {
    AttributeMap attributes = Windows();
    attributes.emplace("include_padding", include_padding);
    return attributes;
  }
  AttributeMap AverageGrad(bool include_padding) const {
    AttributeMap attributes = Average(include_padding);
    attributes.emplace("input_shape", x.dims());
    return attributes;
  }
};

const Geometry kPlain = {{6, 2, 4, 4}, {6, 2, 2, 2}, {2, 2}, {2, 2}, {0, 0}, {0, 0}, {1, 1}};

// Geometries without dilation, for all four ops.
std::vector<Geometry> Geometries() {
  return {
      kPlain,
      {{1, 6, 5, 4}, {1, 6, 3, 4}, {3, 2}, {1, 1}, {0, 0}, {0, 1}, {1, 1}},  // overlapping windows, channels that ranks
                                                                             // split
      {{6, 1, 6, 5}, {6, 1, 3, 3}, {3, 2}, {2, 2}, {1, 1}, {0, 0}, {1, 1}},  // low padding
      {{2, 1, 7}, {2, 1, 3}, {2}, {3}, {1}, {1}, {1}},                       // one spatial dimension; elements left out
      {{2, 1, 3, 4, 2}, {2, 1, 2, 2, 1}, {2, 2, 2}, {1, 2, 2}, {0, 0, 0}, {0, 0, 0}, {1, 1, 1}},  // and three
  };
}

void AddRows(std::vector<OpCase>& rows, const Geometry& g, DType dtype) {
  rows.push_back(Case("max_pool", {Typed(dtype, g.x)}, g.Max()));
  rows.push_back(Case("max_pool_grad", {Typed(dtype, g.x), Typed(dtype, g.y)}, g.Max()));
  for (bool include_padding : {false, true}) {
    rows.push_back(Case("avg_pool", {Typed(dtype, g.x)}, g.Average(include_padding)));
    rows.push_back(Case("avg_pool_grad", {Typed(dtype, g.y)}, g.AverageGrad(include_padding)));
  }
}

void AddRefused(std::vector<OpCase>& rows, const Geometry& g, const char* constraint) {
  rows.push_back(Case("max_pool", {F32(g.x)}, g.Max()).Refused(constraint));
  rows.push_back(Case("max_pool_grad", {F32(g.x), F32(g.y)}, g.Max()).Refused(constraint));
  rows.push_back(Case("avg_pool", {F32(g.x)}, g.Average(true)).Refused(constraint));
  rows.push_back(Case("avg_pool_grad", {F32(g.y)}, g.AverageGrad(true)).Refused(constraint));
}

Geometry Changed(void (*change)(Geometry&)) {
  Geometry g = kPlain;
  change(g);
  return g;
}

}  // namespace

std::vector<OpCase> PoolingCases() {
  std::vector<OpCase> rows;
  for (const Geometry& g : Geometries()) AddRows(rows, g, DType::kF64);
  for (const Geometry& g : Geometries()) AddRows(rows, g, DType::kF32);
  AddRows(rows, kPlain, DType::kBF16);
  const Geometry empty = {{0, 2, 4, 4}, {0, 2, 2, 2}, {2, 2}, {2, 2}, {0, 0}, {0, 0}, {1, 1}};
  rows.push_back(Case("max_pool", {F32(empty.x)}, empty.Max()).NoGradient("no elements"));
  rows.push_back(Case("max_pool_grad", {F32(empty.x), F32(empty.y)}, empty.Max()).NoGradient("no elements"));
  rows.push_back(Case("avg_pool", {F32(empty.x)}, empty.Average(true)).NoGradient("no elements"));
  rows.push_back(Case("avg_pool_grad", {F32(empty.y)}, empty.AverageGrad(true)).NoGradient("no elements"));
  // All taps are outside of x: a maximum of nothing.
  const Geometry around = {{2, 6, 1}, {2, 6, 2}, {2}, {1}, {2}, {2}, {3}};
  rows.push_back(Case("max_pool", {F32(around.x)}, around.Max()).NoGradient("infinite"));
  rows.push_back(Case("max_pool_grad", {F32(around.x), F32(around.y)}, around.Max()).NoGradient("all zero"));
  const Geometry dilated = {{1, 2, 7, 5}, {1, 2, 3, 3}, {3, 2}, {1, 2}, {0, 1}, {0, 0}, {2, 1}};
  rows.push_back(Case("max_pool", {F64(dilated.x)}, dilated.Max()));
  rows.push_back(Case("max_pool_grad", {F64(dilated.x), F64(dilated.y)}, dilated.Max()));

  rows.push_back(Case("max_pool", {I32(kPlain.x)}, kPlain.Max()).Refused("C1"));
  rows.push_back(Case("max_pool_grad", {I32(kPlain.x), I32(kPlain.y)}, kPlain.Max()).Refused("C1"));
  rows.push_back(Case("avg_pool", {I32(kPlain.x)}, kPlain.Average(true)).Refused("C1"));
  rows.push_back(Case("avg_pool_grad", {I32(kPlain.y)}, kPlain.AverageGrad(true)).Refused("C1"));
  AddRefused(rows, Changed([](Geometry& g) { g.x = {6, 2}; }), "C2");
  AddRefused(rows, Changed([](Geometry& g) { g.x = {6, 2, 1, 1, 4, 4}; }), "C2");
  AddRefused(rows, Changed([](Geometry& g) { g.window = {2}; }), "C3");
  AddRefused(rows, Changed([](Geometry& g) { g.padding_high = {0, 0, 0}; }), "C3");
  AddRefused(rows, Changed([](Geometry& g) { g.window = {0, 2}; }), "C4");
  AddRefused(rows, Changed([](Geometry& g) { g.stride = {2, 0}; }), "C4");
  AddRefused(rows, Changed([](Geometry& g) { g.padding_low = {-1, 0}; }), "C4");
  AddRefused(rows, Changed([](Geometry& g) { g.window = {5, 2}; }), "C5");
  AddRefused(rows, Changed([](Geometry& g) { g.padding_low = {2, 0}; }), "C6");
  rows.push_back(
      Case("max_pool", {F32(kPlain.x)}, Changed([](Geometry& g) { g.dilation = {0, 1}; }).Max()).Refused("C4"));
  rows.push_back(
      Case("max_pool", {F32(kPlain.x)}, Changed([](Geometry& g) { g.dilation = {1, 4}; }).Max()).Refused("C5"));
  rows.push_back(Case("max_pool_grad", {F32(kPlain.x), F32(kPlain.x)}, kPlain.Max()).Refused("C7"));
  rows.push_back(Case("avg_pool_grad", {F32(kPlain.x)}, kPlain.AverageGrad(true)).Refused("C7"));
  AttributeMap negative = kPlain.Average(true);
  negative.emplace("input_shape", Ints{6, 2, -4, 4});
  rows.push_back(Case("avg_pool_grad", {F32(kPlain.y)}, negative).Refused("C8"));
  return rows;
}

}  // namespace lockstep
