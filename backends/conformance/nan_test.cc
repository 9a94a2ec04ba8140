// relu of NaN is NaN, also after a matrix product, as the op defines it and as PyTorch does. A backend may leave relu
// to its matrix library, which may compute the maximum of x and 0 with an instruction that drops NaN. NVIDIA's
// documentation does not say what its library does; running this test on a GPU ("cuda") shows it.

#include <cmath>
#include <limits>
#include <string>

#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 16, kInner = 32, kColumns = 64;

struct NanCase {
  std::string dtype;
  bool tf32, bias;
};

class NanThroughRelu : public testing::TestWithParam<NanCase> {};

std::string TextOf(const NanCase& of) {
  std::string text =
      "graph @f(%x: F[16,32], %w: F[32,64], %b: F[64]) -> (y: F[16,64]) {\n%z = matmul %x, %w : F[16,64]\n";
  if (of.bias) text += "%c = broadcast %b {dims=[1], shape=[16, 64]} : F[16,64]\n%s = add %z, %c : F[16,64]\n";
  text += std::string("%y = relu ") + (of.bias ? "%s" : "%z") + " : F[16,64]\nreturn %y\n}";
  for (size_t at; (at = text.find("F[")) != std::string::npos;) text.replace(at, 1, of.dtype);
  return text;
}

// The sums are integers that every dtype represents, of both signs. Row 3 has a NaN; row 5 has infinities of both
// signs, whose sum is NaN; column 9 of the bias is NaN.
std::vector<Tensor> InputsOf(const Graph& graph) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> x, w, b;
  for (int64_t i = 0; i < kRows * kInner; ++i) x.push_back(static_cast<double>(i % 5 - 2));
  for (int64_t i = 0; i < kInner * kColumns; ++i) w.push_back(i % 3 == 0 ? 1 : -1);
  for (int64_t i = 0; i < kColumns; ++i) b.push_back(i == 9 ? kNan : static_cast<double>(i % 7 - 3));
  x[3 * kInner + 4] = kNan;
  x[5 * kInner + 1] = kInfinity;
  x[5 * kInner + 2] = -kInfinity;
  for (int64_t j = 0; j < kColumns; ++j) w[kColumns + j] = w[2 * kColumns + j] = 1;
  const DType dtype = graph.inputs()[0].value.type().dtype;
  return {Tensor::Of<double>({kRows, kInner}, x).Converted(dtype),
          Tensor::Of<double>({kInner, kColumns}, w).Converted(dtype),
          Tensor::Of<double>({kColumns}, b).Converted(dtype)};
}

TEST_P(NanThroughRelu, IsNan) {
  const absl::StatusOr<Graph> graph = ParseGraph(TextOf(GetParam()));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<Tensor> inputs = InputsOf(*graph);
  const auto expected = InterpretOneRank(*graph, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  CompileOptions options;
  options.tf32 = GetParam().tf32;
  const auto found = RunInProcess(*graph, TestedBackend(), {inputs}, options);
  ASSERT_TRUE(found.ok()) << found.status();
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const int64_t row = i / kColumns, column = i % kColumns;
    const double y = (*found)[0][0].At(i);
    if (row == 3 || row == 5 || (GetParam().bias && column == 9)) {
      EXPECT_TRUE(std::isnan(y)) << y << " of a NaN, in row " << row << ", column " << column;
    } else {
      EXPECT_EQ(y, (*expected)[0].At(i)) << "row " << row << ", column " << column;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NanThroughRelu,
                         testing::Values(NanCase{"f32", false, false}, NanCase{"f32", false, true},
                                         NanCase{"f32", true, false}, NanCase{"f32", true, true},
                                         NanCase{"f16", false, false}, NanCase{"f16", false, true},
                                         NanCase{"bf16", false, false}, NanCase{"bf16", false, true}),
                         [](const auto& info) {
                           return info.param.dtype + (info.param.tf32 ? "InTf32" : "") +
                                  (info.param.bias ? "WithBias" : "");
                         });

}  // namespace
}  // namespace lockstep
