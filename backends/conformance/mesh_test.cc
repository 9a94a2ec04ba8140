// Meshes of two axes: collectives along either axis, compared with the interpreter.

#include "backends/conformance/compare_with_interpreter.h"
#include "backends/conformance/tested_backend.h"
#include "core/op_def.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

// The op cases that name an axis, each on its axis `data` within a larger mesh.
class CollectiveOnMesh : public testing::TestWithParam<OpCase> {};

TEST_P(CollectiveOnMesh, AgreesWithInterpreter) {
  const int64_t ranks = GetParam().ranks;
  // NCCL rounds intermediate values.
  const DType dtype = GetParam().operands.empty() ? DType::kF32 : GetParam().operands[0].type.dtype;
  const bool is_half = (IsFloat(dtype) && SizeOf(dtype) == 2) || GetParam().attributes.contains("wire");
  const double tolerance = !ReducesInRankOrder() && is_half ? 2e-2 : 1e-5;
  std::vector<Mesh> meshes = {Mesh({{"data", ranks}, {"model", 1}}), Mesh({{"model", 1}, {"data", ranks}})};
  // Groups of adjacent ranks, and groups of ranks that are not adjacent.
  if (ranks < 5) meshes.push_back(Mesh({{"data", ranks}, {"model", 2}}));
  if (ranks < 5) meshes.push_back(Mesh({{"model", 2}, {"data", ranks}}));
  for (const Mesh& mesh : meshes) {
    auto graph = CaseGraphOn(GetParam(), mesh);
    ASSERT_TRUE(graph.ok()) << graph.status();
    SCOPED_TRACE(graph->ToString());
    CompileOptions options;
    options.mesh = mesh;
    ExpectAgreesWithInterpreter(*graph, RandomInputs(*graph), tolerance, options);
  }
}

std::vector<OpCase> RowsWithAxis() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AcceptedOpCases()) {
    const bool needs_one_axis =
        row.op == "push" || row.op == "exchange" || row.op == "exchange_weights";  // the same along other axes
    if (row.ranks > 0 && !needs_one_axis) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveOnMesh, testing::ValuesIn(RowsWithAxis()),
                         [](const auto& info) { return std::to_string(info.index) + "_" + info.param.op; });

}  // namespace
}  // namespace lockstep
