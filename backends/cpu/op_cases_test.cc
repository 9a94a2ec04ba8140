// Every row of the table of op cases: the CPU backend against the interpreter, on one and on two threads.

#include "backends/cpu/compare_with_interpreter.h"
#include "core/op_def.h"
#include "core/verifier.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

// Relative to the largest result: both round once an operation, in different orders.
double ToleranceOf(const OpCase& row) {
  double tolerance = 1e-5;
  for (const CaseOperand& operand : row.operands) {
    if (operand.type.dtype == DType::kBF16) tolerance = 2e-2;
    if (operand.type.dtype == DType::kF16) tolerance = 4e-3;
  }
  return tolerance;
}

absl::StatusOr<Graph> GraphOf(const OpCase& row) {
  Graph graph("case");
  if (row.ranks > 0) graph.set_mesh(Mesh({{std::string(kDataAxis), row.ranks}}));
  NodeSpec spec{&GetOp(row.op), {}, row.attributes, "case:/" + row.op, {}};
  for (size_t i = 0; i < row.operands.size(); ++i) {
    // Of a collective, each rank has its own operand.
    const PlacementMap placements =
        row.ranks > 0 ? PlacementMap{{std::string(kDataAxis), Placement::Local()}} : PlacementMap();
    ASSIGN_OR_RETURN(const Value input,
                     graph.AddInput("x" + std::to_string(i), row.operands[i].type, false, placements));
    spec.operands.push_back(input);
  }
  ASSIGN_OR_RETURN(Node * node, graph.Insert(std::move(spec)));
  for (size_t i = 0; i < node->num_results(); ++i) {
    RETURN_IF_ERROR(graph.AddResult("y" + std::to_string(i), node->result(i)));
  }
  if (row.ranks > 0) {
    ASSIGN_OR_RETURN(const auto placements, InferPlacements(graph, kDataAxis));
    for (size_t i = 0; i < graph.results().size(); ++i) {
      graph.set_result_placements(i, {{std::string(kDataAxis), placements.at(graph.results()[i].value)}});
    }
  }
  return graph;
}

class OpCases : public testing::TestWithParam<OpCase> {};

TEST_P(OpCases, AgreesWithInterpreter) {
  const OpCase& row = GetParam();
  if (!row.refused.empty()) GTEST_SKIP() << "a row that inference refuses";
  auto graph = GraphOf(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::vector<Tensor>> inputs;
  for (int64_t rank = 0; rank < std::max<int64_t>(row.ranks, 1); ++rank) {
    inputs.push_back(CaseInputs(row, static_cast<uint64_t>(rank) + 1));
  }
  for (int threads : {1, 2}) {
    CompileOptions options;
    options.threads = threads;
    ExpectAgreesWithInterpreter(*graph, inputs, ToleranceOf(row), options);
  }
}

std::string NameOf(const testing::TestParamInfo<OpCase>& info) {
  return std::to_string(info.index) + "_" + info.param.op;
}

INSTANTIATE_TEST_SUITE_P(All, OpCases, testing::ValuesIn(AllOpCases()), NameOf);

}  // namespace
}  // namespace lockstep
