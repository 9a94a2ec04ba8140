#include "tools/gpu_ops.h"

#include <map>
#include <set>
#include <vector>

#include "backends/cuda/cuda_backend.h"
#include "core/check.h"
#include "passes/legalize/legalize.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

// The dtype by which an op's rows are grouped: that of the first float operand, else of the first operand, else of the
// result.
DType DTypeOf(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    for (const Value& operand : node.operands()) {
      if (IsFloat(operand.dtype())) return operand.dtype();
    }
    return node.operands().empty() ? node.type().dtype : node.operand(0).dtype();
  }
  LOCKSTEP_CHECK(false) << "a row without a node";
  __builtin_unreachable();
}

// The number of rows of one op that run, and that do not, by dtype.
struct Rows {
  std::map<DType, int> running, refused;
};

std::map<std::string, Rows> RowsByOp() {
  const absl::StatusOr<Target> target = CreateCudaBackend()->MakeTarget({.isa = "sm_80"});
  LOCKSTEP_CHECK(target.ok()) << target.status();
  const passes::Pass legalize = passes::Legalize(target->supports);
  std::map<std::string, Rows> ops;
  for (const OpCase& row : AcceptedOpCases()) {
    absl::StatusOr<Graph> graph = CaseGraph(row);
    LOCKSTEP_CHECK(graph.ok()) << graph.status();
    const DType dtype = DTypeOf(*graph);
    Rows& rows = ops[row.op];
    ++(legalize.run(*graph).ok() ? rows.running : rows.refused)[dtype];
  }
  return ops;
}

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "`" : ", `") + name + "`";
  return text.empty() ? "none" : text;
}

}  // namespace

std::string GpuOpsSection() {
  std::vector<std::string> none;                 // ops that run for no dtype
  std::map<DType, std::vector<std::string>> of;  // ops that do not run for this dtype
  std::vector<std::string> some;                 // ops that do not run in every form
  for (const auto& [op, rows] : RowsByOp()) {
    if (rows.refused.empty()) continue;
    if (rows.running.empty()) {
      none.push_back(op);
      continue;
    }
    bool by_dtype = true;
    for (const auto& [dtype, count] : rows.refused) by_dtype = by_dtype && !rows.running.contains(dtype);
    if (!by_dtype) some.push_back(op);
    else
      for (const auto& [dtype, count] : rows.refused) of[dtype].push_back(op);
  }
  std::string text =
      "## On GPUs\n\n`backend=\"cuda\"` has no kernels for the following. Compiling one is an error that names the op; "
      "`backend=\"cpu\"` runs it.\n\n- Ops with any dtype: " +
      Listed(none) + "\n";
  for (const auto& [dtype, ops] : of) text += "- Ops with " + std::string(DTypeName(dtype)) + ": " + Listed(ops) + "\n";
  text += "- Ops in some forms: " + Listed(some) + "\n\n";
  return text;
}

}  // namespace lockstep
