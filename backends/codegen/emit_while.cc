#include "backends/codegen/emit_while.h"

namespace lockstep {

using Values = std::vector<llvm::Value*>;

Values EmitWhile(llvm::IRBuilderBase& b, const Values& state, const std::function<llvm::Value*(const Values&)>& again,
                 const std::function<Values(const Values&)>& step) {
  llvm::BasicBlock* const before = b.GetInsertBlock();
  llvm::Function* const function = before->getParent();
  auto* const head = llvm::BasicBlock::Create(b.getContext(), "while", function);
  auto* const body = llvm::BasicBlock::Create(b.getContext(), "step", function);
  auto* const done = llvm::BasicBlock::Create(b.getContext(), "done", function);
  b.CreateBr(head);
  b.SetInsertPoint(head);
  std::vector<llvm::PHINode*> phis;
  for (llvm::Value* value : state) {
    phis.push_back(b.CreatePHI(value->getType(), 2));
    phis.back()->addIncoming(value, before);
  }
  const Values current(phis.begin(), phis.end());
  // Frozen, because a branch on poison is undefined.
  llvm::Value* condition = b.CreateFreeze(again(current));
  if (condition->getType()->isVectorTy()) condition = b.CreateOrReduce(condition);
  b.CreateCondBr(condition, body, done);
  b.SetInsertPoint(body);
  const Values next = step(current);
  for (size_t i = 0; i < phis.size(); ++i) phis[i]->addIncoming(next[i], b.GetInsertBlock());
  b.CreateBr(head);
  b.SetInsertPoint(done);
  return current;
}

}  // namespace lockstep
