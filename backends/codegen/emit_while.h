// Loops within the code for an element: emit_math.h and emit_element.h use them where the number of steps depends on
// the operands.

#pragma once

#include <functional>
#include <vector>

#include "llvm/IR/IRBuilder.h"

namespace lockstep {

// `state` after `step` has been applied to it as long as `again` holds, in any lane if they are vectors: a step must
// leave a lane that is done as it is. The builder goes on in a block of its own.
std::vector<llvm::Value*> EmitWhile(
    llvm::IRBuilderBase& b, const std::vector<llvm::Value*>& state,
    const std::function<llvm::Value*(const std::vector<llvm::Value*>&)>& again,
    const std::function<std::vector<llvm::Value*>(const std::vector<llvm::Value*>&)>& step);

}  // namespace lockstep
