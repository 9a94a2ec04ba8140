// Loops within the code for one element. emit_math.h and emit_element.h use them if the number of steps depends on the
// operands.

#pragma once

#include <functional>
#include <vector>

#include "llvm/IR/IRBuilder.h"

namespace lockstep {

// Applies `step` to `state` as long as `again` is true, for vectors as long as it is true in any lane, and returns the
// final state. A step must leave finished lanes unchanged. Afterwards the builder is in a new block.
std::vector<llvm::Value*> EmitWhile(
    llvm::IRBuilderBase& b, const std::vector<llvm::Value*>& state,
    const std::function<llvm::Value*(const std::vector<llvm::Value*>&)>& again,
    const std::function<std::vector<llvm::Value*>(const std::vector<llvm::Value*>&)>& step);

}  // namespace lockstep
