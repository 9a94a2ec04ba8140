// Compares the trait kExpensive with the number of instructions for an element. The trait decides how many elements are
// worth a thread.

#include <cstdint>
#include <string>

#include "backends/codegen/emit_element.h"
#include "core/builder.h"
#include "gtest/gtest.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

// Returns the number of instructions for an f32 element of the op, none of which may be a call.
int64_t InstructionsOf(const std::string& op, size_t operands) {
  Graph graph("g");
  Builder b(graph);
  std::vector<Value> values;
  for (size_t i = 0; i < operands; ++i)
    values.push_back(graph.AddInput("x" + std::to_string(i), TensorType{DType::kF32, {}}).value());
  const Node& node = *b.Op(op, values).node;

  llvm::LLVMContext context;
  llvm::Module module("m", context);
  llvm::Type* const f32 = llvm::Type::getFloatTy(context);
  auto* const type = llvm::FunctionType::get(f32, std::vector<llvm::Type*>(operands, f32), /*isVarArg=*/false);
  auto* const function = llvm::Function::Create(type, llvm::Function::ExternalLinkage, op, module);
  llvm::IRBuilder<> builder(llvm::BasicBlock::Create(context, "entry", function));
  std::vector<llvm::Value*> arguments;
  for (llvm::Argument& argument : function->args()) arguments.push_back(&argument);
  ElementEmitter emitter(builder, {.has_fma = true}, /*error=*/nullptr);
  emitter.EmitOp(node, arguments, /*error_code=*/1);

  for (const llvm::Instruction& instruction : llvm::instructions(function)) {
    EXPECT_TRUE(!llvm::isa<llvm::CallInst>(instruction) || llvm::isa<llvm::IntrinsicInst>(instruction)) << op;
  }
  return static_cast<int64_t>(function->getInstructionCount());
}

TEST(HeavyOps, AreThoseOfTensOfInstructions) {
  int heavy = 0, light = 0;
  for (size_t operands : {1, 2}) {
    for (const std::string& op : ElementwiseOpsOfFloats(operands)) {
      const int64_t count = InstructionsOf(op, operands);
      EXPECT_GT(count, 0) << op;
      EXPECT_EQ(count >= 20, GetOp(op).has_trait(kExpensive)) << op << " takes " << count << " instructions an element";
      ++(count >= 20 ? heavy : light);
    }
  }
  EXPECT_GE(heavy, 6);
  EXPECT_GE(light, 10);
}

}  // namespace
}  // namespace lockstep
