// Meshes of two axes, of which one has one rank: collectives along either against the interpreter.

#include "backends/conformance/compare_with_interpreter.h"
#include "core/op_def.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

// The rows of the table of op cases that name an axis, each on its axis `data` within a larger mesh.
class CollectiveOnMesh : public testing::TestWithParam<OpCase> {};

TEST_P(CollectiveOnMesh, AgreesWithInterpreter) {
  const int64_t ranks = GetParam().ranks;
  std::vector<Mesh> meshes = {Mesh({{"data", ranks}, {"model", 1}}), Mesh({{"model", 1}, {"data", ranks}})};
  if (ranks == 1) meshes.push_back(Mesh({{"data", 1}, {"model", 2}}));
  for (const Mesh& mesh : meshes) {
    auto graph = CaseGraph(GetParam());
    ASSERT_TRUE(graph.ok()) << graph.status();
    graph->set_mesh(mesh, true);
    SCOPED_TRACE(graph->ToString());
    CompileOptions options;
    options.mesh = mesh;
    ExpectAgreesWithInterpreter(*graph, RandomInputs(*graph), 1e-5, options);
  }
}

std::vector<OpCase> RowsWithAxis() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AcceptedOpCases()) {
    if (row.ranks > 0) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveOnMesh, testing::ValuesIn(RowsWithAxis()),
                         [](const auto& info) { return std::to_string(info.index) + "_" + info.param.op; });

}  // namespace
}  // namespace lockstep
