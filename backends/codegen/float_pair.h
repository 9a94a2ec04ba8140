// Sums of f32 in pairs of f32, for GPUs whose f64 is slow. A pair is the unrounded sum of its two numbers, of which
// `low` is at most half a unit in the last place of `high`: 48 bits, by Knuth's and Dekker's error-free additions. The
// error of an addition is below 2^-46 of its result (Joldes, Muller, Popescu, 2017), so that of a sum of n elements is
// below n 2^-46 times the sum of their absolute values. Unlike in f64, an intermediate result beyond the range of f32
// is infinite. An infinite or NaN sum has the low part 0.
//
// The code is for scalars or vectors. It must be compiled without reassociation and without fused operations.

#pragma once

#include "llvm/IR/IRBuilder.h"

namespace lockstep {

struct FloatPair {
  llvm::Value* high;
  llvm::Value* low;
};

// Returns sum + x, where x is f32.
FloatPair AddToPair(llvm::IRBuilderBase& b, const FloatPair& sum, llvm::Value* x);
// Returns the same bits if x and y are exchanged.
FloatPair AddPairs(llvm::IRBuilderBase& b, const FloatPair& x, const FloatPair& y);

// Converts between a pair and an integer of 64 bits, which can be stored or exchanged. The integer 0 is the pair 0, 0.
llvm::Value* PackPair(llvm::IRBuilderBase& b, const FloatPair& pair);
FloatPair UnpackPair(llvm::IRBuilderBase& b, llvm::Value* packed);

}  // namespace lockstep
