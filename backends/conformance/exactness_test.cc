// Checks that the backend's f32 results are as exact as the blocks of elementwise ops say (OpDef::F32Error).

#include <algorithm>
#include <set>
#include <string>

#include "backends/codegen/loop_test_support.h"
#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "core/builder.h"
#include "core/interpreter.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

// Returns the largest distance from the interpreter's f32 results, in units in the last place; -1 if there are no f32
// results or no kernel.
int64_t LargestDistance(const Graph& graph, const std::vector<Tensor>& inputs, int threads) {
  CompileOptions options;
  options.threads = threads;
  const auto expected = InterpretOneRank(graph, inputs);
  const auto actual = RunInProcess(graph, TestedBackend(), {inputs}, options);
  if (LacksKernel(actual.status())) return -1;
  EXPECT_TRUE(expected.ok() && actual.ok()) << expected.status() << actual.status();
  if (!expected.ok() || !actual.ok()) return -1;
  int64_t largest = -1;
  for (size_t r = 0; r < expected->size(); ++r) {
    const Tensor &found = (*actual)[0][r], &wanted = (*expected)[r];
    if (wanted.dtype() != DType::kF32) continue;
    for (int64_t i = 0; i < wanted.num_elements(); ++i)
      largest = std::max(largest, loop_test::UlpDistance(found, wanted, i));
  }
  return largest;
}

// The values are NaN, infinities, denormals, the ends of the range, and values of all magnitudes; also fewer elements
// than a vector has.
TEST(Exactness, ElementwiseOpsOfF32AreAsExactAsTheirBlocksSay) {
  for (size_t operands : {1, 2}) {
    ASSERT_GE(ElementwiseOpsOfFloats(operands).size(), 6U);
    for (const std::string& name : ElementwiseOpsOfFloats(operands)) {
      for (int64_t size : {3, 100003}) {
        Graph graph("g");
        Builder b(graph);
        std::vector<Value> values;
        std::vector<Tensor> inputs;
        for (size_t i = 0; i < operands; ++i) {
          inputs.push_back(loop_test::RandomTensor({DType::kF32, {size}}, loop_test::Values::kEverything, i));
          values.push_back(graph.AddInput("x" + std::to_string(i), inputs.back().type()).value());
        }
        ASSERT_TRUE(graph.AddResult("y", b.Op(name, values)).ok()) << b.status();
        const int64_t distance = LargestDistance(graph, inputs, size > 3 ? 2 : 1);
        EXPECT_TRUE(distance >= 0 && distance <= GetOp(name).f32_ulps())
            << name << " is " << distance << " ulp off, and its block says " << GetOp(name).f32_ulps();
      }
    }
  }
}

// Ops with attributes or with operands of several dtypes are tested on the table of op cases.
TEST(Exactness, RowsOfElementwiseOpsToo) {
  std::set<std::string> ops;
  for (const OpCase& row : AcceptedOpCases()) {
    const OpDef& op = GetOp(row.op);
    if (!op.has_trait(kElementwise) || row.ranks > 0) continue;
    const int64_t distance = LargestDistance(CaseGraph(row).value(), CaseInputs(row), 1);
    EXPECT_LE(distance, op.f32_ulps()) << row.ToString();
    if (distance >= 0) ops.insert(row.op);
  }
  EXPECT_TRUE(ops.contains("select") && ops.contains("convert"));
  EXPECT_GE(ops.size(), 20U);
}

}  // namespace
}  // namespace lockstep
