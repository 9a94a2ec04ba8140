// What an op says of itself in one word, so that a pass or a backend asks for what it needs to know and not for the
// op's name (docs/decisions/0011). What takes more than a word is said by functions of the op's block: see OpDef in
// core/op_def.h. test/op_cases/op_traits_test.cc and elementwise_traits_test.cc compare it with the op's reference
// meaning, backends/codegen/heavy_ops_test.cc compares kHeavy with the code that there is for an element.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep {

enum OpTrait : uint32_t {
  // --- What the op does. Each op has one of these, or more: op_traits_test.cc asks for it.
  kElementwise = 1u << 0,  // result element i depends on element i of each operand alone; all shapes equal
  // Computes nothing: each element of a result is one of an operand or of an attribute, bit for bit.
  kMovement = 1u << 1,
  kGenerator = 1u << 2,  // an element follows from its index (and the rank): see OpDef::Counts
  kReduction = 1u << 3,  // see OpDef::Reduces
  // All ranks of a mesh axis take part: never duplicated, removed only everywhere, kept in order.
  kCollective = 1u << 4,
  kOptimizer = 1u << 5,  // results are next values of the leading operands, which it may overwrite
  kOpaque = 1u << 6,     // of how its elements depend on each other nothing is known that others could use

  // --- What else holds of it.
  kCommutative = 1u << 7,       // of its two operands
  kIdempotent = 1u << 8,        // of its one operand, without attributes: f(f(x)) is f(x)
  kInvolution = 1u << 9,        // of its one operand, without attributes: f(f(x)) is x
  kKeepsOrder = 1u << 10,       // a movement that keeps row-major order: the result may be the operand's memory
  kRematerialised = 1u << 11,   // an element is made where it is read, rather than made once, stored and loaded
  kOneRankIdentity = 1u << 12,  // along a mesh axis of one rank, result i is operand i
  kHeavy = 1u << 13,            // elementwise, tens of instructions an element: few elements are worth a thread
  kSteps = 1u << 14,            // elementwise, constant between halves: rounding may carry its operand across a step
  kRefuses = 1u << 15,          // a constraint is on the data: the program ends with an error if it does not hold
  kEndsGradients = 1u << 16,    // its results are constants to gradients, whatever they are computed from
};

// All of them, each with the word that docs/ops.md has for it.
struct OpTraitName {
  OpTrait trait;
  std::string_view name;
};
const std::vector<OpTraitName>& AllOpTraits();

// In which precision an op of f32 computes where a step is trained in mixed precision (passes/training/precision.h),
// after the lists of PyTorch's autocast: of those for CUDA and for CPU that for CUDA, as models are mostly written for
// it. What follows there because it is on no list follows here.
enum class PrecisionRule {
  kFull,     // operands and results of f32
  kLow,      // operands and results of 16 bits
  kInside,   // computes in f32; the first result has the precision of the first operand, the others are f32
  kFollows,  // the precision of the operands
  kWritten,  // results of the dtype that is written in the program
};

// "16 bits", "f32", ...: the word that docs/precision.md has for it.
std::string_view PrecisionRuleName(PrecisionRule rule);

}  // namespace lockstep
