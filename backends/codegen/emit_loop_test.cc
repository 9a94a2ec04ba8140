// Code for loops calls no functions, except libm functions of f64 if the target has libm.

#include "backends/codegen/emit_loop.h"

#include <set>
#include <string>

#include "backends/codegen/loop_compiler.h"
#include "core/op_def.h"
#include "gtest/gtest.h"
#include "llvm/IR/Module.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

struct Emitted {
  absl::Status status;
  std::set<std::string> declared;  // functions without a body, other than LLVM's intrinsics
  bool has_code = false;
};

Emitted Emit(const Graph& body, bool has_libm) {
  const LoopPlan plan = PlanLoop(body, {}).value();
  llvm::LLVMContext context;
  llvm::Module module("m", context);
  Emitted emitted;
  emitted.status =
      EmitLoop(body, plan, {.instructions = {.has_fma = true}, .has_libm = has_libm}, "run", "finish", module);
  for (const llvm::Function& function : module) {
    if (!function.isDeclaration()) emitted.has_code = true;
    else if (!function.isIntrinsic()) emitted.declared.insert(function.getName().str());
  }
  return emitted;
}

// Tests every elementwise op in every dtype that has an op case.
TEST(EmitLoop, CallsNothingWhereThereIsNoLibm) {
  int rows = 0;
  std::set<std::string> refused;
  for (const OpCase& row : AcceptedOpCases()) {
    if (!GetOp(row.op).has_trait(kElementwise) || row.ranks > 0) continue;
    SCOPED_TRACE(row.ToString());
    const Graph body = CaseGraph(row).value();
    const Emitted with = Emit(body, /*has_libm=*/true), without = Emit(body, /*has_libm=*/false);
    ASSERT_TRUE(with.status.ok()) << with.status;
    EXPECT_TRUE(with.has_code);
    EXPECT_TRUE(without.declared.empty()) << *without.declared.begin();
    // Ops that call functions are refused, and no others.
    EXPECT_EQ(without.status.ok(), with.declared.empty());
    EXPECT_EQ(AnalyzeLoop(body, {}, /*has_libm=*/false).status(), without.status);
    ++rows;
    if (without.status.ok()) {
      EXPECT_TRUE(without.has_code);
      continue;
    }
    EXPECT_EQ(without.status.code(), absl::StatusCode::kUnimplemented);
    const std::string message(without.status.message());
    EXPECT_NE(message.find("no code for " + row.op), std::string::npos) << message;
    EXPECT_NE(message.find("case:/" + row.op), std::string::npos) << message;
    EXPECT_NE(message.find("in f64 it is a function of the C library"), std::string::npos) << message;
    EXPECT_EQ(body.results()[0].value.dtype(), DType::kF64);
    refused.insert(row.op);
  }
  EXPECT_GE(rows, 300);
  // exp, log, log1p, tanh, erf, sigmoid, eleven trigonometric and hyperbolic functions, pow, fmod, remainder.
  EXPECT_EQ(refused.size(), 20U);
}

}  // namespace
}  // namespace lockstep
